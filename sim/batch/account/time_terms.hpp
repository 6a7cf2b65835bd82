#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// One term of a step's time: equal operators in all layers that run them, or the host's time
/// beyond the device's.
struct TimeTerm {
  std::string what;         // "gate projection of 32 layers"
  std::string family;       // "gemm"; "host"
  std::int32_t layers = 0;  // that run it; 0: it is outside the layers
  std::int32_t calls = 1;   // per layer, or per step
  double flops = 0;         // this and the next three: over all calls in all layers
  double bytes_read = 0;
  double bytes_written = 0;
  std::int64_t launches = 0;
  std::string bound;  // "compute", "memory", "launch" or "host"
  Seconds time;
  std::optional<Interval> interval{};  // 90 % of `time`, of this term only
  std::string formula;  // with the numbers filled in: "32 layers x (4 us + 8,192 B / 2.039 TB/s)"
  std::string basis;    // of its time: a KernelBasis ("measured", "sibling", …) if a fitted
                        // kernel times it, else "calibration", "stack" or "data_sheet"
  std::string source;   // of its rates: "gpu A800-80GB-SXM: hbm_bandwidth; stack hf-sdpa: …"
};

/// A step whose terms sum to its time. Terms of zero time are omitted.
struct ExplainedStep {
  std::int64_t step = 0;    // 0: prefill; n: the n-th decode step
  std::int64_t tokens = 0;  // per sequence after it
  Seconds time;
  std::optional<Interval> interval;  // 90 %, by interval_of; none without calibration
  std::vector<TimeTerm> terms;
};

/// The inputs of a step's time. Nothing is owned.
struct TimeInput {
  const CostInput* cost = nullptr;
  const Gpu* gpu = nullptr;
  const Roofline* roofline = nullptr;
};

/// Explains the step that took `time`. Errors: ContractError if the terms do not sum to it within
/// 1e-9 of it.
[[nodiscard]] ExplainedStep explain_step(const TimeInput& in, std::int64_t number,
                                         std::int64_t tokens, Seconds time, const Step& step);

}  // namespace kvsim
