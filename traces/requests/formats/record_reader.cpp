#include "traces/requests/formats/record_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/number_text.hpp"
#include "models/units/units_format.hpp"
#include "traces/requests/request_order.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kBuffer = 1U << 20U;
constexpr std::size_t kLongestLine = 64U << 20U;
constexpr std::size_t kLongestQuoted = 40;

bool starts_with(const char* at, std::size_t size, std::string_view mark) {
  return size >= mark.size() && std::memcmp(at, mark.data(), mark.size()) == 0;
}

/// Returns the length of the UTF-8 sequence at the start of `text`; 0 if it is invalid (overlong
/// forms, surrogates and code points above U+10FFFF).
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool bad = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F);
    return !bad && follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool bad = (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
    return !bad && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

LineReader::LineReader(std::istream& in, std::string name) : in_{in}, name_{std::move(name)} {
  buffer_.resize(kBuffer);
}

std::string LineReader::place() const { return fmt::format("{}:{}", name_, number_); }

bool LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    if (buffer_.size() >= kLongestLine) {
      throw InputError{fmt::format("{}:{}", name_, number_ + 1), "a line of at most 64 MiB",
                       "a longer one"};
    }
    buffer_.resize(buffer_.size() * 2);
  }
  in_.read(buffer_.data() + end_, static_cast<std::streamsize>(buffer_.size() - end_));
  if (in_.bad()) throw InputError{fmt::format("{}: cannot be read to its end", name_)};
  const auto got = static_cast<std::size_t>(in_.gcount());
  end_ += got;
  return got > 0;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* start = buffer_.data() + begin_;
    const std::size_t size = end_ - begin_;
    const auto* found =
        size == searched
            ? nullptr
            : static_cast<const char*>(std::memchr(start + searched, '\n', size - searched));
    std::size_t length = 0;
    if (found != nullptr) {
      length = static_cast<std::size_t>(found - start);
      ended_ = true;
      begin_ += length + 1;
    } else {
      searched = size;
      if (fill()) continue;
      if (end_ == begin_) return false;
      start = buffer_.data() + begin_;
      length = end_ - begin_;
      ended_ = false;
      begin_ = end_;
    }
    ++number_;
    if (number_ == 1) {
      if (starts_with(start, length, "\xFF\xFE") || starts_with(start, length, "\xFE\xFF")) {
        throw InputError{place(), "a text in UTF-8", "the byte order mark of UTF-16 or UTF-32"};
      }
      if (starts_with(start, length, "\xEF\xBB\xBF")) {
        start += 3;
        length -= 3;
      }
    }
    if (length > 0 && start[length - 1] == '\r') --length;
    line = {start, length};
    return true;
  }
}

void check_text(std::string_view line, const std::string& place) {
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t length = line[at] == '\0' ? 0 : sequence_length(line.substr(at));
    if (length == 0) {
      throw InputError{place, "a line of UTF-8 text",
                       fmt::format("the byte 0x{:02X} at column {}",
                                   static_cast<unsigned char>(line[at]), at + 1)};
    }
    at += length;
  }
}

std::string in_quotes(std::string_view text) {
  std::string out{"\""};
  for (const char c : text.substr(0, kLongestQuoted)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F)
      out += c;
    else
      out += fmt::format("\\x{:02X}", byte);
  }
  out += text.size() > kLongestQuoted ? "...\"" : "\"";
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<std::int64_t> parse_whole(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{}) return std::nullopt;
  if (at == end) return value;
  const std::string_view rest{at, static_cast<std::size_t>(end - at)};
  if (rest.size() < 2 || rest[0] != '.') return std::nullopt;
  if (rest.find_first_not_of('0', 1) != std::string_view::npos) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_scaled(std::string_view text, int digits) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::string_view rest = text;
  const bool negative = rest.starts_with('-');
  if (negative) rest.remove_prefix(1);
  std::int64_t value = 0;
  int decimals = -1;  // number read so far; -1: before the point
  bool any = false;
  bool round_up = false;
  for (; !rest.empty(); rest.remove_prefix(1)) {
    const char c = rest.front();
    if (c == '.' && decimals < 0) {
      decimals = 0;
      continue;
    }
    if (c < '0' || c > '9') break;
    any = true;
    if (decimals == digits) {
      round_up = c >= '5';
      rest.remove_prefix(std::min(rest.find_first_not_of("0123456789"), rest.size()));
      break;
    }
    const std::int64_t digit = c - '0';
    if (value > (kMax - digit) / 10) return std::nullopt;
    value = value * 10 + digit;
    if (decimals >= 0) ++decimals;
  }
  if (!any) return std::nullopt;
  if (!rest.empty()) {  // an exponent, or not a number
    if (rest.front() != 'e' && rest.front() != 'E') return std::nullopt;
    double number = 0.0;
    const char* end = text.data() + text.size();
    const auto [at, error] = number_from_chars(text.data(), end, number);
    if (error != std::errc{} || at != end) return std::nullopt;
    const double scaled = number * std::pow(10.0, digits);
    if (!std::isfinite(scaled) || std::abs(scaled) > 9.2e18) return std::nullopt;
    return std::llround(scaled);
  }
  for (int i = std::max(decimals, 0); i < digits; ++i) {
    if (value > kMax / 10) return std::nullopt;
    value *= 10;
  }
  if (round_up && value < kMax) ++value;
  return negative ? -value : value;
}

