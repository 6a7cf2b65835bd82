// Caches outside the GPU: the part of ContinuousEngine that swaps them.

#include <algorithm>

#include "models/units/check.hpp"
#include "sim/serve/engine/continuous_engine.hpp"

namespace kvsim {

bool ContinuousEngine::swap_out(RequestId id) {
  stop_steady();
  Sequence& s = at(id);
  if (s.state != SequenceState::kRunning || s.planned > 0 || s.computed == 0) return false;
  const Bytes pages = parts_.sizes->unit() * kv_.held(id);
  const OutsideFormat& format = parts_.outside_format;
  const bool on_nvme = parts_.host_memory == Bytes{} || !host_.fits(format.held(pages));
  if (parts_.swap.link.count() <= 0) return false;
  if (on_nvme && !nvme_.fits(format.link(pages))) {
    ++no_room_outside_;
    return false;
  }
  leave_running(id);
  const std::int64_t units = kv_.swap_out(id, s);
  s.state = SequenceState::kSwapped;
  swapped_.push_back(id);
  swapped_caches_.push_back({units, on_nvme});
  (on_nvme ? nvme_ : host_).take(OutsideOwner::kSwapped, outside_bytes(swapped_caches_.back()));
  (on_nvme ? moved_.to_nvme : moved_.host) += format.link(pages);
  coded_ += format.encode(pages);
  ++swaps_;
  swaps_to_nvme_ += on_nvme ? 1 : 0;
  ++state_->outcomes[static_cast<std::size_t>(id)].preemptions;
  ++state_->preemptions;
  ++counts_.preemptions;
  return true;
}

Bytes ContinuousEngine::outside_bytes(const SwappedCache& cache) const {
  const Bytes pages = parts_.sizes->unit() * cache.units;
  return cache.on_nvme ? parts_.outside_format.link(pages) : parts_.outside_format.held(pages);
}

void ContinuousEngine::free_outside(const SwappedCache& cache) {
  (cache.on_nvme ? nvme_ : host_).give(OutsideOwner::kSwapped, outside_bytes(cache));
  const Bytes left = host_.used(OutsideOwner::kSwapped) + nvme_.used(OutsideOwner::kSwapped);
  KVSIM_CHECK(!swapped_caches_.empty() || left == Bytes{},
              "{} B outside the GPU belong to no cache", left.count());
}

bool ContinuousEngine::swap_in(RequestId id, std::int64_t keep_free) {
  const auto place = std::find(swapped_.begin(), swapped_.end(), id) - swapped_.begin();
  KVSIM_CHECK(place < std::ssize(swapped_), "request {} is not swapped out", id);
  const SwappedCache cache = swapped_caches_[static_cast<std::size_t>(place)];
  const std::int64_t units = cache.units;
  Sequence& s = at(id);
  if (units + keep_free > kv_.available() || !kv_.swap_in(id, s, units)) return false;
  const Bytes pages = parts_.sizes->unit() * units;
  const Bytes bytes = parts_.outside_format.link(pages);
  coded_ += parts_.outside_format.decode(pages);
  swapped_.erase(swapped_.begin() + place);
  swapped_caches_.erase(swapped_caches_.begin() + place);
  free_outside(cache);
  (cache.on_nvme ? moved_.from_nvme : moved_.host) += bytes;
  if (!cache.on_nvme) moved_.back += bytes;
  s.state = SequenceState::kRunning;
  enter_running(id);
  return true;
}

}  // namespace kvsim
