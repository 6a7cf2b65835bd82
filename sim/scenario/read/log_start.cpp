#include "sim/scenario/read/log_start.hpp"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/memory/vllm_log_pool.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string exact(Bytes n) { return fmt::format("{} B", n.count()); }

ordered_json overrides_of(const VllmLog& log) {
  ordered_json engine = ordered_json::object();
  const auto put = [&](const char* key, const std::optional<Bytes>& n) {
    if (is_stated(n)) engine[key] = exact(*n);
  };
  if (log.max_model_len) engine["max_model_len"] = *log.max_model_len;
  if (log.memory_fraction) engine["memory_fraction"] = *log.memory_fraction;
  put("weights", log.weights);
  put("non_torch", log.non_torch);
  put("activation", log.activation);
  put("graphs", log.graphs);
  ordered_json out = ordered_json::object();
  if (log.total) out["memory"] = {{"usable_hbm", exact(*log.total)}};
  out["engine"] = engine;
  return out;
}

std::vector<Override> as_overrides(const ordered_json& keys) {
  std::vector<Override> out;
  for (const auto& object : keys.items()) {
    for (const auto& entry : object.value().items()) {
      out.push_back({fmt::format("/{}/{}", object.key(), entry.key()), entry.value().dump()});
    }
  }
  return out;
}

struct ScenarioStart {
  EngineStartup startup;
  std::int64_t block_tokens = 1;
};

/// The engine's start in the scenario's first point.
ScenarioStart first_start(const ScenarioSource& source, const std::vector<Override>& overrides) {
  const Scenario scenario = source.read(overrides);
  if (scenario.points.empty()) {
    throw InputError{fmt::format("{}: expected a scenario with a point", source.name)};
  }
  const StaticSpec& spec = scenario.points.front().spec;
  const StaticResult result = run_static(spec);
  if (!result.startup) {
    throw InputError{
        fmt::format("{}: /stack: expected one with a paged cache, such as \"vllm\", got \"{}\"",
                    source.name, spec.stack->name)};
  }
  return {*result.startup,
          with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel})
              .block_tokens};
}

/// Returns a note on the terms that are missing to predict the pool; nullopt if all are known.
std::optional<std::string> missing_terms_note(const VllmLog& log) {
  const std::vector<std::string> unstated = unstated_terms(log);
  if (unstated.empty() || !(is_stated(log.kv_cache) || log.tokens || log.blocks)) {
    return std::nullopt;
  }
  return fmt::format(
      "the log's KV cache is not in the overrides: the log does not state {}; name the SCENARIO of "
      "its start, whose GPU, model and stack define them",
      fmt::join(unstated, ", "));
}

/// Returns a note on the difference between the log's KV cache and a start with all terms of the
/// log.
std::optional<std::string> pool_difference_note(const VllmLog& log, const EngineStartup& after) {
  // Five values, each rounded to 0.01 GiB.
  constexpr std::int64_t kRoundings = (std::int64_t{5} << 30) / 100;
  if (!is_stated(log.kv_cache)) return std::nullopt;
  if (std::abs((after.kv_cache - *log.kv_cache).count()) <= kRoundings) return std::nullopt;
  const auto gib = [](Bytes n) { return static_cast<double>(n.count()) / 1073741824.0; };
  return fmt::format(
      "with the log's figures the KV cache is {:.2f} GiB, the log's own is {:.2f} GiB",
      gib(after.kv_cache), gib(*log.kv_cache));
}

}  // namespace

LogStart start_of_log(std::string_view text, const std::string& place,
                      const std::optional<ScenarioSource>& scenario) {
  LogStart out;
  out.said = read_vllm_log(text, place);
  out.log = out.said;
  if (scenario) {
    out.before = first_start(*scenario, {}).startup;
    const ScenarioStart stated = first_start(*scenario, as_overrides(overrides_of(out.said)));
    complete_from_pool(out.log, *out.before, stated.startup, stated.block_tokens, place,
                       scenario->name);
    out.after = first_start(*scenario, as_overrides(overrides_of(out.log))).startup;
    if (auto note = pool_difference_note(out.log, *out.after)) {
      out.log.warnings.push_back(*std::move(note));
    }
  } else if (auto note = missing_terms_note(out.log)) {
    out.log.warnings.push_back(*std::move(note));
  }
  out.overrides = overrides_of(out.log);
  return out;
}

}  // namespace kvsim
