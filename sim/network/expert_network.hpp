#pragma once

// Inside of sim/serve: the way that tokens take to experts on other nodes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/stack/stack.hpp"
#include "sim/network/topology.hpp"

namespace kvsim {

/// GPUs of one node that are joined: 8, or as many as an NVLink joins.
[[nodiscard]] std::int32_t node_gpus(const Gpu& gpu);

/// GPUs that share out a layer's experts, node by node, the last node with what is left: each GPU
/// has an NVLink (or PCIe) to a switch of its node and a link to the network between nodes.
struct ExpertNetwork {
  Topology topology;
  std::vector<Topology::PlaceIndex> gpus;
  std::vector<std::int32_t> node_of;  // of each GPU
  std::int32_t nodes = 1;
};
/// `link` of one GPU, one direction; of one node no network is needed. Errors: ContractError
/// unless 1 <= n, and link is above 0 where there are several nodes.
[[nodiscard]] ExpertNetwork expert_network(const Gpu& gpu, std::int32_t n, BytesPerSecond link,
                                           Seconds latency);

/// One all-to-all over it, in which every GPU has as much for each other one. Its time is linear:
/// bytes that a GPU sends / rate + latency. All ways are used at one time, and the link with most
/// to carry for its bandwidth ends last.
struct Exchange {
  BytesPerSecond rate{0.0};  // of the bytes that one GPU sends to all others
  Seconds latency{};         // of the longest way
  std::string slowest;       // link
};
/// Errors: ContractError of a single GPU, which sends nothing.
[[nodiscard]] Exchange all_to_all(const ExpertNetwork& network);

/// `stack` with the rate and the latency of its token exchanges, if its experts are on several
/// nodes and it has a link between them; otherwise `stack` unchanged.
[[nodiscard]] Stack with_expert_network(Stack stack, const Gpu& gpu);

/// What an exchange over several nodes is reckoned with, in words; nullopt: one node.
[[nodiscard]] std::optional<std::string> describe_exchange(const Stack& stack, const Gpu& gpu);

/// Errors: InputError if a layer's experts cannot be distributed as `stack` says: a dense model,
/// more GPUs than experts, a number that does not match tensor parallelism, GPUs outside one node,
/// a stack without expert parallelism.
void check_expert_parallel(const Llm& llm, const Gpu& gpu, const Stack& stack,
                           std::int32_t tensor_parallel);

}  // namespace kvsim
