#pragma once

// Inside of sim/serve: what joins the replicas of a service.

#include <vector>

#include "sim/network/topology.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

struct ServiceTopology {
  Topology topology;
  std::vector<Topology::PlaceIndex> replicas;  // decoding ones, then prefilling ones
  std::vector<Topology::PlaceIndex> hosts;     // the memory beside each replica's GPUs
  std::vector<Topology::PlaceIndex> nvmes;     // behind it; empty: there is none
  /// What moves between a replica's GPUs and its host, and between replicas, goes over one link.
  bool shares_host_links = false;
};

/// A place for each replica's GPUs, which all move equal shares at one time, its host memory over
/// PCIe or C2C, of which each GPU reaches `to_host`, and what joins replicas: a network of the
/// spec's link, one each way for a replica; without one the NVLinks of their GPUs to a switch, or
/// the PCIe that leads to their host, too, of which caches on their way reach as much.
/// Errors: InputError where no link is said and the replicas cannot stand in one node of 8 GPUs, or
/// of as many as an NVLink joins.
[[nodiscard]] ServiceTopology service_topology(const ServeSpec& spec, BytesPerSecond to_host);

}  // namespace kvsim
