// Reads the key /requests of a scenario.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/generate/workload.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr double kLargestFactor = 1e6;
constexpr double kMaxRate = 1e6;  // requests per second
constexpr std::int64_t kMaxRequests = 100'000'000;
constexpr std::int32_t kMaxTurns = 10'000;
constexpr std::int32_t kMaxPrompts = 65'536;
constexpr std::int32_t kMaxBlock = 1 << 20;

std::int32_t integer(const Field& field, std::int64_t low, std::int64_t high) {
  return static_cast<std::int32_t>(field.integer(low, high));
}

Seconds duration(const Field& field) {
  const Seconds value = field.duration();
  if (value > Seconds{1.0 * kLongestTrace}) {
    field.expected(fmt::format("a duration of at most {} s", kLongestTrace));
  }
  return value;
}

std::string kind_of(const Field& field, const std::vector<std::string>& kinds) {
  return field.at("kind").choice(kinds);
}

/// Reads the bounds of a distribution, within those that its use allows.
void read_bounds(const Field& field, LengthSpec& spec, bool required) {
  if (required || field.has("min")) spec.low = integer(field.at("min"), spec.low, spec.high);
  if (required || field.has("max")) spec.high = integer(field.at("max"), spec.low, spec.high);
}

void read_lognormal(const Field& field, LengthSpec& spec) {
  field.allow_only({"kind", "mean", "p99", "mu", "sigma", "min", "max"});
  spec.kind = LengthKind::kLognormal;
  const bool moments = field.has("mean") || field.has("p99");
  if (moments && (field.has("mu") || field.has("sigma"))) {
    field.fail("expected \"mean\" and \"p99\", or \"mu\" and \"sigma\", got some of both");
  }
  if (moments) {
    const double mean = field.at("mean").number(1e-3, kMaxTokens);
    // A shape at the limit is moved inside, to avoid the square root of a rounding error.
    const double max_p99 = mean * max_p99_per_mean() * (1.0 - 1e-9);
    const LognormalShape shape = lognormal_of(mean, field.at("p99").number(mean, max_p99));
    spec.mu = shape.mu;
    spec.sigma = shape.sigma;
  } else {
    spec.mu = field.at("mu").number(-20, 20);
    spec.sigma = field.at("sigma").number(0, 10);
  }
  read_bounds(field, spec, false);
  if (spec.sigma > 0.0) {
    const auto below = [&](double x) {
      return x <= 0.0 ? 0.0 : normal_cdf((std::log(x) - spec.mu) / spec.sigma);
    };
    if (below(spec.high + 0.5) - below(spec.low - 0.5) < 1e-6) {
      field.fail(
          fmt::format("expected a distribution with at least a millionth of its mass in [{}, {}]",
                      spec.low, spec.high));
    }
  }
}

void read_empirical(const Field& field, const fs::path& folder, LengthSpec& spec) {
  spec.kind = LengthKind::kEmpirical;
  if (field.has("file")) {
    field.allow_only({"kind", "file", "format", "column"});
    static const std::vector<std::string> columns{"prompt_tokens", "output_tokens"};
    ReadOptions options;
    if (const auto format = field.find("format")) {
      options.format = parse_request_format(format->string(), format->place());
    }
    const bool prompt = field.at("column").choice(columns) == columns.front();
    const RequestTrace trace = read_requests(folder / field.at("file").string(), options);
    for (const Request& r : trace.requests) {
      const std::int32_t length = prompt ? r.prompt_tokens : r.output_tokens;
      if (length >= spec.low && length <= spec.high) spec.values.push_back(length);
    }
    if (spec.values.empty()) {
      field.fail(
          fmt::format("expected lengths in [{}, {}], got none in the file", spec.low, spec.high));
    }
    return;
  }
  field.allow_only({"kind", "values", "weights"});
  for (const Field& value : field.at("values").items()) {
    spec.values.push_back(integer(value, spec.low, spec.high));
  }
  if (spec.values.empty()) field.at("values").fail("expected at least one value, got none");
  if (const auto weights = field.find("weights")) {
    double mass = 0.0;
    for (const Field& weight : weights->items()) {
      spec.weights.push_back(weight.number(0, 1e12));
      mass += spec.weights.back();
    }
    if (spec.weights.size() != spec.values.size()) {
      weights->expected(fmt::format("{} weights, one for each value", spec.values.size()));
    }
    if (!(mass > 0.0)) weights->fail("expected weights that are not all 0");
  }
}

