#pragma once

// Inside of sim/serve: what joins the replicas of a service.

#include <vector>

#include "sim/serve/serve_spec.hpp"
#include "sim/serve/topology.hpp"

namespace kvsim {

struct ServiceTopology {
  Topology topology;
  std::vector<Topology::PlaceIndex> replicas;  // decoding ones, then prefilling ones
  std::vector<Topology::PlaceIndex> hosts;     // the memory beside each replica's GPUs
  std::vector<Topology::PlaceIndex> nvmes;     // behind it; empty: there is none
  /// What moves between a replica's GPUs and its host, and between replicas, goes over one link.
  bool shares_host_links = false;
};

/// GPUs of one replica, and of all.
[[nodiscard]] std::int32_t gpus_per_replica(const ServeSpec& spec);
[[nodiscard]] std::int32_t service_gpus(const ServeSpec& spec);

/// Errors: InputError where a layer's experts cannot be shared out as `stack` says: a dense model,
/// more GPUs than experts, a number that does not go with the tensor-parallel one, GPUs that do not
/// stand in one node, a stack that has no such thing.
void check_expert_parallel(const Llm& llm, const Gpu& gpu, const Stack& stack,
                           std::int32_t tensor_parallel);

/// Whether one node has so many of the service's GPUs, joined: 8, or as many as an NVLink joins.
[[nodiscard]] bool stands_in_one_node(const ServeSpec& spec, std::int32_t gpus);

/// A place for each replica's GPUs, which all move equal shares at one time, its host memory over
/// PCIe or C2C, of which each GPU reaches `to_host`, and what joins replicas: a network of the
/// spec's link, one each way for a replica; without one the NVLinks of their GPUs to a switch, or
/// the PCIe that leads to their host, too, of which caches on their way reach as much.
/// Errors: InputError where no link is said and the replicas cannot stand in one node of 8 GPUs, or
/// of as many as an NVLink joins.
[[nodiscard]] ServiceTopology service_topology(const ServeSpec& spec, BytesPerSecond to_host);

}  // namespace kvsim
