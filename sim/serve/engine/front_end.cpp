#include "sim/serve/engine/front_end.hpp"

#include <algorithm>

namespace kvsim {

void EventLoop::push(const Turn& turn) {
  queued_ += turn.work();
  last_turns_ += turn.request >= 0 && turn.left == 1 ? 1 : 0;
  ready_.push_back(turn);
}

void EventLoop::arrive(RequestId request, SimTime now, SimTime work, std::int32_t turns) {
  advance(now);
  if (ready_.empty()) begun_ = now;
  const SimTime takes{work.count() / turns};
  push({.request = request, .left = turns, .takes = takes, .last = work - takes * (turns - 1)});
}

SimTime EventLoop::deliver(SimTime now, SimTime work) {
  if (!ready_.empty()) advance(now);
  if (ready_.empty()) begun_ = now;
  streamed_ = std::max(begun_ + queued_, streamed_) + work;
  iteration_ = work;
  if (work > SimTime{} && !streams_) {
    streams_ = true;
    push({.takes = work, .last = work});
  }
  return streamed_;
}

std::optional<RequestId> EventLoop::take(SimTime now) {
  advance(now);
  if (done_.empty() || done_.front().at > now) return std::nullopt;
  const RequestId request = done_.front().request;
  done_.pop_front();
  return request;
}

std::optional<SimTime> EventLoop::next() const {
  if (!done_.empty()) return done_.front().at;
  if (ready_.empty()) return std::nullopt;
  const Turn& first = ready_.front();
  if (ready_.size() == 1) {
    if (first.request < 0) return std::nullopt;
    return begun_ + first.rest();
  }
  // If no turn is a last one, all ready turns precede the next turn of any of their requests.
  return begun_ + (last_turns_ > 0 ? first.work() : queued_);
}

void EventLoop::advance(SimTime now) {
  while (!ready_.empty() && begun_ + ready_.front().work() <= now) {
    Turn turn = ready_.front();
    if (ready_.size() == 1 && turn.request >= 0 && begun_ + turn.rest() <= now) {
      begun_ += turn.rest();  // the only one: all of its turns
      ready_.clear();
      queued_ = {};
      last_turns_ = 0;
      done_.push_back({turn.request, begun_});
      return;
    }
    ready_.pop_front();
    begun_ += turn.work();
    queued_ -= turn.work();
    if (turn.request < 0) {
      const SimTime rest = std::min(streamed_ - begun_, iteration_);
      streams_ = rest > SimTime{};
      if (streams_) push({.takes = rest, .last = rest});
    } else if (turn.left == 1) {
      --last_turns_;
      done_.push_back({turn.request, begun_});
    } else {
      --turn.left;
      push(turn);
    }
  }
}

FrontEnd::FrontEnd(const FrontEndTimes& times)
    : times_{times}, loops_(static_cast<std::size_t>(times.servers)) {}

void FrontEnd::arrive(RequestId request, SimTime now, std::int32_t prompt) {
  const Seconds work = times_.request + times_.prompt_token * static_cast<double>(prompt);
  loops_[next_loop_].arrive(request, now, to_sim_time(work), times_.turns);
  next_loop_ = (next_loop_ + 1) % loops_.size();
}

std::optional<RequestId> FrontEnd::take(SimTime now) {
  const SimTime sent = now - to_sim_time(times_.latency);
  for (EventLoop& loop : loops_) {
    if (const auto request = loop.take(sent)) return request;
  }
  return std::nullopt;
}

std::optional<SimTime> FrontEnd::next() const {
  std::optional<SimTime> least;
  for (const EventLoop& loop : loops_) {
    const auto next = loop.next();
    if (next && (!least || *next < *least)) least = next;
  }
  if (least) *least += to_sim_time(times_.latency);
  return least;
}

SimTime FrontEnd::deliver(SimTime now, std::int64_t tokens) {
  const auto servers = static_cast<double>(loops_.size());
  const SimTime work = to_sim_time(times_.token * (static_cast<double>(tokens) / servers));
  SimTime last = now;
  for (EventLoop& loop : loops_) last = std::max(last, loop.deliver(now, work));
  return last;
}

}  // namespace kvsim
