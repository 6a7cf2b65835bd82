#pragma once

// Internal to sim/serve: the routes of tokens to experts on other nodes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/stack/stack.hpp"
#include "sim/network/topology.hpp"

namespace kvsim {

/// Number of connected GPUs of one node: 8, or the size of an NVLink domain.
[[nodiscard]] std::int32_t node_gpus(const Gpu& gpu);

/// GPUs that share a layer's experts, assigned node by node; the last node may have fewer. Each GPU
/// has an NVLink (or PCIe) to a switch of its node and a link to the network between nodes.
struct ExpertNetwork {
  Topology topology;
  std::vector<Topology::PlaceIndex> gpus;
  std::vector<std::int32_t> node_of;  // of each GPU
  std::int32_t nodes = 1;
};
/// `link` of one GPU, one direction; a single node needs no network. Errors: ContractError unless 1
/// <= n, and link is above 0 if there are several nodes.
[[nodiscard]] ExpertNetwork expert_network(const Gpu& gpu, std::int32_t n, BytesPerSecond link,
                                           Seconds latency);

/// One all-to-all over it, in which every GPU sends the same number of bytes to every other one.
/// Its time is linear: bytes that a GPU sends / rate + latency. All routes are used simultaneously,
/// and the link with the highest load relative to its bandwidth finishes last.
struct Exchange {
  BytesPerSecond rate{0.0};  // of the bytes that one GPU sends to all others
  Seconds latency{};         // of the longest route
  std::string slowest;       // link
};
/// Errors: ContractError for a single GPU, which sends nothing.
[[nodiscard]] Exchange all_to_all(const ExpertNetwork& network);

/// `stack` with the rate and the latency of its token exchanges, if its experts are on several
/// nodes and it has a link between them; otherwise `stack` unchanged.
[[nodiscard]] Stack with_expert_network(Stack stack, const Gpu& gpu);

/// Describes the network used for an exchange over several nodes; nullopt for one node.
[[nodiscard]] std::optional<std::string> describe_exchange(const Stack& stack, const Gpu& gpu);

/// Errors: InputError if a layer's experts cannot be distributed as `stack` specifies: a dense
/// model, more GPUs than experts, a number that does not match tensor parallelism, GPUs outside one
/// node, a stack without expert parallelism.
void check_expert_parallel(const Llm& llm, const Gpu& gpu, const Stack& stack,
                           std::int32_t tensor_parallel);

}  // namespace kvsim
