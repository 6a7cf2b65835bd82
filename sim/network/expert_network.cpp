#include "sim/network/expert_network.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {
constexpr std::int32_t kGpusPerNode = 8;  // DGX and HGX boards

bool spans_nodes(const Stack& stack, const Gpu& gpu) {
  return stack.expert_parallel > node_gpus(gpu) && stack.expert_link.count() > 0;
}
}  // namespace

std::int32_t node_gpus(const Gpu& gpu) {
  return gpu.nvlink ? std::min(gpu.nvlink_gpus.value_or(kGpusPerNode), kGpusPerNode) : kGpusPerNode;
}

ExpertNetwork expert_network(const Gpu& gpu, std::int32_t n, BytesPerSecond link, Seconds latency) {
  const std::int32_t node = node_gpus(gpu);
  ExpertNetwork out;
  out.nodes = (n + node - 1) / node;
  KVSIM_CHECK(n >= 1 && (out.nodes == 1 || link.count() > 0), "{} GPUs on {} nodes at {} B/s", n,
              out.nodes, link.count());
  Topology& t = out.topology;
  // Data sheets state NVLink for both directions together.
  const BytesPerSecond peers = gpu.nvlink ? *gpu.nvlink * 0.5 : gpu.pcie;
  Topology::PlaceIndex inside = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    if (i % node == 0) {
      inside =
          t.add(gpu.nvlink ? PlaceKind::kSwitch : PlaceKind::kHost,
                fmt::format("{} of node {}", gpu.nvlink ? "NVLink switch" : "PCIe root", i / node));
    }
    out.gpus.push_back(t.add(PlaceKind::kGpu, fmt::format("GPU {}", i)));
    out.node_of.push_back(i / node);
    t.join_both(out.gpus.back(), inside, peers, Seconds{}, gpu.nvlink ? "NVLink" : "PCIe");
  }
  if (out.nodes == 1) return out;
  // Added last, so that a node's own route is taken among equally short ones.
  const auto network = t.add(PlaceKind::kNetwork, "network");
  for (const Topology::PlaceIndex place : out.gpus) {
    // Each side has half of the latency.
    t.join_both(place, network, link, latency * 0.5, "network");
  }
  return out;
}

Exchange all_to_all(const ExpertNetwork& network) {
  const std::size_t n = network.gpus.size();
  KVSIM_CHECK(n > 1, "an exchange of {} GPU", n);
  const Topology& t = network.topology;
  Exchange out;
  double slowest = 0;
  // GPUs of a node are equal, and each receives as many bytes as it sends. So the first GPU and the
  // last, whose node may have fewer, represent all, and one path to a node represents those to all
  // of its GPUs.
  for (const std::size_t from : {std::size_t{0}, n - 1}) {
    std::vector<double> load(t.links());  // share of its sent bytes
    std::vector<Topology::LinkIndex> first(static_cast<std::size_t>(network.nodes), t.links());
    for (std::size_t to = 0; to < n; ++to) {
      if (to == from) continue;
      Topology::LinkIndex& link = first[static_cast<std::size_t>(network.node_of[to])];
      if (link == t.links()) {
        const auto route = t.route(network.gpus[from], network.gpus[to]);
        out.latency = std::max(out.latency, t.latency(route));
        link = route.front();
      }
      load[link] += 1.0 / static_cast<double>(n - 1);
    }
    for (Topology::LinkIndex l = 0; l < t.links(); ++l) {
      const double seconds = load[l] / t.link(l).bandwidth.count();
      if (seconds <= slowest) continue;
      slowest = seconds;
      out.slowest = t.link(l).name;
    }
  }
  out.rate = BytesPerSecond{1.0 / slowest};
  return out;
}

Stack with_expert_network(Stack stack, const Gpu& gpu) {
  if (!spans_nodes(stack, gpu)) return stack;
  const Exchange exchange = all_to_all(
      expert_network(gpu, stack.expert_parallel, stack.expert_link, stack.expert_link_latency));
  stack.exchange_rate = exchange.rate;
  stack.exchange_latency = stack.collective_latency + exchange.latency;
  return stack;
}

