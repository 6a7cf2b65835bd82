#include "sim/serve/service/handoffs.hpp"

#include <algorithm>
#include <array>

#include "models/units/check.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {
constexpr int kKindsOfTraffic = 4;  // of one iteration: to the host and back, to NVMe and back
}

Handoffs::Handoffs(const ServeSpec& spec, std::span<const std::unique_ptr<Engine>> engines,
                   Bytes unit, BytesPerSecond to_host)
    : decoding_{engines.first(static_cast<std::size_t>(spec.cluster.replicas))},
      // Prefixes do not matter: a decoding replica caches none of another request's computation.
      router_{make_router(spec.cluster.router == RouterPolicy::kRoundRobin
                              ? RouterPolicy::kRoundRobin
                              : RouterPolicy::kLeastLoaded,
                          0)},
      unit_{unit},
      gpus_{gpus_per_replica(spec)},
      topology_{service_topology(spec, to_host)},
      transfers_{topology_.topology},
      pending_(decoding_.size()),
      waiting_(engines.size()),
      given_(decoding_.size()) {
  for (const auto& engine : engines) {
    continuous_.push_back(dynamic_cast<ContinuousEngine*>(engine.get()));
    KVSIM_CHECK(continuous_.back() != nullptr, "caches of static batches do not move");
  }
}

void Handoffs::take(std::size_t prefilling, SimTime now) {
  for (const RequestId id : engine(prefilling).take_prefilled()) {
    const std::size_t to = router_->choose(id, decoding_);
    engine(to).promise(1);
    ++given_[to];
    pending_[to].push_back({.id = id, .from = prefilling, .since = now});
    move(to, now);
  }
}

void Handoffs::move(std::size_t decoding, SimTime now) {
  auto& line = pending_[decoding];
  while (!line.empty()) {
    const Pending p = line.front();
    const std::int64_t units = engine(p.from).leaving_units(p.id);
    if (!engine(decoding).reserve(p.id, units)) return;
    line.pop_front();
    const Bytes bytes = unit_ * units;
    moves_.push_back({.id = p.id, .from = p.from, .to = decoding, .since = now, .bytes = bytes});
    waited_.push_back(now - p.since);
    transfers_.start(now, topology_.replicas[p.from], topology_.replicas[decoding], bytes, p.id);
  }
}

bool Handoffs::waits(std::size_t i, SimTime now, SimTime ends) {
  if (!topology_.shares_host_links) return false;
  const SwapTraffic of_gpu = engine(i).take_host_traffic();
  if (of_gpu.total() == Bytes{}) return false;
  const Topology::PlaceIndex gpus = topology_.replicas[i], host = topology_.hosts[i];
  const Topology::PlaceIndex nvme = topology_.nvmes.empty() ? host : topology_.nvmes[i];
  struct Part {
    Topology::PlaceIndex from, to;
    Bytes bytes;
  };
  const std::array<Part, kKindsOfTraffic> parts{
      Part{gpus, host, of_gpu.host - of_gpu.back}, Part{host, gpus, of_gpu.back},
      Part{gpus, nvme, of_gpu.to_nvme}, Part{nvme, gpus, of_gpu.from_nvme}};
  waiting_[i] = {.transfers = 0, .took = ends - now};
  for (std::size_t kind = 0; kind < parts.size(); ++kind) {
    const Part& part = parts[kind];
    if (part.bytes == Bytes{}) continue;
    // Tags from 0 upwards are those of requests.
    const auto tag = static_cast<std::int64_t>(kKindsOfTraffic * i + kind);
    transfers_.start(now, part.from, part.to, part.bytes * std::int64_t{gpus_}, -1 - tag);
    ++waiting_[i].transfers;
  }
  return true;
}

std::optional<SimTime> Handoffs::next() const {
  std::optional<SimTime> out = transfers_.next();
  for (const Early& one : early_) out = std::min(out.value_or(one.until), one.until);
  return out;
}

void Handoffs::hand_over(RequestId id, std::vector<std::size_t>& touched) {
  const auto move =
      std::find_if(moves_.begin(), moves_.end(), [&](const Move& m) { return m.id == id; });
  KVSIM_CHECK(move != moves_.end(), "request {} was not awaited", id);
  engine(move->from).leave(id);
  engine(move->to).receive(id);
  engine(move->to).promise(-1);
  touched.push_back(move->from);
  touched.push_back(move->to);
  moves_.erase(move);
}

std::vector<std::size_t> Handoffs::arrivals(SimTime now) {
  std::vector<std::size_t> touched;
  for (const Early& one : std::exchange(early_, {})) {
    one.until > now ? early_.push_back(one) : hand_over(one.id, touched);
  }
  for (const std::int64_t tag : transfers_.advance(now)) {
    if (tag < 0) {
      const auto i = static_cast<std::size_t>((-1 - tag) / kKindsOfTraffic);
      if (--waiting_[i].transfers == 0) unblocked_.push_back({i, waiting_[i].took});
      continue;
    }
    const auto move = std::find_if(moves_.begin(), moves_.end(),
                                   [&](const Move& m) { return std::int64_t{m.id} == tag; });
    KVSIM_CHECK(move != moves_.end(), "request {} was not awaited", tag);
    took_.push_back(now - move->since);
    moved_ += move->bytes;
    const SimTime first = engine(move->from).first_token(move->id);
    first > now ? early_.push_back({first, move->id}) : hand_over(move->id, touched);
  }
  return touched;
}

void Handoffs::report(ServeResult& out) {
  out.transfers = std::ssize(took_);
  out.transferred = moved_;
  out.transfer = distribution_of(took_);
  out.transfer_wait = distribution_of(waited_);
}

}  // namespace kvsim
