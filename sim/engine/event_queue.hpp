#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "models/units/check.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Order of events at the same time: events that free memory run before those that allocate.
enum class Phase : std::uint8_t { kRelease, kTransfer, kArrival, kSchedule, kObserve };

/// Events in order of (time, phase, sequence), where sequence is the order of scheduling, and the
/// clock that they advance. `Payload` is a variant of small structs.
template <class Payload>
class EventQueue {
 public:
  struct Event {
    SimTime at{};
    Phase phase = Phase::kRelease;
    std::uint64_t sequence = 0;
    Payload payload{};
  };

  /// `max_concurrent`: maximum number of events at one time; more indicate an endless loop.
  explicit EventQueue(std::int64_t max_concurrent = 1 << 20) : max_concurrent_{max_concurrent} {}

  /// Errors: ContractError if `at` is in the past.
  void schedule(SimTime at, Phase phase, Payload payload) {
    KVSIM_CHECK(at >= now_, "an event at {} ps, scheduled at {} ps", at.count(), now_.count());
    events_.push_back({at, phase, next_++, std::move(payload)});
    std::push_heap(events_.begin(), events_.end(), later);
  }
  [[nodiscard]] bool empty() const { return events_.empty(); }
  [[nodiscard]] std::size_t size() const { return events_.size(); }
  [[nodiscard]] SimTime now() const { return now_; }
  /// Whether another event is pending at the present time.
  [[nodiscard]] bool has_more_now() const { return !events_.empty() && events_.front().at == now_; }

  /// Removes and returns the next event and advances the clock to it. Errors: ContractError if
  /// there is none, or if more than `max_concurrent` events have the same time.
  Event pop() {
    KVSIM_CHECK(!events_.empty(), "no event is left");
    std::pop_heap(events_.begin(), events_.end(), later);
    Event event = std::move(events_.back());
    events_.pop_back();
    standing_still_ = event.at > now_ ? 0 : standing_still_ + 1;
    KVSIM_CHECK(standing_still_ < max_concurrent_, "no progress at {} ps", now_.count());
    now_ = event.at;  // the only place where the clock advances
    return event;
  }

 private:
  static auto key(const Event& e) { return std::tuple{e.at, e.phase, e.sequence}; }
  static bool later(const Event& a, const Event& b) { return key(a) > key(b); }

  std::vector<Event> events_;  // a heap
  SimTime now_{};
  std::uint64_t next_ = 0;
  std::int64_t max_concurrent_;
  std::int64_t standing_still_ = 0;
};

}  // namespace kvsim
