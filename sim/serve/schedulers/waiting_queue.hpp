#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <vector>

#include "sim/serve/cache/active_array.hpp"
#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/schedulers/queue_order.hpp"

namespace kvsim {

/// Waiting requests in the order in which a scheduler serves them. Under first come first served, a
/// preempted request returns to the front. Under priority or declared length, ties go to the
/// earlier arrival, and a preempted request returns to its place.
class WaitingQueue {
 public:
  WaitingQueue(QueueOrder order, const ActiveArray<Sequence>& sequences)
      : order_{order}, sequences_{&sequences} {}

  void push(RequestId id) { order_ == QueueOrder::kFcfs ? line_.push_back(id) : insert(id); }
  void push_front(RequestId id) { order_ == QueueOrder::kFcfs ? line_.push_front(id) : insert(id); }
  [[nodiscard]] bool empty() const { return line_.empty() && sorted_.empty(); }
  [[nodiscard]] std::size_t size() const { return line_.size() + sorted_.size(); }
  [[nodiscard]] RequestId front() const {
    return order_ == QueueOrder::kFcfs ? line_.front() : std::get<2>(*sorted_.begin());
  }
  /// Removes `id` in O(1) or O(log n) at the front, elsewhere in time linear in its position.
  void remove(RequestId id) {
    if (order_ != QueueOrder::kFcfs) {
      sorted_.erase(key(id));
      return;
    }
    if (line_.front() == id) {
      line_.pop_front();
      return;
    }
    for (auto at = line_.begin(); at != line_.end(); ++at) {
      if (*at != id) continue;
      line_.erase(at);
      return;
    }
  }
  /// Copies the first `max` requests to `out`.
  void first(std::size_t max, std::vector<RequestId>& out) const {
    out.clear();
    for (auto at = line_.begin(); at != line_.end() && out.size() < max; ++at) out.push_back(*at);
    for (auto at = sorted_.begin(); at != sorted_.end() && out.size() < max; ++at) {
      out.push_back(std::get<2>(*at));
    }
  }
  /// Sort key of the order: smaller is served earlier.
  [[nodiscard]] std::tuple<std::int64_t, std::int32_t, RequestId> key(RequestId id) const {
    const auto [first, rank] = order_key(order_, (*sequences_)[static_cast<std::size_t>(id)]);
    return {first, rank, id};
  }
  [[nodiscard]] QueueOrder order() const { return order_; }

 private:
  void insert(RequestId id) { sorted_.insert(key(id)); }

  QueueOrder order_;
  const ActiveArray<Sequence>* sequences_;
  std::deque<RequestId> line_;
  std::set<std::tuple<std::int64_t, std::int32_t, RequestId>> sorted_;
};

}  // namespace kvsim
