// kvsim requests info, convert, generate: workloads of a serving run.

#include <array>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/scenario_values.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "traces/requests/formats/write_requests.hpp"
#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request_stats.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

namespace fs = std::filesystem;

enum class ValueKind : std::uint8_t { kSwitch, kText, kNumber, kDuration, kKinds };

/// An option that sets a key of /requests.
struct KeyOption {
  std::string_view option, key, value;
  ValueKind kind;
  std::string_view help;
};

constexpr std::array kReading{
    KeyOption{
        "format", "format", "NAME", ValueKind::kText,
        "plain, azure, mooncake, burstgpt, sharegpt, servegen, vidur or splitwise (found out)"},
    KeyOption{"skip-bad", "skip_bad", "N", ValueKind::kNumber,
              "pass over as many malformed records and count them (0)"},
    KeyOption{"sort", "sort", "", ValueKind::kSwitch, "put records in order of time"},
    KeyOption{"chars-per-token", "chars_per_token", "X", ValueKind::kNumber,
              "ShareGPT without counts: characters of a token"},
    KeyOption{"tokens-per-word", "tokens_per_word", "X", ValueKind::kNumber,
              "ShareGPT without counts: tokens of a word"},
    KeyOption{"prefix-block", "prefix_block", "N", ValueKind::kNumber,
              "tokens per prefix id (mooncake 512, others 64)"}};

constexpr std::array kTransforming{
    KeyOption{"spread", "spread", "TIME", ValueKind::kDuration,
              "move each arrival by a uniform share of this: \"3 s\""},
    KeyOption{"from", "from", "TIME", ValueKind::kDuration,
              "keep arrivals from here, which is 0 then"},
    KeyOption{"until", "until", "TIME", ValueKind::kDuration, "keep arrivals before this"},
    KeyOption{"limit", "limit", "N", ValueKind::kNumber, "keep the first N requests"},
    KeyOption{"repeat", "repeat", "N", ValueKind::kNumber, "the whole N times behind each other"},
    KeyOption{"rate-scale", "rate_scale", "X", ValueKind::kNumber, "X times the requests a second"},
    KeyOption{"prompt-scale", "prompt_scale", "X", ValueKind::kNumber,
              "X times the prompts' lengths"},
    KeyOption{"output-scale", "output_scale", "X", ValueKind::kNumber,
              "X times the outputs' lengths"},
    KeyOption{"max-prompt-tokens", "max_prompt_tokens", "N", ValueKind::kNumber,
              "cut longer prompts"},
    KeyOption{"max-output-tokens", "max_output_tokens", "N", ValueKind::kNumber,
              "cut longer outputs"},
    KeyOption{"declared-tokens", "declared_tokens", "N", ValueKind::kNumber,
              "max_tokens of every request; outputs end there"},
    KeyOption{"distinct-prompts", "distinct_prompts", "N", ValueKind::kNumber,
              "request i sends text i mod N"}};

constexpr std::array kDrawing{
    KeyOption{"arrivals", "arrivals", "KIND:…", ValueKind::kKinds,
              "poisson:rate=6, gamma:rate=6,cv=2, fixed:rate=6 or closed:users=32"},
    KeyOption{"count", "count", "N", ValueKind::kNumber, "requests"},
    KeyOption{"prompt", "prompt_tokens", "N|KIND:…", ValueKind::kKinds,
              "512, uniform:min=1,max=1023, lognormal:mean=1000,p99=4000 (or mu=,sigma=), "
              "zipf:exponent=1,max=4096, empirical:file=F,column=prompt_tokens"},
    KeyOption{"output", "output_tokens", "N|KIND:…", ValueKind::kKinds, "as --prompt"},
    KeyOption{"think", "think", "TIME", ValueKind::kDuration, "closed loop: pause of a user"},
    KeyOption{"turns", "turns", "N|KIND:…", ValueKind::kKinds,
              "sessions of so many turns, each with all before as its context"},
    KeyOption{"turn-think", "turn_think", "TIME", ValueKind::kDuration, "pause between turns"},
    KeyOption{"shared-prompt", "shared_prefix", "tokens=N,…", ValueKind::kKinds,
              "prompts begin with one of a few texts: tokens=512,prompts=4,share=0.8,exponent=1"}};

void add_options(std::vector<Option>& options, std::span<const KeyOption> keys) {
  for (const KeyOption& key : keys) {
    options.push_back(
        {std::string{key.option}, 0, std::string{key.value}, false, std::string{key.help}});
  }
}

void take_options(const Arguments& arguments, std::span<const KeyOption> keys, json& out) {
  for (const KeyOption& key : keys) {
    const std::string option{key.option};
    if (!arguments.has(option)) continue;
    json& place = out[std::string{key.key}];
    if (key.kind == ValueKind::kSwitch) {
      place = true;
      continue;
    }
    const std::string text = arguments.value(option).value_or("");
    if (key.kind == ValueKind::kKinds) {
      place = read_kinds("--" + option, text);
    } else if (key.kind == ValueKind::kNumber) {
      place = number_or_text(text);
    } else if (key.kind == ValueKind::kDuration && parse_number(text)) {
      place = text + " s";
    } else {
      place = text;
    }
  }
}

