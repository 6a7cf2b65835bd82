#include "sim/serve/engine/steady_decodes.hpp"

#include <algorithm>
#include <functional>

namespace kvsim {

void SteadyDecodes::add(RequestId id, const Sequence& s, std::int32_t left) {
  due_.resize(static_cast<std::size_t>(block_tokens_));  // only for engines with members
  ++size_;
  computed_ += s.computed;
  ++due_[phase(s.room - s.computed)];
  ends_.emplace_back(iterations_ + left, id);
}

void SteadyDecodes::sort_ends() {
  const std::size_t added = ends_.size() - sorted_;
  constexpr std::size_t kFew = 8;  // 1/8 of the members
  if (added > ends_.size() / kFew) {
    std::make_heap(ends_.begin(), ends_.end(), std::greater{});
    sorted_ = ends_.size();
  }
  while (sorted_ < ends_.size()) {
    ++sorted_;
    std::push_heap(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(sorted_),
                   std::greater{});
  }
}

std::span<const RequestId> SteadyDecodes::step() {
  ++iterations_;
  computed_ += static_cast<std::int64_t>(size_);
  ended_.clear();
  sort_ends();
  while (!ends_.empty() && ends_.front().first == iterations_) {
    ended_.push_back(ends_.front().second);
    std::pop_heap(ends_.begin(), ends_.end(), std::greater{});
    ends_.pop_back();
    --sorted_;
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
  sorted_ = 0;
}

}  // namespace kvsim
