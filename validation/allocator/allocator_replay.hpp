#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/memory/caching_allocator.hpp"
#include "validation/allocator/allocator_trace.hpp"

namespace kvsim {

/// A quantity recorded along a trace and its prediction at the same events. In bytes, except
/// "segments".
struct ReplayedQuantity {
  std::string name;           // "reserved", "allocated", "segments"
  std::int64_t compared = 0;  // events at which it was recorded
  std::int64_t exact = 0;     // of these, events predicted exactly
  double mean_abs_error = 0;  // over the events compared
  double worst_error = 0;     // predicted minus recorded, the largest absolute value
  std::int64_t worst_line = 0;
  std::int64_t recorded_peak = 0, predicted_peak = 0;    // over the events compared
  std::int64_t recorded_final = 0, predicted_final = 0;  // at the last of them

  /// (predicted - recorded) / recorded of the peaks; 0 if nothing was recorded.
  [[nodiscard]] double peak_error() const;
};

struct AllocatorReplay {
  std::int64_t events = 0, allocations = 0, frees = 0;
  std::vector<ReplayedQuantity> quantities;  // quantities recorded at least once
  std::int64_t recorded_refusals = 0;
  std::int64_t predicted_refusals = 0;
  std::int64_t agreed_refusals = 0;                                        // at the same event
  std::int64_t recorded_segment_allocs = 0, predicted_segment_allocs = 0;  // and maps
  std::int64_t recorded_segment_frees = 0, predicted_segment_frees = 0;    // and unmaps
  AllocatorStats final_stats;
  std::optional<std::string> first_refusal{};  // the model's message
  std::vector<std::string> notes;
};

/// Runs `trace` through the model of the caching allocator. If the trace has segment events but no
/// "reserved", their running sum is the recorded value, and their addresses, which the driver
/// chose, place the model's segments. Errors: ContractError as in CachingAllocator.
[[nodiscard]] AllocatorReplay replay_allocations(const AllocatorTrace& trace,
                                                 const AllocatorDevice& device,
                                                 const AllocatorConfig& config);

}  // namespace kvsim
