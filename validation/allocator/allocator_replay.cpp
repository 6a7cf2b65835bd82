#include "validation/allocator/allocator_replay.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

namespace kvsim {
namespace {

/// Collects one quantity along the events.
class Comparison {
 public:
  explicit Comparison(std::string name) { out_.name = std::move(name); }

  void add(std::int64_t recorded, std::int64_t predicted, std::int64_t line) {
    ++out_.compared;
    const auto error = static_cast<double>(predicted - recorded);
    if (recorded == predicted) ++out_.exact;
    error_sum_ += std::abs(error);
    if (std::abs(error) > std::abs(out_.worst_error)) {
      out_.worst_error = error;
      out_.worst_line = line;
    }
    out_.recorded_peak = std::max(out_.recorded_peak, recorded);
    out_.predicted_peak = std::max(out_.predicted_peak, predicted);
    out_.recorded_final = recorded;
    out_.predicted_final = predicted;
  }
  void finish(std::vector<ReplayedQuantity>& into) {
    if (out_.compared == 0) return;
    out_.mean_abs_error = error_sum_ / static_cast<double>(out_.compared);
    into.push_back(std::move(out_));
  }

 private:
  ReplayedQuantity out_;
  double error_sum_ = 0;
};

class Replayer {
 public:
  Replayer(const AllocatorTrace& trace, const AllocatorDevice& device,
           const AllocatorConfig& config)
      : trace_{trace}, allocator_{device, config}, owner_{allocator_.owner("tensors")} {}

  AllocatorReplay run() {
    for (const AllocatorEvent& event : trace_.events) {
      ++out_.events;
      apply(event);
      compare(event);
    }
    for (Comparison* each : {&reserved_, &allocated_, &segments_}) each->finish(out_.quantities);
    out_.final_stats = allocator_.stats();
    out_.predicted_segment_allocs = out_.final_stats.device_allocs;
    out_.predicted_segment_frees = out_.final_stats.device_frees;
    if (skipped_frees_ > 0) {
      out_.notes.push_back(
          fmt::format("{} frees were of tensors that did not fit in the model", skipped_frees_));
    }
    if (trace_.initial_blocks > 0) {
      out_.notes.push_back(fmt::format(
          "the recording began with {} blocks in use: their addresses, and the cached memory next "
          "to them, are rebuilt by allocating them in the order of their addresses",
          trace_.initial_blocks));
    }
    if (out_.quantities.empty()) {
      out_.notes.emplace_back("the trace records neither segments nor totals: nothing to compare");
    }
    return std::move(out_);
  }

 private:
  void apply(const AllocatorEvent& event) {
    switch (event.op) {
      case AllocatorOp::kAlloc:
        ++out_.allocations;
        allocate(event, false);
        break;
      case AllocatorOp::kOom:
        ++out_.recorded_refusals;
        allocate(event, true);
        break;
      case AllocatorOp::kFree:
        ++out_.frees;
        release(event, [this](auto id) { allocator_.free(id); });
        live_.erase(event.id);
        break;
      case AllocatorOp::kFreeRequested:
        ++out_.frees;
        release(event, [this](auto id) { allocator_.request_free(id); });
        break;
      case AllocatorOp::kFreeCompleted:
        release(event, [this](auto id) { allocator_.complete_free(id); });
        live_.erase(event.id);
        break;
      case AllocatorOp::kEmptyCache:
        allocator_.empty_cache();
        break;
      case AllocatorOp::kSegmentAlloc:
      case AllocatorOp::kSegmentMap:
        ++out_.recorded_segment_allocs;
        recorded_reserved_ += event.size;
        if (event.op == AllocatorOp::kSegmentAlloc) {
          ++recorded_segments_;
          if (event.address != 0) allocator_.place_next_segment(event.address);
        }
        break;
      case AllocatorOp::kSegmentFree:
      case AllocatorOp::kSegmentUnmap:
        ++out_.recorded_segment_frees;
        recorded_reserved_ -= event.size;
        if (event.op == AllocatorOp::kSegmentFree) --recorded_segments_;
        break;
    }
    expandable_ = expandable_ || event.op == AllocatorOp::kSegmentMap;
  }

  void allocate(const AllocatorEvent& event, bool refused_there) {
    const auto got = allocator_.malloc(Bytes{event.size}, owner_, event.stream);
    if (got) {
      if (refused_there) {
        allocator_.free(got.value());  // the recording continued without it
      } else {
        live_.emplace(event.id, got.value());
      }
      return;
    }
    ++out_.predicted_refusals;
    if (refused_there) ++out_.agreed_refusals;
    if (!out_.first_refusal) {
      out_.first_refusal = fmt::format("line {}: {}", event.line, got.error().message());
    }
  }

  template <class Release>
  void release(const AllocatorEvent& event, Release&& how) {
    const auto found = live_.find(event.id);
    if (found == live_.end()) {
      if (event.op != AllocatorOp::kFreeCompleted) ++skipped_frees_;
      return;
    }
    how(found->second);
  }

  void compare(const AllocatorEvent& event) {
    // Between a segment's event and its allocation, recorder and model differ necessarily.
    const bool between = event.op >= AllocatorOp::kSegmentAlloc;
    if (event.reserved) {
      reserved_.add(event.reserved->count(), allocator_.reserved().count(), event.line);
    } else if (trace_.has_segments && !between) {
      reserved_.add(recorded_reserved_, allocator_.reserved().count(), event.line);
    }
    if (event.allocated) {
      allocated_.add(event.allocated->count(), allocator_.allocated().count(), event.line);
    }
    if (event.segments) {
      segments_.add(*event.segments, allocator_.segments(), event.line);
    } else if (trace_.has_segments && !expandable_ && !between) {
      segments_.add(recorded_segments_, allocator_.segments(), event.line);
    }
  }

  const AllocatorTrace& trace_;
  CachingAllocator allocator_;
  CachingAllocator::OwnerId owner_;
  std::unordered_map<std::int64_t, CachingAllocator::BlockId> live_;  // looked up, never iterated
  AllocatorReplay out_;
  Comparison reserved_{"reserved"}, allocated_{"allocated"}, segments_{"segments"};
  std::int64_t recorded_reserved_ = 0, recorded_segments_ = 0;
  std::int64_t skipped_frees_ = 0;
  bool expandable_ = false;
};

}  // namespace

double ReplayedQuantity::peak_error() const {
  if (recorded_peak == 0) return 0;
  return static_cast<double>(predicted_peak - recorded_peak) / static_cast<double>(recorded_peak);
}

AllocatorReplay replay_allocations(const AllocatorTrace& trace, const AllocatorDevice& device,
                                   const AllocatorConfig& config) {
  return Replayer{trace, device, config}.run();
}

}  // namespace kvsim
