#include "sim/serve/service/service_topology.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/network/expert_network.hpp"

namespace kvsim {

ServiceTopology service_topology(const ServeSpec& spec, BytesPerSecond to_host) {
  const Gpu& gpu = *spec.gpu;
  const ClusterSpec& cluster = spec.cluster;
  const auto width = static_cast<double>(gpus_per_replica(spec));
  ServiceTopology out;
  Topology& t = out.topology;
  const BytesPerSecond no_bound{std::numeric_limits<double>::infinity()};
  out.shares_host_links = cluster.link.count() <= 0 && !gpu.nvlink && !gpu.c2c;
  std::vector<Topology::PlaceIndex> ends;  // start of the links from a replica's GPUs to its host
  for (std::int32_t i = 0; i < cluster.replicas + cluster.prefill_replicas; ++i) {
    out.replicas.push_back(t.add(PlaceKind::kGpu, fmt::format("GPUs of replica {}", i)));
    out.hosts.push_back(t.add(PlaceKind::kHost, fmt::format("host of replica {}", i)));
    ends.push_back(out.hosts.back());
    if (out.shares_host_links) {
      ends.back() = t.add(PlaceKind::kSwitch, fmt::format("PCIe port of replica {}", i));
      t.join_both(ends.back(), out.hosts.back(), no_bound, Seconds{}, "root");
    }
    t.join_both(out.replicas.back(), ends.back(), to_host * width, Seconds{},
                gpu.c2c ? "C2C" : "PCIe");
    if (spec.nvme.capacity <= Bytes{}) continue;
    out.nvmes.push_back(t.add(PlaceKind::kNvme, fmt::format("NVMe of replica {}", i)));
    (void)t.join(out.hosts.back(), out.nvmes.back(), spec.nvme.write, Seconds{}, "write");
    (void)t.join(out.nvmes.back(), out.hosts.back(), spec.nvme.read, Seconds{}, "read");
  }
  if (cluster.link.count() > 0) {
    const auto network = t.add(PlaceKind::kNetwork, "network");
    // Each side has half of the latency.
    for (const auto replica : out.replicas) {
      t.join_both(replica, network, cluster.link, cluster.link_latency * 0.5, "network");
    }
    return out;
  }
  if (!is_in_one_node(spec, service_gpus(spec))) {
    throw InputError{fmt::format(
        "cluster: link: expected a bandwidth (key /cluster/link, such as \"50 GB/s\"), because {} "
        "GPUs do not fit into one node of {} {}",
        service_gpus(spec), node_gpus(gpu), gpu.name)};
  }
  const auto middle = t.add(gpu.nvlink ? PlaceKind::kSwitch : PlaceKind::kHost,
                            gpu.nvlink ? "NVLink switch" : "PCIe root");
  if (out.shares_host_links) {
    for (const auto end : ends) {
      t.join_both(end, middle, no_bound, cluster.link_latency * 0.5, "root");
    }
    return out;
  }
  // Data sheets state NVLink for both directions together.
  const BytesPerSecond one_way = gpu.nvlink ? *gpu.nvlink * 0.5 : gpu.pcie;
  for (const auto replica : out.replicas) {
    t.join_both(replica, middle, one_way * width, cluster.link_latency * 0.5,
                gpu.nvlink ? "NVLink" : "PCIe");
  }
  return out;
}

}  // namespace kvsim