/// Reads a length: a number, or a distribution within [low, high].
LengthSpec read_length(const Field& field, const fs::path& folder, std::int32_t low,
                       std::int32_t high) {
  LengthSpec spec{.low = low, .high = high};
  if (!field.is_object()) {
    spec.low = integer(field, low, high);
    spec.high = spec.low;
    return spec;
  }
  static const std::vector<std::string> kinds{"fixed", "uniform", "lognormal", "zipf", "empirical"};
  const std::string kind = kind_of(field, kinds);
  if (kind == "fixed") {
    field.allow_only({"kind", "value"});
    spec.low = integer(field.at("value"), low, high);
    spec.high = spec.low;
  } else if (kind == "uniform") {
    field.allow_only({"kind", "min", "max"});
    spec.kind = LengthKind::kUniform;
    read_bounds(field, spec, true);
  } else if (kind == "lognormal") {
    read_lognormal(field, spec);
  } else if (kind == "zipf") {
    field.allow_only({"kind", "exponent", "min", "max"});
    spec.kind = LengthKind::kZipf;
    spec.low = std::max(spec.low, 1);
    spec.exponent = field.at("exponent").number(0, 20);
    if (!field.has("max")) (void)field.at("max");
    read_bounds(field, spec, false);
  } else {
    read_empirical(field, folder, spec);
  }
  return spec;
}

/// Reads prompts and outputs from a file of lengths, restricted to the bounds in `field`.
LengthPairs read_pairs(const Field& field, const fs::path& folder) {
  field.allow_only(
      {"file", "min_prompt_tokens", "max_prompt_tokens", "min_output_tokens", "max_total_tokens"});
  const auto bound = [&](std::string_view key, std::int32_t otherwise) {
    const auto given = field.find(key);
    return given ? integer(*given, 1, kMaxTokens) : otherwise;
  };
  const std::int32_t min_prompt = bound("min_prompt_tokens", 1);
  const std::int32_t max_prompt = bound("max_prompt_tokens", kMaxTokens);
  const std::int32_t min_output = bound("min_output_tokens", 0);
  const std::int32_t max_total = bound("max_total_tokens", kMaxTokens);
  LengthPairs pairs = read_length_pairs(folder / field.at("file").string());
  std::erase_if(pairs.rows, [&](const LengthPairs::Pair& pair) {
    return pair.prompt < min_prompt || pair.prompt > max_prompt || pair.output < min_output ||
           pair.prompt + pair.output > max_total;
  });
  if (pairs.rows.empty()) {
    field.fail("expected lengths within the bounds, got none in the file");
  }
  return pairs;
}

PauseSpec read_pause(const Field& field) {
  if (!field.is_object()) return {.mean = duration(field)};
  field.allow_only({"kind", "mean"});
  static const std::vector<std::string> kinds{"fixed", "exponential"};
  return {.mean = duration(field.at("mean")), .exponential = kind_of(field, kinds) == kinds.back()};
}

ArrivalSpec read_arrivals(const Field& field) {
  static const std::vector<std::string> kinds{"poisson", "gamma", "fixed", "closed"};
  const std::string kind = kind_of(field, kinds);
  ArrivalSpec spec;
  if (kind == "closed") {
    field.allow_only({"kind", "users", "shared", "ramp"});
    spec.kind = ArrivalKind::kClosed;
    spec.users = integer(field.at("users"), 1, kMaxRequests);
    if (const auto shared = field.find("shared")) spec.shared = shared->boolean();
    if (const auto ramp = field.find("ramp")) spec.ramp = duration(*ramp);
    return spec;
  }
  if (kind == "gamma") {
    field.allow_only({"kind", "rate", "cv"});
    spec.kind = ArrivalKind::kGamma;
    spec.cv = field.at("cv").number(0.01, 30);
  } else {
    field.allow_only({"kind", "rate"});
    spec.kind = kind == "fixed" ? ArrivalKind::kFixed : ArrivalKind::kPoisson;
  }
  spec.rate = field.at("rate").number(1e-6, kMaxRate);
  return spec;
}

SharedPrefixSpec read_shared_prefix(const Field& field) {
  field.allow_only({"prompts", "tokens", "share", "exponent"});
  SharedPrefixSpec spec{.tokens = integer(field.at("tokens"), 1, kMaxBlock)};
  if (const auto prompts = field.find("prompts")) spec.prompts = integer(*prompts, 1, kMaxPrompts);
  if (const auto share = field.find("share")) spec.share = share->number(0, 1);
  if (const auto exponent = field.find("exponent")) spec.exponent = exponent->number(0, 20);
  return spec;
}

