#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/residuals/residuals.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

// Sensitivity of a service's metrics to errors of its times: the service is simulated again at a
// few draws of the factors of its components, each constant during a run.

inline constexpr std::size_t kServeDraws = 3;
/// All times of a run shorter by the usual error of services, longer by a small error, and longer
/// by a large error. There are two longer draws because a service may saturate between them.
[[nodiscard]] const std::array<TimeFactors, kServeDraws>& serve_draws();

/// Returns the response of a metric to the times of its run: proportional for a metric as long as
/// its iterations, none if it does not depend on them, and stronger near saturation. `drawn`: the
/// metric's values at serve_draws. nullopt if a value is not above 0.
[[nodiscard]] std::optional<Response> response(double predicted,
                                               std::span<const double, kServeDraws> drawn);

/// Returns the feature of a residual path whose runs have a separate residual class or none: states
/// or indexes, drafts; empty without one. Few documents have them, and the acceptance of drafts is
/// assumed, so their errors do not apply to other runs.
[[nodiscard]] std::string_view apart_feature(const std::vector<std::string>& path);

/// Returns whether requests of a run wait longer than their prefill takes.
[[nodiscard]] bool is_queued(const ServeResult& result);

/// Returns the features that residual classes of services may have: whether requests wait, how busy
/// the engine is, its stack, whether all settings are known, GPUs, the bound of an iteration, where
/// its kernels were measured, whether the model has routed experts, and apart_feature.
[[nodiscard]] std::vector<std::string> residual_path(const ServeSpec& spec,
                                                     const ServeResult& result,
                                                     const std::optional<MeanIteration>& iteration);

}  // namespace kvsim
