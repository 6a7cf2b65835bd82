#include "sim/cli/options/workload_options.hpp"

#include <array>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "sim/cli/options/kinds.hpp"
#include "sim/cli/options/scenario_values.hpp"
#include "traces/requests/generate/transform_requests.hpp"
#include "traces/requests/generate/workload.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

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
        "plain, azure, mooncake, burstgpt, sharegpt, servegen, vidur, splitwise, weka, agentic or "
        "bailian (detected)"},
    KeyOption{"skip-bad", "skip_bad", "N", ValueKind::kNumber,
              "skip up to this many malformed records and count them (0)"},
    KeyOption{"sort", "sort", "", ValueKind::kSwitch, "sort records by time"},
    KeyOption{"chars-per-token", "chars_per_token", "X", ValueKind::kNumber,
              "ShareGPT without counts: characters per token"},
    KeyOption{"tokens-per-word", "tokens_per_word", "X", ValueKind::kNumber,
              "ShareGPT without counts: tokens per word"},
    KeyOption{"prefix-block", "prefix_block", "N", ValueKind::kNumber,
              "tokens per prefix id (mooncake 512, others 64)"}};

constexpr std::array kTransforming{
    KeyOption{"spread", "spread", "TIME", ValueKind::kDuration,
              "move each arrival by a uniform share of this: \"3 s\""},
    KeyOption{"from", "from", "TIME", ValueKind::kDuration,
              "keep arrivals from this time, which becomes 0"},
    KeyOption{"until", "until", "TIME", ValueKind::kDuration, "keep arrivals before this time"},
    KeyOption{"limit", "limit", "N", ValueKind::kNumber, "keep the first N requests"},
    KeyOption{"repeat", "repeat", "N", ValueKind::kNumber,
              "N copies of the whole trace, in sequence"},
    KeyOption{"rate-scale", "rate_scale", "X", ValueKind::kNumber,
              "multiply the request rate by X"},
    KeyOption{"prompt-scale", "prompt_scale", "X", ValueKind::kNumber,
              "multiply prompt lengths by X"},
    KeyOption{"output-scale", "output_scale", "X", ValueKind::kNumber,
              "multiply output lengths by X"},
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
    KeyOption{"stratified-lengths", "stratified_lengths", "", ValueKind::kSwitch,
              "one length from each Nth of the distributions: totals hardly depend on the seed"},
    KeyOption{"agents", "agents", "sessions=N,…", ValueKind::kKinds,
              "sessions of coding agents: sessions=100, and other keys of docs/requests.md"},
    KeyOption{"think", "think", "TIME", ValueKind::kDuration, "closed loop: pause of a user"},
    KeyOption{"turns", "turns", "N|KIND:…", ValueKind::kKinds,
              "sessions of this many turns; the context of a turn is all earlier ones"},
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

}  // namespace

void add_reading_options(std::vector<Option>& options) { add_options(options, kReading); }
void add_transforming_options(std::vector<Option>& options) { add_options(options, kTransforming); }
void add_drawing_options(std::vector<Option>& options) { add_options(options, kDrawing); }

std::vector<Option> trace_file_options() {
  std::vector<Option> options;
  add_reading_options(options);
  add_transforming_options(options);
  options.push_back({"seed", 0, "N", false, "seed of random values: servegen, --spread (0)"});
  return options;
}

void take_reading_options(const Arguments& arguments, json& requests) {
  take_options(arguments, kReading, requests);
}
void take_transforming_options(const Arguments& arguments, json& requests) {
  take_options(arguments, kTransforming, requests);
}
void take_drawing_options(const Arguments& arguments, json& requests) {
  take_options(arguments, kDrawing, requests);
}

std::uint64_t seed_of(const Arguments& arguments) {
  return static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
}

RequestTrace file_workload(const Arguments& arguments, const std::vector<std::string>& files) {
  json requests{{"file", files.front()}};
  take_reading_options(arguments, requests);
  take_transforming_options(arguments, requests);
  const WorkloadSpec spec = read_workload(Field::wrap(std::move(requests), "options"), "");
  const std::uint64_t seed = seed_of(arguments);
  if (files.size() == 1) return make_workload(spec, seed);
  const std::vector<std::filesystem::path> paths{files.begin(), files.end()};
  RequestTrace trace = read_requests(paths, spec.reading);
  transform_requests(trace, spec.transform, seed);
  return trace;
}

}  // namespace kvsim
