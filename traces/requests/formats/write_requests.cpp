#include "traces/requests/formats/write_requests.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kMooncakeBlock = 512;

template <class Has>
bool any(const RequestTrace& trace, Has has) {
  return std::any_of(trace.requests.begin(), trace.requests.end(), has);
}

/// Rejects traces that columns of time and two lengths cannot represent.
void refuse_more(const RequestTrace& trace, RequestFormat format) {
  const auto refuse = [&](std::string_view what) {
    throw InputError{fmt::format("{}: the layout of {} cannot represent {}; plain can", trace.name,
                                 name_of(format), what)};
  };
  if (any(trace, [](const Request& r) { return r.after >= 0; })) {
    refuse("requests that wait for others (closed loops, sessions)");
  }
  if (any(trace, [](const Request& r) { return r.declared_tokens > 0; })) refuse("max_tokens");
  if (any(trace, [](const Request& r) { return r.priority != 0; })) refuse("priorities");
}

/// Formats seconds with all non-zero digits of the twelve decimals.
std::string seconds_text(SimTime time) {
  const std::int64_t whole = time.count() / kPicosecondsPerSecond;
  const std::int64_t part = time.count() % kPicosecondsPerSecond;
  if (part == 0) return fmt::format("{}", whole);
  std::string text = fmt::format("{}.{:012}", whole, part);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

std::string plain_text(const RequestTrace& trace) {
  const bool priority = any(trace, [](const Request& r) { return r.priority != 0; });
  const bool declared = any(trace, [](const Request& r) { return r.declared_tokens > 0; });
  const bool session = any(trace, [](const Request& r) { return r.session >= 0; });
  const bool after = any(trace, [](const Request& r) { return r.after >= 0; });
  std::string out =
      fmt::format("arrival_s,prompt_tokens,output_tokens{}{}{}{}\n", priority ? ",priority" : "",
                  declared ? ",max_tokens" : "", session ? ",session" : "", after ? ",after" : "");
  auto end = std::back_inserter(out);
  for (const Request& r : trace.requests) {
    fmt::format_to(end, "{},{},{}", seconds_text(r.arrival), r.prompt_tokens, r.output_tokens);
    if (priority) fmt::format_to(end, ",{}", r.priority);
    if (declared) fmt::format_to(end, ",{}", r.declared_tokens);
    for (const auto& [there, number] : {std::pair{session, r.session}, std::pair{after, r.after}}) {
      if (there) out += ',';
      if (there && number >= 0) fmt::format_to(end, "{}", number);
    }
    out += '\n';
  }
  return out;
}

std::string azure_text(const RequestTrace& trace) {
  std::string out = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
  auto end = std::back_inserter(out);
  for (const Request& r : trace.requests) {
    const std::int64_t ticks = r.arrival.count() / 100'000;  // of 100 ns
    const std::int64_t seconds = ticks / 10'000'000;
    // Days of January and the following months: a trace spans at most 104 days.
    static constexpr int kDays[]{31, 29, 31, 30};
    std::int64_t day = seconds / 86'400;
    int month = 0;
    while (month < 3 && day >= kDays[month]) day -= kDays[month++];
    fmt::format_to(end, "2024-{:02}-{:02} {:02}:{:02}:{:02}.{:07},{},{}\r\n", month + 1, day + 1,
                   seconds / 3600 % 24, seconds / 60 % 60, seconds % 60, ticks % 10'000'000,
                   r.prompt_tokens, r.output_tokens);
  }
  return out;
}

std::string mooncake_text(const RequestTrace& trace) {
  if (trace.prefix_block != 0 && trace.prefix_block != kMooncakeBlock) {
    throw InputError{trace.name, "prefix blocks of 512 tokens for the layout of mooncake",
                     fmt::format("{}", trace.prefix_block)};
  }
  std::string out;
  auto end = std::back_inserter(out);
  for (const Request& r : trace.requests) {
    fmt::format_to(end, "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}",
                   r.arrival.count() / 1'000'000'000, r.prompt_tokens, r.output_tokens);
    if (r.prefix_count > 0) {
      out += ", \"hash_ids\": [";
      for (std::int32_t i = 0; i < r.prefix_count; ++i) {
        fmt::format_to(end, "{}{}", i == 0 ? "" : ", ",
                       trace.prefix_ids[static_cast<std::size_t>(r.prefix_first + i)]);
      }
      out += ']';
    }
    out += "}\n";
  }
  return out;
}

}  // namespace

std::vector<std::string> left_out_by(const RequestTrace& trace, RequestFormat format) {
  std::vector<std::string> out;
  const bool plain = format == RequestFormat::kPlain;
  if (!plain && any(trace, [](const Request& r) { return r.session >= 0; })) {
    out.emplace_back("session numbers");
  }
  if (format != RequestFormat::kMooncake && trace.prefix_block > 0) {
    out.emplace_back("prefix ids");
  }
  if (!trace.joins.empty()) out.emplace_back("waits for more than one request");
  const std::int64_t tick = plain ? 1 : format == RequestFormat::kAzure ? 100'000 : 1'000'000'000;
  if (any(trace, [&](const Request& r) { return r.arrival.count() % tick != 0; })) {
    out.emplace_back(format == RequestFormat::kAzure ? "times below 100 ns" : "times below 1 ms");
  }
  return out;
}

std::string requests_text(const RequestTrace& trace, RequestFormat format) {
  if (trace.shared_list && any(trace, [](const Request& r) { return r.after >= 0; })) {
    throw InputError{fmt::format(
        "{}: no layout can represent users who take requests from one list (arrivals: shared)",
        trace.name)};
  }
  switch (format) {
    case RequestFormat::kPlain:
      return plain_text(trace);
    case RequestFormat::kAzure:
      refuse_more(trace, format);
      return azure_text(trace);
    case RequestFormat::kMooncake:
      refuse_more(trace, format);
      return mooncake_text(trace);
    case RequestFormat::kBurstGpt:
    case RequestFormat::kShareGpt:
    case RequestFormat::kServeGen:
    case RequestFormat::kVidur:
    case RequestFormat::kSplitwise:
    case RequestFormat::kWeka:
    case RequestFormat::kAgentic:
    case RequestFormat::kBailian:
      break;
  }
  throw InputError{"the layout to write", "plain, azure or mooncake", std::string{name_of(format)}};
}

}  // namespace kvsim