std::optional<std::string> describe_exchange(const Stack& stack, const Gpu& gpu) {
  if (!spans_nodes(stack, gpu)) return std::nullopt;
  const ExpertNetwork network =
      expert_network(gpu, stack.expert_parallel, stack.expert_link, stack.expert_link_latency);
  const Exchange exchange = all_to_all(network);
  return fmt::format(
      "experts over {} GPUs of {} nodes: tokens reach them and return in all-to-all exchanges "
      "limited by {} at {} per GPU with a latency of {}; bandwidth and latency are the nominal "
      "values of the scenario and the data sheet",
      stack.expert_parallel, network.nodes, exchange.slowest, exchange.rate,
      stack.collective_latency + exchange.latency);
}

namespace {

/// For prompts that are split over groups of GPUs: all groups share the experts.
void check_split_experts(const Llm& llm, const Gpu& gpu, const Stack& stack,
                         std::int32_t tensor_parallel) {
  const std::int32_t parts = stack.prefill_context;
  if (parts == 1) return;
  const std::int32_t all = tensor_parallel * parts;
  if (all > node_gpus(gpu)) {
    throw InputError{fmt::format(
        "engine: prefill_context_parallel: {} groups of {} GPUs do not fit into one node of {}: "
        "exchanges between nodes are not modelled",
        parts, tensor_parallel, node_gpus(gpu))};
  }
  if (stack.expert_parallel != 1 && stack.expert_parallel != all) {
    throw InputError{fmt::format(
        "engine: expert_parallel: expected 1, or the {} GPUs that prompts are split over, got {}",
        all, stack.expert_parallel)};
  }
  for (const LayerSpec& layer : llm.layers) {
    const std::int32_t width = layer.mlp.n_experts > 0 ? layer.mlp.d_ff : 0;
    if (stack.expert_parallel > 1 || width % all == 0) continue;
    throw InputError{fmt::format(
        "engine: prefill_context_parallel: {} GPUs cannot share the {} columns of an expert of {}",
        all, width, llm.name)};
  }
}

}  // namespace

void check_expert_parallel(const Llm& llm, const Gpu& gpu, const Stack& stack,
                           std::int32_t tensor_parallel) {
  const std::int32_t ranks = stack.expert_parallel;
  const auto refuse = [](const std::string& why) {
    throw InputError{fmt::format("engine: expert_parallel: {}", why)};
  };
  check_split_experts(llm, gpu, stack, tensor_parallel);
  if (ranks == 1) {
    if (stack.expert_imbalance != 1) {
      throw InputError{"engine: expert_imbalance: expected expert_parallel above 1"};
    }
    return;
  }
  if (stack.expert_imbalance > ranks) {
    throw InputError{
        fmt::format("engine: expert_imbalance: expected at most expert_parallel, {}, the value if "
                    "one GPU has all tokens; got {}",
                    ranks, stack.expert_imbalance)};
  }
  std::int32_t experts = 0;
  for (const LayerSpec& layer : llm.layers) experts = std::max(experts, layer.mlp.n_experts);
  if (experts == 0) refuse(fmt::format("{} is dense: it has no experts to distribute", llm.name));
  if (ranks > experts) {
    refuse(fmt::format("expected at most the {} experts of {}, got {}", experts, llm.name, ranks));
  }
  if (ranks % tensor_parallel != 0 && tensor_parallel % ranks != 0) {
    refuse(
        fmt::format("expected a multiple or a divisor of the {} GPUs of a tensor-parallel "
                    "group, got {}",
                    tensor_parallel, ranks));
  }
  if (ranks > node_gpus(gpu) && stack.expert_link.count() <= 0) {
    refuse(fmt::format(
        "{} {} do not fit into one node of {}: expected expert_link, a GPU's link to the "
        "network between nodes",
        ranks, gpu.name, node_gpus(gpu)));
  }
  if (stack.rounds_allocations && stack.growth != CacheGrowth::kPaged) {
    refuse(fmt::format("stack {} holds all experts on each GPU", stack.name));
  }
}

}  // namespace kvsim
