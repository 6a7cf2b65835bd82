#include "sim/serve/serve_spec.hpp"

#include "sim/network/expert_network.hpp"

namespace kvsim {

std::int32_t gpus_per_replica(const ServeSpec& spec) {
  return spec.tensor_parallel * spec.pipeline_parallel;
}

std::int32_t service_gpus(const ServeSpec& spec) {
  return gpus_per_replica(spec) * (spec.cluster.replicas + spec.cluster.prefill_replicas);
}

bool stands_in_one_node(const ServeSpec& spec, std::int32_t gpus) {
  return gpus <= node_gpus(*spec.gpu);
}

}  // namespace kvsim
