#pragma once

// Internal to sim/serve: the links between the replicas of a service.

#include <vector>

#include "sim/network/topology.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

struct ServiceTopology {
  Topology topology;
  std::vector<Topology::PlaceIndex> replicas;  // decoding ones, then prefilling ones
  std::vector<Topology::PlaceIndex> hosts;     // the host memory of each replica
  std::vector<Topology::PlaceIndex> nvmes;     // behind it; empty: there is none
  /// What moves between a replica's GPUs and its host, and between replicas, goes over one link.
  bool shares_host_links = false;
};

/// A place for each replica's GPUs, which all move equal shares at the same time, and one for its
/// host memory over PCIe or C2C, of which each GPU reaches `to_host`. Replicas are joined by a
/// network of the spec's link, one in each direction per replica; without one, by the NVLinks of
/// their GPUs to a switch, or by the PCIe to their host, of which transferred caches reach the same
/// share. Errors: InputError if there is no link and the replicas do not fit into one node of 8
/// GPUs, or of as many as an NVLink domain joins.
[[nodiscard]] ServiceTopology service_topology(const ServeSpec& spec, BytesPerSecond to_host);

}  // namespace kvsim