std::uint64_t seed_of(const Arguments& arguments) {
  return static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
}

/// The workload that a file and the options say.
RequestTrace file_workload(const Arguments& arguments) {
  json requests{{"file", arguments.words().front()}};
  take_options(arguments, kReading, requests);
  take_options(arguments, kTransforming, requests);
  return make_workload(read_workload(Field::wrap(std::move(requests), "options"), ""),
                       seed_of(arguments));
}

template <class T>
ordered_json value_or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json lengths_json(const LengthSummary& lengths) {
  return {{"mean", lengths.mean},  {"p50", lengths.p50}, {"p90", lengths.p90},
          {"p99", lengths.p99},    {"min", lengths.min}, {"max", lengths.max},
          {"total", lengths.total}};
}

ordered_json info_json(const RequestTrace& trace, const RequestStats& stats) {
  ordered_json out{{"schema", "kvsim.requests-info/1"},
                   {"name", trace.name},
                   {"format", trace.format},
                   {"requests", stats.requests},
                   {"skipped", trace.skipped},
                   {"waiting", stats.waiting},
                   {"sessions", stats.sessions},
                   {"span_s", stats.span.count()},
                   {"request_s", value_or_null(stats.rate)},
                   {"inter_arrival_cv", value_or_null(stats.inter_arrival_cv)},
                   {"distinct_arrivals", stats.distinct_arrivals},
                   {"prompt_tokens", lengths_json(stats.prompt)},
                   {"output_tokens", lengths_json(stats.output)},
                   {"zero_outputs", stats.zero_outputs},
                   {"declared", stats.declared},
                   {"prefix", nullptr},
                   {"notes", trace.notes}};
  if (stats.prefix) {
    const PrefixSummary& prefix = *stats.prefix;
    out["prefix"] = {
        {"block_tokens", prefix.block},
        {"blocks", prefix.blocks},
        {"distinct", prefix.distinct},
        {"reusable", prefix.reusable},
        {"reusable_share", prefix.blocks > 0 ? ordered_json(static_cast<double>(prefix.reusable) /
                                                            static_cast<double>(prefix.blocks))
                                             : ordered_json(nullptr)}};
  }
  return out;
}

std::string info_text(const RequestTrace& trace, const RequestStats& stats, std::size_t width) {
  Facts facts;
  facts.add("format", trace.format);
  facts.add("requests", with_commas(stats.requests));
  if (trace.skipped > 0) facts.add("passed over", with_commas(trace.skipped));
  if (stats.waiting > 0) {
    facts.add("waiting", fmt::format("{} wait for an earlier one", with_commas(stats.waiting)));
  }
  if (stats.sessions > 0) facts.add("sessions", with_commas(stats.sessions));
  facts.add("span", fmt::format("{:.6g} s", stats.span.count()));
  if (stats.rate) facts.add("rate", fmt::format("{:.4g} requests/s", *stats.rate));
  if (stats.inter_arrival_cv) {
    facts.add("burstiness",
              fmt::format("CV {:.4g} of the time between arrivals, {} distinct times",
                          *stats.inter_arrival_cv, with_commas(stats.distinct_arrivals)));
  }
  if (stats.prefix) {
    const PrefixSummary& prefix = *stats.prefix;
    facts.add("prefixes",
              fmt::format("{} blocks of {} tokens, {} distinct; {:.1f} % are a leading run that an "
                          "unbounded cache would hold",
                          with_commas(prefix.blocks), prefix.block, with_commas(prefix.distinct),
                          prefix.blocks > 0 ? 100.0 * static_cast<double>(prefix.reusable) /
                                                  static_cast<double>(prefix.blocks)
                                            : 0.0));
  }
  if (stats.zero_outputs > 0) facts.add("no output", with_commas(stats.zero_outputs));
  if (stats.declared > 0)
    facts.add("max_tokens", fmt::format("of {}", with_commas(stats.declared)));
  for (const std::string& note : trace.notes) facts.add("note", note);
  Table table{
      {{"tokens", Table::Align::kLeft}, {"mean"}, {"p50"}, {"p90"}, {"p99"}, {"max"}, {"total"}}};
  const auto row = [&](std::string name, const LengthSummary& lengths) {
    table.add_row({std::move(name), fmt::format("{:.1f}", lengths.mean),
                   fmt::format("{:.0f}", lengths.p50), fmt::format("{:.0f}", lengths.p90),
                   fmt::format("{:.0f}", lengths.p99), with_commas(lengths.max),
                   with_commas(lengths.total)});
  };
  row("prompt", stats.prompt);
  row("output", stats.output);
  return fmt::format("{}\n{}{}", trace.name, facts.str(width), table.str(width));
}

int run_info(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a request trace");
  const RequestTrace trace = file_workload(arguments);
  const RequestStats stats = summarise_requests(trace);
  write_out(arguments.has("json") ? to_file_text(info_json(trace, stats))
                                  : info_text(trace, stats, terminal_width()));
  return kDone;
}