RequestSink::RequestSink(std::string file, RequestFormat format, const ReadOptions& options)
    : file_{std::move(file)}, options_{options}, last_{std::numeric_limits<std::int64_t>::min()} {
  trace_.name = std::filesystem::path{file_}.filename().string();
  trace_.format = name_of(format);
}

void RequestSink::pass_over(const InputError& error) {
  if (trace_.skipped < options_.skip_bad) {
    ++trace_.skipped;
    return;
  }
  if (trace_.skipped == 0) throw error;
  throw InputError{fmt::format("{} (after {} skipped bad records, the allowed maximum)",
                               error.what(), trace_.skipped)};
}

void RequestSink::grow() {
  const std::size_t have = trace_.requests.size();
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (have >= kMax) {
    throw InputError{fmt::format("{}: expected at most {} requests, got more", file_, kMax)};
  }
  // Grows by half: doubling would need three times the memory of the result during the copy.
  trace_.requests.reserve(std::max<std::size_t>(1024, have + have / 2));
}

void RequestSink::out_of_order(const std::string& place, SimTime arrival) const {
  throw InputError{
      fmt::format("{}: expected a time not before that of the previous record, got one {} earlier; "
                  "\"sort\": true (--sort) sorts the records",
                  place, to_text(to_seconds(last_) - to_seconds(arrival)))};
}

void RequestSink::note_quantum() {
  // The smallest nonzero time difference; published quanta jitter by a millisecond.
  constexpr std::int64_t kNoted = kPicosecondsPerSecond * 9 / 10;
  std::int64_t quantum = std::numeric_limits<std::int64_t>::max();
  std::size_t distinct = 0;
  const Request* last = nullptr;
  for (const Request& r : trace_.requests) {
    if (r.after >= 0) continue;
    const std::int64_t gap = last == nullptr ? 0 : (r.arrival - last->arrival).count();
    if (gap > 0) quantum = std::min(quantum, gap);
    if (last == nullptr || gap > 0) ++distinct;
    last = &r;
  }
  if (distinct >= 2 && quantum >= kNoted && distinct * 2 < trace_.requests.size()) {
    trace_.notes.push_back(fmt::format(
        "arrivals are quantised to {:.2g} s ({} distinct times of {} requests); "
        "\"spread\" spreads them",
        to_seconds(SimTime{quantum}).count(), with_commas(static_cast<std::int64_t>(distinct)),
        with_commas(std::ssize(trace_.requests))));
  }
}

void RequestSink::put_in_order() {
  kvsim::put_in_order(trace_);
  sorted_ = true;
}

void RequestSink::note_other_keys(const Field& record,
                                  std::initializer_list<std::string_view> keys) {
  constexpr std::size_t kMaxKeys = 16, kLongestName = 40;
  for (const std::string& key : record.other_keys(keys)) {
    if (other_keys_.size() < kMaxKeys) other_keys_.insert(excerpt(key, kLongestName));
  }
}

RequestTrace RequestSink::finish(bool rebase) {
  auto& requests = trace_.requests;
  if (!other_keys_.empty()) {
    trace_.notes.push_back(fmt::format("keys that are not used: {}", fmt::join(other_keys_, ", ")));
  }
  if (requests.empty()) {
    throw InputError{trace_.skipped == 0
                         ? fmt::format("{}: expected at least one request, got none", file_)
                         : fmt::format("{}: expected at least one request, got only {} bad records",
                                       file_, trace_.skipped)};
  }
  if (!sorted_) {
    if (std::any_of(requests.begin(), requests.end(),
                    [](const Request& r) { return r.after >= 0; })) {
      throw InputError{file_, "records in order of time, because some refer to others by number",
                       "records out of order"};
    }
    std::stable_sort(requests.begin(), requests.end(),
                     [](const Request& a, const Request& b) { return a.arrival < b.arrival; });
    trace_.notes.emplace_back("records were not in order of time and have been sorted");
  }
  const SimTime start = rebase ? requests.front().arrival : SimTime{};
  if (last_.count() > 0 && to_seconds(last_) - to_seconds(start) > Seconds{1.0 * kLongestTrace}) {
    throw InputError{file_, fmt::format("times within {} s", kLongestTrace),
                     to_text(to_seconds(last_) - to_seconds(start))};
  }
  if (rebase) {
    const SimTime first = requests.front().arrival;
    for (Request& r : requests) {
      if (r.after < 0) r.arrival = r.arrival - first;
    }
  }
  if (trace_.skipped > 0) {
    trace_.notes.push_back(fmt::format("{} bad records were skipped", trace_.skipped));
  }
  note_quantum();
  check_requests(trace_);
  return std::move(trace_);
}

}  // namespace kvsim
