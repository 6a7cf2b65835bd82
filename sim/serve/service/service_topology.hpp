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
  std::vector<Topology::PlaceIndex> nvmes;     // NVMe of each replica; empty: none
  /// Transfers between a replica's GPUs and its host use the same link as those between replicas.
  bool shares_host_links = false;
};

/// Returns a topology with one place for each replica's GPUs, which all move equal shares
/// simultaneously, and one for its host memory, connected by PCIe or C2C at `to_host` per GPU.
/// Replicas are connected by the spec's network link, one per direction and replica. Without one,
/// they are connected by their GPUs' NVLinks to a switch, or by PCIe to their host, of which
/// transferred caches reach the same share. Errors: InputError if there is no link and the replicas
/// do not fit into one node of 8 GPUs, or of the size of an NVLink domain.
[[nodiscard]] ServiceTopology service_topology(const ServeSpec& spec, BytesPerSecond to_host);

}  // namespace kvsim