/// Writes `trace` in the layout of --layout, or of the file's ending, and prints which.
void write_trace(const Arguments& arguments, const RequestTrace& trace, const fs::path& file) {
  const auto word = arguments.value("layout");
  const RequestFormat format = word ? parse_request_format(*word, "--layout")
                               : file.extension() == ".jsonl" ? RequestFormat::kMooncake
                                                              : RequestFormat::kPlain;
  write_file_atomically(file, requests_text(trace, format));
  if (arguments.has("quiet")) return;
  std::string said = fmt::format("wrote {} ({} requests, layout of {})\n", file.string(),
                                 with_commas(std::ssize(trace.requests)), name_of(format));
  const std::vector<std::string> lost = left_out_by(trace, format);
  if (!lost.empty()) said += fmt::format("not in this layout: {}\n", fmt::join(lost, ", "));
  for (const std::string& note : trace.notes) said += fmt::format("note: {}\n", note);
  write_out(said);
}

int run_convert(const Arguments& arguments) {
  arguments.expect_words(2, 2, "the file to read and the file to write");
  write_trace(arguments, file_workload(arguments), arguments.words()[1]);
  return kDone;
}

int run_generate(const Arguments& arguments) {
  arguments.expect_words(0, 1, "at most a file with the generator's description");
  const auto file = arguments.value("out");
  if (!file) throw InputError{"requests generate: expected the file to write: -o FILE"};
  json requests = json::object();
  std::string place = "options";
  fs::path folder;
  if (!arguments.words().empty()) {
    place = arguments.words().front();
    folder = fs::path{place}.parent_path();
    const Field root = Field::read_file(place);
    requests = (root.is_object() && root.has("requests") ? root.at("requests") : root).raw();
    if (!requests.is_object())
      root.expected("an object with the key \"requests\", or what it holds");
  }
  take_options(arguments, kDrawing, requests);
  take_options(arguments, kTransforming, requests);
  if (arguments.has("prefix-block")) {
    requests["prefix_block"] = number_or_text(arguments.value("prefix-block").value_or(""));
  }
  // Options of sessions are keys one floor down.
  for (const auto& [from, to] : {std::pair{"turns", "turns"}, std::pair{"turn_think", "think"}}) {
    if (!requests.contains(from)) continue;
    requests["sessions"][to] = requests[from];
    requests.erase(from);
  }
  const WorkloadSpec spec = read_workload(Field::wrap(std::move(requests), place), folder);
  write_trace(arguments, make_workload(spec, seed_of(arguments)), *file);
  return kDone;
}

std::vector<Option> file_options() {
  std::vector<Option> options;
  add_options(options, kReading);
  add_options(options, kTransforming);
  options.push_back({"seed", 0, "N", false, "of what is drawn: servegen, --spread (0)"});
  return options;
}

void add_writing(std::vector<Option>& options) {
  options.push_back({"layout", 0, "NAME", false,
                     "layout to write: plain, azure or mooncake (by the ending: .jsonl mooncake, "
                     "else plain)"});
  options.push_back({"quiet", 'q', "", false, "say nothing"});
}

}  // namespace

Command requests_info_command() {
  std::vector<Option> options = file_options();
  options.push_back({"json", 0, "", false, "print JSON (schema kvsim.requests-info/1)"});
  return {.name = "requests info",
          .summary = "print the load of a request trace: rate, burstiness, lengths, prefixes",
          .usage = "kvsim requests info FILE [options]",
          .examples =
              "kvsim requests info scenarios/samples/chat-azure.csv\n"
              "kvsim requests info trace.jsonl --format mooncake --skip-bad 10 --json",
          .options = std::move(options),
          .run = run_info};
}

Command requests_convert_command() {
  std::vector<Option> options = file_options();
  add_writing(options);
  return {.name = "requests convert",
          .summary = "rewrite a request trace: another layout, a part, another rate or lengths",
          .usage = "kvsim requests convert FROM TO [options]",
          .examples =
              "kvsim requests convert scenarios/samples/chat-azure.csv /tmp/hot.csv \\\n"
              "      --rate-scale 2 --limit 100",
          .options = std::move(options),
          .run = run_convert};
}

Command requests_generate_command() {
  std::vector<Option> options;
  options.push_back({"out", 'o', "FILE", false, "the file to write"});
  add_options(options, kDrawing);
  options.push_back({"prefix-block", 0, "N", false, "tokens per prefix id (64)"});
  add_options(options, kTransforming);
  options.push_back({"seed", 0, "N", false, "seed (0)"});
  add_writing(options);
  return {.name = "requests generate",
          .summary = "write a synthetic request trace from distributions and a seed",
          .usage = "kvsim requests generate [DESCRIPTION.json] -o FILE [options]",
          .examples =
              "kvsim requests generate -o /tmp/r.csv --arrivals poisson:rate=6 --count 1000 \\\n"
              "      --prompt lognormal:mean=1000,p99=4000 --output uniform:min=1,max=400",
          .options = std::move(options),
          .run = run_generate};
}

}  // namespace kvsim
