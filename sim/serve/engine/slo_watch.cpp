#include "sim/serve/engine/slo_watch.hpp"

#include <algorithm>
#include <cmath>

#include "sim/serve/serve_metrics.hpp"

namespace kvsim {

std::size_t requests_of_share(double attained, std::size_t n) {
  constexpr double kRounding = 1e-9;  // 0.9 of 10 is 9
  return static_cast<std::size_t>(
      std::max(1.0, std::ceil(attained * static_cast<double>(n) - kRounding)));
}

SloWatch::SloWatch(const SloSpec& slo, double attained, std::size_t requests)
    : slo_{slo}, known_(requests) {
  const std::size_t wanted = requests_of_share(attained, requests);
  may_miss_ = requests > wanted ? requests - wanted : 0;
  arrived_.reserve(requests);
}

void SloWatch::miss(RequestId id) {
  if (known_[static_cast<std::size_t>(id)]) return;
  known_[static_cast<std::size_t>(id)] = true;
  ++missed_;
}

void SloWatch::ended(RequestId id, const RequestOutcome& outcome) {
  if (!keeps(slo_, outcome)) miss(id);
}

void SloWatch::look(const std::vector<RequestOutcome>& outcomes, SimTime now) {
  // A request that has waited longer than the bound misses it in any case. Others are evaluated
  // when they end.
  const auto pass = [&](std::size_t& next, const std::optional<Seconds>& bound, auto&& waits) {
    if (!bound) return;
    for (; next < arrived_.size(); ++next) {
      const RequestOutcome& one = outcomes[static_cast<std::size_t>(arrived_[next])];
      if (to_seconds(now - one.arrival).count() <= bound->count()) return;
      if (one.status == RequestStatus::kUnfinished && waits(one)) miss(arrived_[next]);
    }
  };
  pass(answered_, slo_.ttft, [](const RequestOutcome& one) { return one.first_token < SimTime{}; });
  pass(finished_, slo_.e2e, [](const RequestOutcome&) { return true; });
}

}  // namespace kvsim
