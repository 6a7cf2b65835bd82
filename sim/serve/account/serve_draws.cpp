#include "sim/serve/account/serve_draws.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {
namespace {

/// Logarithms of the factors: about the 5 %, 75 % and 95 % quantiles of the errors of services'
/// step times.
constexpr std::array<double, kServeDraws> kErrors{-0.3, 0.15, 0.45};

/// The part that takes most of an iteration's time.
std::string regime_of(const ExplainedStep& step) {
  double waits = 0, computes = 0, cache = 0, weights = 0;
  for (const TimeTerm& term : step.terms) {
    const bool is_cache = term.family == "decode_attention";
    (term.bound == "host" || term.bound == "launch" ? waits
     : term.bound == "compute"                      ? computes
     : is_cache                                     ? cache
                                                    : weights) += term.time.count();
  }
  const double max = std::max({waits, computes, cache, weights});
  if (max == waits) return "launch-bound";
  if (max == computes) return "compute-bound";
  return max == cache ? "cache-bound" : "weight-bound";
}

/// The arrival pattern of requests, and the number of their tokens computed before the first output
/// token.
std::string arrivals_of(const RequestTrace& trace, const ServeResult& result) {
  SimTime first = trace.requests.front().arrival, last = first;
  for (const Request& r : trace.requests) {
    if (r.after >= 0) return "closed loop";
    first = std::min(first, r.arrival);
    last = std::max(last, r.arrival);
  }
  constexpr std::int64_t kPart = 100;  // of the run
  return kPart * (last - first).count() < result.makespan.count() ? "all at once" : "open loop";
}

std::string prompts_of(const ServeResult& result) {
  double tokens = 0, n = 0;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    tokens += std::max(0, r.prompt_tokens - r.cached_tokens);
    n += 1;
  }
  constexpr double kShort = 256, kLong = 2048;
  const double mean = n > 0 ? tokens / n : 0;
  return mean <= kShort  ? "prompts of up to 256 tokens"
         : mean <= kLong ? "prompts of 257 to 2048 tokens"
                         : "prompts above 2048 tokens";
}

/// Whether most of its time is of kernels measured on this GPU.
std::string kernels_of(const ExplainedStep& step) {
  double measured = 0, all = 0;
  for (const TimeTerm& term : step.terms) {
    all += term.time.count();
    if (term.basis == "measured" || term.basis == "other_version") measured += term.time.count();
  }
  return measured > 0.5 * all ? "measured kernels" : "transferred kernels";
}

}  // namespace

const std::array<TimeFactors, kServeDraws>& serve_draws() {
  static const std::array<TimeFactors, kServeDraws> draws = [] {
    std::array<TimeFactors, kServeDraws> out;
    for (std::size_t i = 0; i < kServeDraws; ++i) out[i] = TimeFactors::all(std::exp(kErrors[i]));
    return out;
  }();
  return draws;
}

std::optional<Response> response(double predicted, std::span<const double, kServeDraws> drawn) {
  if (!(predicted > 0)) return std::nullopt;
  std::array<double, kServeDraws> moved{};
  for (std::size_t i = 0; i < kServeDraws; ++i) {
    if (!(drawn[i] > 0) || !std::isfinite(drawn[i])) return std::nullopt;
    moved[i] = std::log(drawn[i] / predicted);
  }
  // A rate falls as times grow. Moves against the trend are noise of the simulation: users of a
  // closed loop fall in and out of step.
  const bool rises = moved.back() >= moved.front();
  Response::Side faster{{-kErrors[0]}, {std::max(0.0, rises ? -moved[0] : moved[0])}};
  Response::Side slower;
  double last = 0;
  for (std::size_t i = 1; i < kServeDraws; ++i) {
    last = std::max(last, rises ? moved[i] : -moved[i]);
    slower.errors.push_back(kErrors[i]);
    slower.changes.push_back(last);
  }
  return rises ? Response{std::move(slower), std::move(faster)}
               : Response{std::move(faster), std::move(slower)};
}

bool is_queued(const ServeResult& result) { return result.queue.mean > 0.5 * result.ttft.mean; }

namespace {
constexpr std::array<std::string_view, 2> kApart{"layers with states or indexes", "drafts"};
}  // namespace

std::string_view apart_feature(const std::vector<std::string>& path) {
  for (const std::string_view feature : kApart) {
    if (std::find(path.begin(), path.end(), feature) != path.end()) return feature;
  }
  return {};
}

std::vector<std::string> residual_path(const ServeSpec& spec, const ServeResult& result,
                                       const std::optional<MeanIteration>& iteration) {
  constexpr double kOften = 0.6, kAlways = 0.97;
  std::vector<std::string> out;
  out.emplace_back(is_queued(result) ? "requests wait" : "requests hardly wait");
  out.emplace_back(result.busy > kAlways  ? "engine always busy"
                   : result.busy > kOften ? "engine mostly busy"
                                          : "engine often idle");
  out.push_back(spec.stack->name);
  out.emplace_back(spec.settings_stated ? "all settings stated" : "not all settings stated");
  out.emplace_back(stage_gpus(spec) > 1 ? "several GPUs" : "one GPU");
  constexpr std::int64_t kFew = 8, kSome = 64;
  out.emplace_back(!iteration                    ? "unknown batch"
                   : iteration->decodes <= kFew  ? "batches of up to 8"
                   : iteration->decodes <= kSome ? "batches of 9 to 64"
                                                 : "batches above 64");
  out.push_back(arrivals_of(*spec.requests, result));
  out.push_back(prompts_of(result));
  out.push_back(iteration ? regime_of(iteration->step) : "unknown regime");
  out.push_back(iteration ? kernels_of(iteration->step) : "unknown kernels");
  const bool has_experts =
      std::any_of(spec.llm->layers.begin(), spec.llm->layers.end(),
                  [](const LayerSpec& layer) { return layer.mlp.n_experts > 0; });
  out.emplace_back(has_experts ? "routed experts" : "dense layers");
  if (std::any_of(spec.llm->layers.begin(), spec.llm->layers.end(), [&](const LayerSpec& layer) {
        return !items_without_rows(layer, spec.kv_dtype).empty();
      })) {
    out.emplace_back(kApart[0]);
  }
  if (spec.speculation.is_on()) out.emplace_back(kApart[1]);
  return out;
}

}  // namespace kvsim
