// Sequences that are counted together: the part of ContinuousEngine that keeps its SteadyDecodes.

#include <algorithm>

#include "models/units/check.hpp"
#include "sim/serve/engine/continuous_engine.hpp"

namespace kvsim {
namespace {

// Joining and leaving cost a sequence about as much as a few iterations.
constexpr std::int64_t kWorthwhile = 16;  // iterations
constexpr std::int64_t kShortestPause = 8, kLongestPause = 64;

}  // namespace

bool ContinuousEngine::counts_together() const {
  return !piped_ && !windows_ && observer_ == nullptr && parts_.role != ReplicaRole::kPrefill &&
         parts_.drafts == 0 && parts_.offload.to == OffloadTier::kNone && kv_.full_law();
}

std::size_t ContinuousEngine::schedule_steady(std::int64_t max, std::int64_t keep_free) {
  may_join_ = counts_together() && pause_left_ == 0;
  pause_left_ = std::max<std::int64_t>(0, pause_left_ - 1);
  if (steady_.size() == 0) return 0;
  if (std::cmp_greater(steady_.size(), max) || !kv_.grow_by_blocks(steady_.growing(), keep_free)) {
    stop_steady();  // some are preempted or wait: count one by one
    return 0;
  }
  steady_planned_ = steady_.size();
  steady_place_ = plan_.size();
  return steady_planned_;
}

void ContinuousEngine::join_steady(RequestId id, std::int32_t output) {
  Sequence& s = at(id);
  if (running_[steady_.size()] != id || !state_->is_steady(id) || !steady_.fits(s)) return;
  if (steady_.size() == 0) steady_since_ = steady_.iterations();
  s.counted_to = steady_.iterations();
  steady_.add(id, s, output - s.generated());
}

void ContinuousEngine::count_steady(RequestId id) {
  Sequence& s = at(id);
  const std::int32_t tokens = steady_.tokens_since(s.counted_to);
  if (tokens == 0 && steady_planned_ == 0) return;
  s.computed += tokens;
  s.known += tokens;
  s.counted_to = steady_.iterations();
  state_->steady_tokens(id, tokens);
  kv_.catch_up(id, s, s.computed + (steady_planned_ > 0 ? 1 : 0));
}

void ContinuousEngine::count_steady() {
  for (std::size_t i = 0; i < steady_.size(); ++i) count_steady(running_[i]);
}

void ContinuousEngine::end_steady(SimTime delivered) {
  steady_planned_ = 0;
  tokens_ += static_cast<std::int64_t>(steady_.size());
  const auto head = running_.begin();
  const auto members_end = head + static_cast<std::ptrdiff_t>(steady_.size());
  std::vector<std::ptrdiff_t> places;
  for (const RequestId id : steady_.step()) {
    places.push_back(std::find(head, members_end, id) - head);
  }
  std::sort(places.begin(), places.end());
  for (const std::ptrdiff_t place : places) {
    const RequestId id = running_[static_cast<std::size_t>(place)];
    count_steady(id);
    steady_.remove(at(id));
    at(id).counted_to = Sequence::kAlone;
    complete(id, delivered);
  }
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    running_.erase(running_.begin() + *place);
  }
}

void ContinuousEngine::complete(RequestId id, SimTime delivered) {
  kv_.finish(id, at(id));
  state_->end(id, RequestStatus::kCompleted, delivered);
  state_->outcomes[static_cast<std::size_t>(id)].replica = static_cast<std::int16_t>(replica_);
}

void ContinuousEngine::stop_steady() {
  if (steady_.size() == 0) return;
  count_steady();
  std::vector<Planned> all;
  for (std::size_t i = 0; i < steady_.size(); ++i) {
    Sequence& s = at(running_[i]);
    s.counted_to = Sequence::kAlone;
    if (steady_planned_ == 0) continue;
    s.planned = 1;
    all.push_back({running_[i], 1});
  }
  if (!all.empty()) {
    plan_.insert(plan_.begin() + static_cast<std::ptrdiff_t>(steady_place_), all.begin(),
                 all.end());
  }
  steady_planned_ = 0;
  steady_.clear();
  const bool was_short = steady_.iterations() - steady_since_ < kWorthwhile;
  pause_ = was_short ? std::clamp(2 * pause_, kShortestPause, kLongestPause) : 0;
  pause_left_ = pause_;
  may_join_ = may_join_ && pause_left_ == 0;
}

}  // namespace kvsim
