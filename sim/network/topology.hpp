#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <boost/graph/adjacency_list.hpp>

#include "models/units/units.hpp"

namespace kvsim {

enum class PlaceKind : std::uint8_t { kGpu, kSwitch, kHost, kNetwork, kNvme };

struct Place {
  PlaceKind kind = PlaceKind::kGpu;
  std::string name;
};

/// One direction of a connection. If an engine has several GPUs that all move equal shares at the
/// same time, one place represents them and its links have their combined bandwidth.
struct Link {
  BytesPerSecond bandwidth{0.0};
  Seconds latency{};
  std::string name;  // "nvlink gpu0 -> switch"
};

/// Places that can hold caches, and the links between them.
class Topology {
 public:
  using PlaceIndex = std::size_t;
  using LinkIndex = std::size_t;

  PlaceIndex add(PlaceKind kind, std::string name);
  /// Errors: ContractError unless the bandwidth is above 0 (or infinite) and the latency at least
  /// 0.
  LinkIndex join(PlaceIndex from, PlaceIndex to, BytesPerSecond bandwidth, Seconds latency,
                 const std::string& name);
  /// Adds one link per direction, each with this bandwidth.
  void join_both(PlaceIndex a, PlaceIndex b, BytesPerSecond bandwidth, Seconds latency,
                 const std::string& name);

  [[nodiscard]] std::size_t places() const { return boost::num_vertices(graph_); }
  [[nodiscard]] const Place& place(PlaceIndex at) const { return graph_[at]; }
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] const Link& link(LinkIndex at) const { return links_[at]; }

  /// Returns the links from one place to another: the route with the least latency, then the fewest
  /// links, then the places added first. Empty if both are the same place.
  /// Errors: InputError that names both if there is no route.
  [[nodiscard]] std::vector<LinkIndex> route(PlaceIndex from, PlaceIndex to) const;
  [[nodiscard]] Seconds latency(const std::vector<LinkIndex>& route) const;

 private:
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, Place, LinkIndex>;
  Graph graph_;
  std::vector<Link> links_;
};

}  // namespace kvsim
