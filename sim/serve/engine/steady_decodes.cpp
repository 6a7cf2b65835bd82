#include "sim/serve/engine/steady_decodes.hpp"

#include <algorithm>
#include <functional>

namespace kvsim {

void SteadyDecodes::add(RequestId id, const Sequence& s, std::int32_t left) {
  ++size_;
  computed_ += s.computed;
  ++due_[phase(s.room - s.computed)];
  ends_.emplace_back(iterations_ + left, id);
  std::push_heap(ends_.begin(), ends_.end(), std::greater{});
}

std::span<const RequestId> SteadyDecodes::step() {
  ++iterations_;
  computed_ += static_cast<std::int64_t>(size_);
  ended_.clear();
  while (!ends_.empty() && ends_.front().first == iterations_) {
    ended_.push_back(ends_.front().second);
    std::pop_heap(ends_.begin(), ends_.end(), std::greater{});
    ends_.pop_back();
  }
  return ended_;
}

void SteadyDecodes::remove(const Sequence& s) {
  --size_;
  computed_ -= s.computed;
  --due_[phase(s.room - s.computed)];
}

void SteadyDecodes::clear() {
  size_ = 0;
  computed_ = 0;
  std::fill(due_.begin(), due_.end(), 0);
  ends_.clear();
}

}  // namespace kvsim
