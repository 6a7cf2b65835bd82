#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "sim/network/topology.hpp"

namespace kvsim {

/// Transfers that share the links of a topology max-min fairly: none can become faster unless one
/// that is not faster becomes slower. Rates are those of progressive filling and change when a
/// transfer starts or its last byte leaves. Bytes arrive after the route's latency, during which
/// they occupy no link. A fluid model: no packets, no slow start, no protocol. Times are whole
/// picoseconds, and a transfer's end is recomputed only when its rate changes. So neither the order
/// of simultaneous starts nor events on other links change it. Source: Bertsekas and Gallager, Data
/// Networks, section 6.5.2.
class TransferEngine {
 public:
  /// The topology is not owned and must outlive this object.
  explicit TransferEngine(const Topology& topology) : topology_{&topology} {}
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Starts moving `bytes`; `tag` identifies the transfer among those in flight.
  /// Errors: ContractError for a time before the last call's, bytes below 0, or a tag in use;
  /// InputError if there is no route.
  void start(SimTime now, Topology::PlaceIndex from, Topology::PlaceIndex to, Bytes bytes,
             std::int64_t tag);
  /// Returns when the next last byte leaves or arrives; nullopt if nothing is in flight.
  [[nodiscard]] std::optional<SimTime> next() const;
  /// Advances the clock to `now`. Returns the tags of transfers that have arrived since, ordered by
  /// (arrival, tag).
  [[nodiscard]] std::vector<std::int64_t> advance(SimTime now);

  [[nodiscard]] std::size_t under_way() const { return flows_.size() + flying_.size(); }
  /// Bytes per second of a transfer that is still sending; 0 if all of it is sent.
  [[nodiscard]] double rate(std::int64_t tag) const;
  /// Sum of the rates on a link.
  [[nodiscard]] double load(Topology::LinkIndex link) const;
  [[nodiscard]] std::int64_t moved() const { return moved_; }  // bytes that have arrived

 private:
  struct Flow {
    std::int64_t tag = 0;
    std::int64_t bytes = 0;
    const std::vector<Topology::LinkIndex>* route = nullptr;
    double left = 0;  // bytes, at `since`
    double rate = -1;
    SimTime since{};
    SimTime drained{};  // when its last byte leaves, at this rate
  };
  struct Flying {
    SimTime arrives{};
    std::int64_t tag = 0;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] const std::vector<Topology::LinkIndex>& route(Topology::PlaceIndex from,
                                                              Topology::PlaceIndex to);
  /// Sends bytes until `to`; rates may change before that.
  void drain(SimTime to);
  void share(SimTime now);

  const Topology* topology_;
  std::map<std::pair<Topology::PlaceIndex, Topology::PlaceIndex>, std::vector<Topology::LinkIndex>>
      routes_;
  std::vector<Flow> flows_;     // in order of tag
  std::vector<Flying> flying_;  // sent, but not yet arrived
  SimTime now_{};
  std::int64_t moved_ = 0;
};

}  // namespace kvsim
