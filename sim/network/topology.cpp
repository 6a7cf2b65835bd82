#include "sim/network/topology.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/property_map/function_property_map.hpp>
#include <boost/range/iterator_range.hpp>
#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

/// Length of a route: its latency, then its links.
struct Length {
  SimTime latency;
  std::int64_t links = 0;
  friend auto operator<=>(const Length&, const Length&) = default;
};
Length operator+(const Length& a, const Length& b) {
  return {a.latency + b.latency, a.links + b.links};
}
constexpr Length kFar{SimTime{std::numeric_limits<std::int64_t>::max()}, 0};

}  // namespace

Topology::PlaceIndex Topology::add(PlaceKind kind, std::string name) {
  return boost::add_vertex(Place{.kind = kind, .name = std::move(name)}, graph_);
}

Topology::LinkIndex Topology::join(PlaceIndex from, PlaceIndex to, BytesPerSecond bandwidth,
                                   Seconds latency, const std::string& name) {
  KVSIM_CHECK(from < places() && to < places() && from != to, "a link from place {} to {}", from,
              to);
  KVSIM_CHECK(bandwidth.count() > 0 && latency.count() >= 0, "link {}: {} B/s, {} s", name,
              bandwidth.count(), latency.count());
  links_.push_back({.bandwidth = bandwidth,
                    .latency = latency,
                    .name = fmt::format("{} {} -> {}", name, place(from).name, place(to).name)});
  boost::add_edge(from, to, links_.size() - 1, graph_);
  return links_.size() - 1;
}

void Topology::join_both(PlaceIndex a, PlaceIndex b, BytesPerSecond bandwidth, Seconds latency,
                         const std::string& name) {
  (void)join(a, b, bandwidth, latency, name);
  (void)join(b, a, bandwidth, latency, name);
}

std::vector<Topology::LinkIndex> Topology::route(PlaceIndex from, PlaceIndex to) const {
  KVSIM_CHECK(from < places() && to < places(), "a way from place {} to {}", from, to);
  std::vector<PlaceIndex> before(places());
  std::vector<Length> lengths(places());
  const auto weight = boost::make_function_property_map<Graph::edge_descriptor>(
      [this](const Graph::edge_descriptor& e) -> Length {
        return {to_sim_time(links_[graph_[e]].latency), 1};
      });
  boost::dijkstra_shortest_paths(
      graph_, from,
      boost::predecessor_map(
          boost::make_iterator_property_map(before.begin(), get(boost::vertex_index, graph_)))
          .distance_map(
              boost::make_iterator_property_map(lengths.begin(), get(boost::vertex_index, graph_)))
          .weight_map(weight)
          .distance_inf(kFar)
          .distance_zero(Length{})
          .distance_compare(std::less<Length>{})
          .distance_combine([](const Length& a, const Length& b) { return a + b; }));
  std::vector<LinkIndex> route;
  for (PlaceIndex at = to; at != from; at = before[at]) {
    if (before[at] == at) {
      throw InputError{
          fmt::format("no link leads from {} to {}", place(from).name, place(to).name)};
    }
    // Of parallel links, the one that Dijkstra took: the shortest, then the first.
    LinkIndex best = links_.size();
    for (const auto& e : boost::make_iterator_range(boost::out_edges(before[at], graph_))) {
      if (boost::target(e, graph_) != at) continue;
      if (best == links_.size() || links_[graph_[e]].latency < links_[best].latency) {
        best = graph_[e];
      }
    }
    route.push_back(best);
  }
  std::reverse(route.begin(), route.end());
  return route;
}

Seconds Topology::latency(const std::vector<LinkIndex>& route) const {
  Seconds sum{};
  for (const LinkIndex l : route) sum += links_[l].latency;
  return sum;
}

}  // namespace kvsim