AgentSpec read_agents(const Field& field, const fs::path& folder) {
  field.allow_only({"sessions", "requests", "first_prompt", "growth", "output", "think_ms",
                    "service_ms", "restart_share", "restart_keep", "subagent_share",
                    "subagent_requests", "subagent_prompt"});
  AgentSpec spec = published_agents();
  spec.sessions = integer(field.at("sessions"), 1, kMaxRequests);
  const auto length = [&](std::string_view key, LengthSpec& out, std::int32_t low,
                          std::int32_t high) {
    if (const auto given = field.find(key)) out = read_length(*given, folder, low, high);
  };
  length("requests", spec.requests, 1, kMaxTurns);
  length("first_prompt", spec.first_prompt, 1, kMaxTokens);
  length("growth", spec.growth, 1, kMaxTokens);
  length("output", spec.output, 0, kMaxTokens);
  length("think_ms", spec.think_ms, 0, kMaxTokens);
  length("service_ms", spec.service_ms, 0, kMaxTokens);
  length("subagent_requests", spec.subagent_requests, 1, kMaxTurns);
  length("subagent_prompt", spec.subagent_prompt, 1, kMaxTokens);
  const auto share = [&](std::string_view key, double& out) {
    if (const auto given = field.find(key)) out = given->number(0, 1);
  };
  share("restart_share", spec.restart_share);
  share("restart_keep", spec.restart_keep);
  share("subagent_share", spec.subagent_share);
  return spec;
}

TransformSpec read_transform(const Field& field) {
  TransformSpec spec;
  if (const auto spread = field.find("spread")) spec.spread = duration(*spread);
  if (const auto from = field.find("from")) spec.from = duration(*from);
  if (const auto until = field.find("until")) {
    spec.until = duration(*until);
    if (*spec.until <= spec.from.value_or(Seconds{0.0})) {
      until->expected("a time later than \"from\"");
    }
  }
  if (const auto limit = field.find("limit")) {
    spec.limit = limit->integer(1, std::numeric_limits<std::int32_t>::max());
  }
  if (const auto repeat = field.find("repeat")) spec.repeat = integer(*repeat, 1, 1'000'000);
  const auto factor = [&](std::string_view key, double& value) {
    if (const auto given = field.find(key)) value = given->number(1e-6, kLargestFactor);
  };
  factor("rate_scale", spec.rate_scale);
  factor("prompt_scale", spec.prompt_scale);
  factor("output_scale", spec.output_scale);
  const auto token_limit = [&](std::string_view key, std::optional<std::int32_t>& value) {
    if (const auto given = field.find(key)) value = integer(*given, 1, kMaxTokens);
  };
  token_limit("max_prompt_tokens", spec.max_prompt_tokens);
  token_limit("max_output_tokens", spec.max_output_tokens);
  if (const auto declared = field.find("declared_tokens"); declared && declared->is_string()) {
    static const std::vector<std::string> words{"output"};
    spec.declares_outputs = declared->choice(words) == words.front();
  } else {
    token_limit("declared_tokens", spec.declared_tokens);
  }
  if (const auto distinct = field.find("distinct_prompts")) {
    spec.distinct_prompts = integer(*distinct, 1, kMaxPrompts);
  }
  return spec;
}

void allow_keys(const Field& field, std::span<const std::string_view> own) {
  std::vector<std::string> keys{"spread",
                                "from",
                                "until",
                                "limit",
                                "repeat",
                                "rate_scale",
                                "prompt_scale",
                                "output_scale",
                                "max_prompt_tokens",
                                "max_output_tokens",
                                "declared_tokens",
                                "distinct_prompts",
                                "arrivals",
                                "think",
                                "prefix_block"};
  keys.insert(keys.end(), own.begin(), own.end());
  field.allow_only(keys);
}

constexpr std::array<std::string_view, 6> kFileKeys{"file", "format",          "skip_bad",
                                                    "sort", "chars_per_token", "tokens_per_word"};
constexpr std::array<std::string_view, 8> kGeneratorKeys{
    "agents",  "count",    "prompt_tokens", "output_tokens",
    "lengths", "sessions", "shared_prefix", "stratified_lengths"};

void read_file_options(const Field& field, const fs::path& folder, WorkloadSpec& spec) {
  for (const std::string_view key : kGeneratorKeys) {
    if (const auto given = field.find(key)) {
      given->fail("applies only to generated requests, but \"file\" is given");
    }
  }
  allow_keys(field, kFileKeys);
  const std::string name = field.at("file").string();
  if (name.empty()) field.at("file").expected("the path of a request trace");
  spec.file = folder / name;
  ReadOptions& reading = spec.reading;
  if (const auto format = field.find("format")) {
    reading.format = parse_request_format(format->string(), format->place());
  }
  if (const auto skip = field.find("skip_bad")) reading.skip_bad = skip->integer(0, kMaxRequests);
  if (const auto sort = field.find("sort")) reading.sort = sort->boolean();
  if (const auto chars = field.find("chars_per_token")) {
    reading.chars_per_token = chars->number(0.1, 1000);
  }
  if (const auto words = field.find("tokens_per_word")) {
    if (reading.chars_per_token) words->fail("expected this or \"chars_per_token\", got both");
    reading.tokens_per_word = words->number(0.01, 1000);
  }
  if (const auto block = field.find("prefix_block")) {
    reading.prefix_block = integer(*block, 1, kMaxBlock);
  }
}

