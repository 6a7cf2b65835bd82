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

// How far a service's metrics move if times are wrong: it is simulated again at a few draws of the
// factors of its components, each drawn once for the whole run.

inline constexpr std::size_t kServeDraws = 3;
/// All times of a run shorter by the usual error of services, longer by a small one, and longer by
/// a large one: longer times saturate a service at one point between, so there are two.
[[nodiscard]] const std::array<TimeFactors, kServeDraws>& serve_draws();

/// How a metric moves with the times of its run: as fast as they do if it is as long as its
/// iterations, not at all if it does not depend on them, and farther near saturation. `drawn`: its
/// values at serve_draws. nullopt if a value is not above 0.
[[nodiscard]] std::optional<Response> response(double predicted,
                                               std::span<const double, kServeDraws> drawn);

/// The feature of a residual path whose runs have a separate residual class, or none: states or
/// indexes, drafts; empty: no such feature. Few documents have them, and the acceptance of drafts
/// is assumed: their errors say nothing of other runs.
[[nodiscard]] std::string_view apart_feature(const std::vector<std::string>& path);

/// Whether requests of a run wait for longer than they are prefilled.
[[nodiscard]] bool is_queued(const ServeResult& result);

/// The features that residual classes of services may have: whether requests wait, how busy the
/// engine is, its stack, whether all settings are known, GPUs, what an iteration is bound by, where
/// its kernels were measured, whether the model has routed experts, and those of apart_feature.
[[nodiscard]] std::vector<std::string> residual_path(const ServeSpec& spec,
                                                     const ServeResult& result,
                                                     const std::optional<MeanIteration>& iteration);

}  // namespace kvsim
