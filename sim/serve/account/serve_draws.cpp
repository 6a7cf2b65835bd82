#include "sim/serve/account/serve_draws.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {
namespace {

/// Of the triangle: log 1.22, about as far as step times of services are off.
constexpr double kRadius = 0.2;

/// What most of an iteration's time goes to.
std::string regime_of(const ExplainedStep& step) {
  double waits = 0, computes = 0, cache = 0, weights = 0;
  for (const TimeTerm& term : step.terms) {
    const bool is_cache = term.family == "decode_attention";
    (term.bound == "host" || term.bound == "launch" ? waits
     : term.bound == "compute"                      ? computes
     : is_cache                                     ? cache
                                                    : weights) += term.time.count();
  }
  const double most = std::max({waits, computes, cache, weights});
  if (most == waits) return "launch-bound";
  if (most == computes) return "compute-bound";
  return most == cache ? "cache-bound" : "weight-bound";
}

/// Whether most of its time is that of kernels measured on this GPU.
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
    for (std::size_t i = 0; i < kServeDraws; ++i) {
      const double turn = 2 * std::numbers::pi * static_cast<double>(i) / kServeDraws;
      const double decode = std::exp(kRadius * std::cos(turn));
      const double prompt = std::exp(kRadius * std::sin(turn));
      out[i] = {.decode = decode, .prefill = prompt, .front_end = prompt};
    }
    return out;
  }();
  return draws;
}

std::optional<double> sensitivity(double predicted, std::span<const double, kServeDraws> drawn) {
  if (!(predicted > 0)) return std::nullopt;
  double squares = 0;
  for (const double value : drawn) {
    if (!(value > 0) || !std::isfinite(value)) return std::nullopt;
    const double moved = std::log(value / predicted);
    squares += moved * moved;
  }
  // Of a slope b the squares sum to |b|^2 times half the squares of the radii.
  return std::sqrt(squares / (0.5 * kServeDraws)) / kRadius;
}

bool is_queued(const ServeResult& result) { return result.queue.mean > 0.5 * result.ttft.mean; }

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
  out.emplace_back(spec.tensor_parallel > 1 ? "several GPUs" : "one GPU");
  constexpr std::int64_t kFew = 8, kSome = 64;
  out.emplace_back(!iteration                    ? "unknown batch"
                   : iteration->decodes <= kFew  ? "batches of up to 8"
                   : iteration->decodes <= kSome ? "batches of 9 to 64"
                                                 : "batches above 64");
  out.push_back(iteration ? regime_of(iteration->step) : "unknown regime");
  out.push_back(iteration ? kernels_of(iteration->step) : "unknown kernels");
  if (std::any_of(spec.llm->layers.begin(), spec.llm->layers.end(), [&](const LayerSpec& layer) {
        return !items_without_rows(layer, spec.kv_dtype).empty();
      })) {
    out.emplace_back(kDataSheetLayers);
  }
  return out;
}

}  // namespace kvsim