void read_generator(const Field& field, const fs::path& folder, WorkloadSpec& spec) {
  for (const std::string_view key : kFileKeys) {
    if (const auto given = field.find(key))
      given->fail("applies only to \"file\", which is not given");
  }
  allow_keys(field, kGeneratorKeys);
  GeneratorSpec& generator = spec.generator;
  generator.arrivals = *spec.arrivals;
  generator.think = spec.think;
  spec.arrivals.reset();
  if (const auto block = field.find("prefix_block")) {
    generator.prefix_block = integer(*block, 1, kMaxBlock);
  }
  if (const auto agents = field.find("agents")) {
    for (const std::string_view key : kGeneratorKeys) {
      if (key == "agents") continue;
      if (const auto given = field.find(key)) given->fail("expected this or \"agents\", got both");
    }
    generator.agents = read_agents(*agents, folder);
    return;
  }
  generator.count = field.at("count").integer(1, kMaxRequests);
  if (const auto lengths = field.find("lengths")) {
    for (const std::string_view key : {"prompt_tokens", "output_tokens"}) {
      if (const auto given = field.find(key)) given->fail("expected this or \"lengths\", got both");
    }
    generator.lengths = read_pairs(*lengths, folder);
  } else {
    generator.prompt_tokens = read_length(field.at("prompt_tokens"), folder, 1, kMaxTokens);
    generator.output_tokens = read_length(field.at("output_tokens"), folder, 0, kMaxTokens);
  }
  if (const auto stratified = field.find("stratified_lengths")) {
    generator.stratified_lengths = stratified->boolean();
    const auto invertible = [](const LengthSpec& spec) { return LengthSampler{spec}.invertible(); };
    if (generator.stratified_lengths && !generator.lengths &&
        !(invertible(generator.prompt_tokens) && invertible(generator.output_tokens))) {
      stratified->fail(
          "stratified lengths are not supported for a zipf distribution of more than 65,536 "
          "lengths");
    }
  }
  if (const auto sessions = field.find("sessions")) {
    sessions->allow_only({"turns", "think"});
    generator.sessions =
        SessionSpec{.turns = read_length(sessions->at("turns"), folder, 1, kMaxTurns)};
    if (const auto think = sessions->find("think")) generator.sessions->think = read_pause(*think);
  }
  if (const auto prefix = field.find("shared_prefix")) {
    generator.shared_prefix = read_shared_prefix(*prefix);
  }
  if (const auto block = field.find("prefix_block")) {
    if (!generator.sessions && !generator.shared_prefix) {
      block->fail("no prefix is shared without \"sessions\" or \"shared_prefix\"");
    }
  }
}

}  // namespace

WorkloadSpec read_workload(const Field& requests, const fs::path& folder) {
  if (!requests.is_object()) requests.expected("an object with \"file\" or \"arrivals\"");
  WorkloadSpec spec;
  if (!requests.has("file") && !requests.has("arrivals")) {
    // A misspelt key is the more probable reason.
    std::vector<std::string_view> all{kFileKeys.begin(), kFileKeys.end()};
    all.insert(all.end(), kGeneratorKeys.begin(), kGeneratorKeys.end());
    allow_keys(requests, all);
    requests.fail("expected \"file\" (a request trace) or \"arrivals\" (a generator), got neither");
  }
  if (const auto arrivals = requests.find("arrivals")) spec.arrivals = read_arrivals(*arrivals);
  if (const auto think = requests.find("think")) {
    if (!spec.arrivals || spec.arrivals->kind != ArrivalKind::kClosed) {
      think->fail(
          "applies only to arrivals of the kind \"closed\"; sessions have their own \"think\"");
    }
    spec.think = read_pause(*think);
  }
  if (requests.has("file")) {
    read_file_options(requests, folder, spec);
  } else {
    read_generator(requests, folder, spec);
  }
  spec.transform = read_transform(requests);
  const ArrivalSpec& arrivals = spec.arrivals ? *spec.arrivals : spec.generator.arrivals;
  if (arrivals.shared && (spec.generator.sessions || spec.generator.agents)) {
    requests.at("arrivals")
        .at("shared")
        .fail("turns of a session wait for their own previous turn");
  }
  return spec;
}

}  // namespace kvsim
