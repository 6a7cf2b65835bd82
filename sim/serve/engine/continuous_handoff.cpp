// Caches that move between engines: the part of ContinuousEngine that sends and receives them.

#include <algorithm>

#include "models/units/check.hpp"
#include "sim/serve/engine/continuous_engine.hpp"

namespace kvsim {

void ContinuousEngine::leave(RequestId id) {
  const auto place = std::find(leaving_.begin(), leaving_.end(), id);
  KVSIM_CHECK(place != leaving_.end(), "request {} does not leave", id);
  leaving_.erase(place);
  kv_.release(id, at(id));
}

bool ContinuousEngine::reserve(RequestId id, std::int64_t units) {
  // Preempted requests keep their place ahead of new ones.
  if (static_cast<std::int64_t>(queue_.size()) > received_) return false;
  if (!kv_.reserve(id, at(id), units)) return false;
  ++reserved_;
  return true;
}

void ContinuousEngine::receive(RequestId id) {
  Sequence& s = at(id);
  KVSIM_CHECK(reserved_ > 0 && s.state == SequenceState::kMoving, "nothing was awaited for {}", id);
  --reserved_;
  ++received_;
  kv_.receive(id, s);
  s.state = SequenceState::kWaiting;
  queue_.push(id);
}

bool ContinuousEngine::admit_received(RequestId id, std::int32_t tokens, std::int64_t keep_free) {
  Sequence& s = at(id);
  const std::int64_t before = kv_.held(id);
  if (keep_free > kv_.available()) return false;
  if (s.computed + tokens > s.room && !kv_.grow(id, s, tokens)) return false;
  KVSIM_CHECK(kv_.held(id) >= before, "room for {} tokens took memory away", tokens);
  --received_;
  queue_.remove(id);
  s.state = SequenceState::kRunning;
  s.planned = tokens;
  enter_running(id);
  plan_.push_back({id, tokens});
  return true;
}

bool ContinuousEngine::drop_received() {
  if (received_ == 0) return false;
  queue_.first(queue_.size(), window_);
  for (std::size_t i = window_.size(); i-- > 0;) {
    const RequestId id = window_[i];
    Sequence& s = at(id);
    if (s.computed == 0) continue;
    auto& once = state_->computed_once[static_cast<std::size_t>(id)];
    once = std::max(once, s.computed);
    kv_.release(id, s);
    s.computed = 0;
    s.target = s.known;
    --received_;
    ++state_->outcomes[static_cast<std::size_t>(id)].preemptions;
    ++state_->preemptions;
    ++counts_.preemptions;
    return true;
  }
  KVSIM_CHECK(false, "{} caches came, none is here", received_);
  return false;
}

}  // namespace kvsim
