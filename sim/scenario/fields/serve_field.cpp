#include "sim/scenario/fields/serve_field.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMostReplicas = 4096;
constexpr std::int64_t kMostProposed = 64;

const std::vector<std::string> kSchedulers{"static", "vllm-v1", "vllm-v0", "sglang", "trtllm"};
const std::vector<std::string> kOrders{"fcfs", "priority", "shortest-declared"};
const std::vector<std::string> kPolicies{"fcfs", "lpm", "guaranteed-no-evict", "max-utilization"};
const std::vector<std::string> kTiers{"host", "nvme"};
const std::vector<std::string> kRouters{"round-robin", "least-loaded", "prefix-aware"};

/// The position of a word among `words`, which stand in the order of their enumeration.
template <class Enum>
Enum read_word(const Field& field, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), field.choice(words));
  return static_cast<Enum>(found - words.begin());
}

Seconds read_bound(const Field& field) {
  const Seconds bound = field.duration();
  if (!(bound.count() > 0)) field.expected("a time above 0");
  return bound;
}

}  // namespace

std::string_view name_of(QueueOrder order) { return kOrders.at(static_cast<std::size_t>(order)); }
std::string_view name_of(RouterPolicy router) {
  return kRouters.at(static_cast<std::size_t>(router));
}

std::vector<Members> member_choices(const Field& field, std::string_view object) {
  std::vector<Members> all;
  for (const Field& item : field.one_or_more()) {
    if (object == "scheduler" && item.is_string()) {
      all.push_back({{"name", item}});
      continue;
    }
    const std::vector<std::string> keys = scenario_key_names(object);
    item.allow_only(keys);
    std::vector<Members> of_item{{}};
    for (const std::string& key : keys) {
      const auto member = item.find(key);
      if (!member) continue;
      std::vector<Members> longer;
      for (const Members& before : of_item) {
        for (const Field& value : member->one_or_more()) {
          longer.push_back(before);
          longer.back().emplace_back(key, value);
        }
      }
      of_item = std::move(longer);
      if (of_item.size() > kMostPoints) {
        item.fail(fmt::format("its lists make more than {} points", kMostPoints));
      }
    }
    all.insert(all.end(), of_item.begin(), of_item.end());
  }
  if (all.empty()) field.expected("at least one value");
  return all;
}

SchedulerSpec read_scheduler(const Members& members) {
  SchedulerSpec spec;
  for (const auto& [key, value] : members) {
    if (key == "name") spec.name = value.choice(kSchedulers);
    if (key == "order") spec.order = read_word<QueueOrder>(value, kOrders);
    if (key == "max_num_batched_tokens") {
      spec.max_num_batched_tokens = value.integer(1, kMostPointTokens);
    }
    if (key == "max_num_seqs") spec.max_num_seqs = value.integer(1, kMostPointTokens);
    if (key == "long_prefill_token_threshold") {
      spec.long_prefill_token_threshold = value.integer(1, kMostPointTokens);
    }
    if (key == "chunked_prefill") spec.chunked_prefill = value.boolean();
    if (key == "prefix_caching") spec.prefix_caching = value.boolean();
    if (key == "batch") spec.batch = value.integer(1, kMostBatch);
    if (key == "watermark") spec.watermark = value.number(0, 0.99);
    if (key == "swap") spec.swap = value.boolean();
    if (key == "policy") spec.policy = value.choice(kPolicies);
    if (key == "conservativeness") spec.conservativeness = value.number(0, 1000);
  }
  return spec;
}

ClusterSpec read_cluster(const Members& members) {
  ClusterSpec spec;
  for (const auto& [key, value] : members) {
    if (key == "replicas") {
      spec.replicas = static_cast<std::int32_t>(value.integer(1, kMostReplicas));
    }
    if (key == "router") spec.router = read_word<RouterPolicy>(value, kRouters);
    if (key == "prefill_replicas") {
      spec.prefill_replicas = static_cast<std::int32_t>(value.integer(0, kMostReplicas));
    }
    if (key == "link") {
      spec.link = value.bandwidth();
      if (!(spec.link.count() > 0)) value.expected("a bandwidth above 0");
    }
    if (key == "prefix_margin") spec.prefix_margin = value.integer(0, kMostPointTokens);
    if (key == "link_latency") {
      spec.link_latency = value.duration();
      if (!(spec.link_latency.count() >= 0)) value.expected("a time of at least 0");
    }
    if (key == "compress_before_transfer") spec.compress_before_transfer = value.boolean();
  }
  return spec;
}

SpeculationSpec read_speculation(const Members& members) {
  SpeculationSpec spec;
  for (const auto& [key, value] : members) {
    if (key == "draft") {
      try {
        spec.draft = &find_llm(value.string());
      } catch (const InputError& error) {
        value.fail(error.what());
      }
    }
    if (key == "tokens") {
      spec.tokens = static_cast<std::int32_t>(value.integer(1, kMostProposed));
    }
    if (key == "acceptance") spec.acceptance = value.number(0, 1);
  }
  return spec;
}

NvmeSpec read_nvme(const Field& field) {
  field.allow_only(scenario_key_names("nvme"));
  const auto rate = [&](std::string_view key) {
    const Field value = field.at(key);
    const BytesPerSecond bandwidth = value.bandwidth();
    if (!(bandwidth.count() > 0)) value.expected("a bandwidth above 0");
    return bandwidth;
  };
  const Field capacity = field.at("capacity");
  NvmeSpec spec{.capacity = capacity.bytes(), .read = rate("read"), .write = rate("write")};
  if (spec.capacity <= Bytes{}) capacity.expected("a size above 0");
  return spec;
}

OffloadSpec read_offload(const Field& field) {
  field.allow_only(scenario_key_names("offload"));
  OffloadSpec spec;
  spec.to = field.at("to").choice(kTiers) == "host" ? OffloadTier::kHost : OffloadTier::kNvme;
  if (const auto value = field.find("prefetch")) spec.prefetch = value->boolean();
  if (const auto value = field.find("reuse")) spec.reuse = value->number(0, 1);
  return spec;
}

SloSpec read_slo(const Field& field) {
  field.allow_only(scenario_key_names("slo"));
  SloSpec slo;
  if (const auto bound = field.find("ttft")) slo.ttft = read_bound(*bound);
  if (const auto bound = field.find("tpot")) slo.tpot = read_bound(*bound);
  if (const auto bound = field.find("e2e")) slo.e2e = read_bound(*bound);
  return slo;
}

}  // namespace kvsim
