#include "sim/network/transfer.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "models/units/check.hpp"

namespace kvsim {
namespace {
constexpr double kInfinite = std::numeric_limits<double>::infinity();
}

const std::vector<Topology::LinkIndex>& TransferEngine::route(Topology::PlaceIndex from,
                                                              Topology::PlaceIndex to) {
  const auto [at, is_new] = routes_.try_emplace({from, to});
  if (is_new) {
    try {
      at->second = topology_->route(from, to);
    } catch (...) {
      routes_.erase(at);
      throw;
    }
  }
  return at->second;
}

void TransferEngine::start(SimTime now, Topology::PlaceIndex from, Topology::PlaceIndex to,
                           Bytes bytes, std::int64_t tag) {
  KVSIM_CHECK(now >= now_ && bytes >= Bytes{}, "{} bytes at {} ps, the clock is at {} ps",
              bytes.count(), now.count(), now_.count());
  const auto used = [&](const auto& t) { return t.tag == tag; };
  KVSIM_CHECK(std::none_of(flows_.begin(), flows_.end(), used) &&
                  std::none_of(flying_.begin(), flying_.end(), used),
              "transfer {} is under way", tag);
  const auto& links = route(from, to);
  drain(now);
  const auto place = std::lower_bound(flows_.begin(), flows_.end(), tag,
                                      [](const Flow& f, std::int64_t t) { return f.tag < t; });
  flows_.insert(place, {.tag = tag,
                        .bytes = bytes.count(),
                        .route = &links,
                        .left = static_cast<double>(bytes.count()),
                        .since = now});
  share(now);
}

std::optional<SimTime> TransferEngine::next() const {
  std::optional<SimTime> first;
  const auto take = [&](SimTime t) {
    if (!first || t < *first) first = t;
  };
  for (const Flow& f : flows_) take(f.drained);
  for (const Flying& f : flying_) take(f.arrives);
  return first;
}

void TransferEngine::drain(SimTime to) {
  while (!flows_.empty()) {
    SimTime first = flows_.front().drained;
    for (const Flow& f : flows_) first = std::min(first, f.drained);
    if (first > to) break;
    for (const Flow& f : flows_) {
      if (f.drained > first) continue;
      const SimTime flight = to_sim_time(topology_->latency(*f.route));
      flying_.push_back({.arrives = first + flight, .tag = f.tag, .bytes = f.bytes});
    }
    std::erase_if(flows_, [&](const Flow& f) { return f.drained <= first; });
    share(first);
  }
  now_ = to;
}

std::vector<std::int64_t> TransferEngine::advance(SimTime now) {
  KVSIM_CHECK(now >= now_, "the clock goes back to {} ps", now.count());
  drain(now);
  std::sort(flying_.begin(), flying_.end(), [](const Flying& a, const Flying& b) {
    return std::tie(a.arrives, a.tag) < std::tie(b.arrives, b.tag);
  });
  std::vector<std::int64_t> tags;
  for (const Flying& f : flying_) {
    if (f.arrives > now) break;
    tags.push_back(f.tag);
    moved_ += f.bytes;
  }
  flying_.erase(flying_.begin(), flying_.begin() + std::ssize(tags));
  return tags;
}

/// Progressive filling: all rates rise together until a link is full; its transfers then keep their
/// rates and the others continue. Links are visited in order, so that the order of transfers does
/// not matter.
void TransferEngine::share(SimTime now) {
  const std::size_t links = topology_->links();
  std::vector<double> left(links);
  std::vector<std::int64_t> waiting(links);
  std::vector<double> rates(flows_.size(), -1);
  for (std::size_t l = 0; l < links; ++l) left[l] = topology_->link(l).bandwidth.count();
  for (const Flow& f : flows_) {
    for (const auto l : *f.route) ++waiting[l];
  }
  for (;;) {
    std::size_t full = links;
    double min = kInfinite;
    for (std::size_t l = 0; l < links; ++l) {
      if (waiting[l] == 0) continue;
      const double each = std::max(0.0, left[l]) / static_cast<double>(waiting[l]);
      if (each < min) {
        min = each;
        full = l;
      }
    }
    if (full == links) break;  // nothing bounds the rest
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      const auto& route = *flows_[i].route;
      if (rates[i] >= 0 || std::find(route.begin(), route.end(), full) == route.end()) continue;
      rates[i] = min;
      for (const auto l : route) {
        --waiting[l];
        left[l] -= min;
      }
    }
  }
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Flow& f = flows_[i];
    const double rate = rates[i] < 0 ? kInfinite : rates[i];
    if (rate == f.rate) continue;
    if (f.rate > 0) f.left -= f.rate * to_seconds(now - f.since).count();
    f.left = std::max(0.0, f.left);
    f.since = now;
    f.rate = rate;
    f.drained = f.left > 0 ? now + to_sim_time(Seconds{f.left / rate}) : now;
  }
}

double TransferEngine::rate(std::int64_t tag) const {
  for (const Flow& f : flows_) {
    if (f.tag == tag) return f.rate;
  }
  return 0;
}

double TransferEngine::load(Topology::LinkIndex link) const {
  double sum = 0;
  for (const Flow& f : flows_) {
    if (std::find(f.route->begin(), f.route->end(), link) != f.route->end()) sum += f.rate;
  }
  return sum;
}

}  // namespace kvsim
