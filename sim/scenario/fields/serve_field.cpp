#include "sim/scenario/fields/serve_field.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/fields/distinct.hpp"
#include "sim/scenario/fields/key_value.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
std::string_view name_of(QueueOrder order) {
  static const std::vector<std::string> names = names_of(scenario_key("scheduler", "order").type);
  return names.at(static_cast<std::size_t>(order));
}
std::string_view name_of(RouterPolicy router) {
  static const std::vector<std::string> names = names_of(scenario_key("cluster", "router").type);
  return names.at(static_cast<std::size_t>(router));
}

namespace {

const Llm& draft_model(const Field& draft) {
  try {
    return find_llm(draft.string());
  } catch (const InputError& error) {
    draft.fail(error.what());
  }
}

/// Returns the same text for all spellings of a member's value.
std::string canonical_text(const ScenarioKey& key, const Field& value) {
  if (key.name == "draft" && value.is_string() && !find_proposer(value.string())) {
    return draft_model(value).name;
  }
  return canonical_value(value.raw()).dump();
}

/// Returns the same text for all spellings of a choice.
std::string canonical_choice(const Members& members, std::string_view object) {
  std::map<std::string_view, std::string> values;
  for (const auto& [name, value] : members) {
    const ScenarioKey& key = scenario_key(object, name);
    values[key.alias_of.empty() ? key.name : key.alias_of] = canonical_text(key, value);
  }
  return fmt::format("{}", fmt::join(values, " "));
}

}  // namespace

std::vector<Members> member_choices(const Field& field, std::string_view object) {
  std::vector<Members> all;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    if (object == "scheduler" && item.is_string()) {
      all.push_back({{"name", item}});
      distinct.add(canonical_choice(all.back(), object), item);
      continue;
    }
    const std::vector<std::string> keys = scenario_key_names(object);
    item.allow_only(keys);
    std::vector<Members> of_item{{}};
    for (const std::string& key : keys) {
      const auto member = item.find(key);
      if (!member) continue;
      std::vector<Members> longer;
      const std::vector<Field> values = member->one_or_more();
      DistinctValues of_member;
      for (const Field& value : values) {
        of_member.add(canonical_text(scenario_key(object, key), value), value);
      }
      for (const Members& before : of_item) {
        for (const Field& value : values) {
          longer.push_back(before);
          longer.back().emplace_back(key, value);
        }
      }
      of_item = std::move(longer);
      if (of_item.size() > kMaxPoints) {
        item.fail(fmt::format("its lists make more than {} points", kMaxPoints));
      }
    }
    for (Members& members : of_item) {
      distinct.add(canonical_choice(members, object), item);
      all.push_back(std::move(members));
    }
  }
  if (all.empty()) field.expected("at least one value");
  return all;
}

namespace {

/// Sets the engine's keys for which the object named `object` has aliases.
void read_aliases(const Members& members, std::string_view object, StackOptions& engine) {
  for (const auto& [name, value] : members) {
    const ScenarioKey& key = scenario_key(object, name);
    if (key.alias_of.empty()) continue;
    auto& setting = engine.*std::get<std::optional<std::int64_t> StackOptions::*>(key.sets);
    const std::int64_t given = read_integer(value, object, name);
    if (setting.value_or(given) != given) {
      value.fail(
          fmt::format("{}, and {} is {}: they are one setting", given, key.alias_of, *setting));
    }
    setting = given;
  }
}

}  // namespace

SchedulerSpec read_scheduler(const Members& members, StackOptions& engine) {
  constexpr std::string_view kObject = "scheduler";
  SchedulerSpec spec;
  for (const auto& member : members) {
    const auto& key = member.first;
    const auto& value = member.second;
    const auto count = [&](std::string_view name, auto& to) {
      if (key == name) to = read_integer(value, kObject, name);
    };
    const auto flag = [&](std::string_view name, auto& to) {
      if (key == name) to = value.boolean();
    };
    if (key == "name") spec.name = read_name(value, kObject, key);
    if (key == "order") spec.order = read_enum<QueueOrder>(value, kObject, key);
    count("long_prefill_token_threshold", spec.long_prefill_token_threshold);
    flag("chunked_prefill", spec.chunked_prefill);
    flag("reserve_full_isl", spec.reserve_full_isl);
    flag("prefix_caching", spec.prefix_caching);
    count("batch", spec.batch);
    if (key == "watermark") spec.watermark = read_number(value, kObject, key);
    flag("swap", spec.swap);
    if (key == "policy") spec.policy = read_name(value, kObject, key);
    if (key == "conservativeness") spec.conservativeness = read_number(value, kObject, key);
    count("max_prefill_tokens", spec.max_prefill_tokens);
    flag("mixed_chunk", spec.mixed_chunk);
  }
  read_aliases(members, kObject, engine);
  spec.max_num_seqs = engine.max_num_seqs;
  spec.max_num_batched_tokens = engine.prefill_chunk;
  return spec;
}

ClusterSpec read_cluster(const Members& members) {
  constexpr std::string_view kObject = "cluster";
  ClusterSpec spec;
  const auto count = [&](const Field& value, std::string_view key) {
    return static_cast<std::int32_t>(read_integer(value, kObject, key));
  };
  for (const auto& [key, value] : members) {
    if (key == "replicas") spec.replicas = count(value, key);
    if (key == "router") spec.router = read_enum<RouterPolicy>(value, kObject, key);
    if (key == "prefill_replicas") spec.prefill_replicas = count(value, key);
    if (key == "link") spec.link = read_bandwidth(value, kObject, key);
    if (key == "prefix_margin") spec.prefix_margin = read_integer(value, kObject, key);
    if (key == "link_latency") spec.link_latency = read_time(value, kObject, key);
    if (key == "compress_before_transfer") spec.compress_before_transfer = value.boolean();
  }
  return spec;
}

SpeculationSpec read_speculation(const Members& members) {
  constexpr std::string_view kObject = "speculation";
  SpeculationSpec spec;
  for (const auto& [key, value] : members) {
    if (key == "draft") {
      if (const auto proposer = find_proposer(value.string())) {
        spec.proposer = *proposer;
        continue;
      }
      spec.draft = &draft_model(value);
    }
    if (key == "tokens") {
      spec.tokens = static_cast<std::int32_t>(read_integer(value, kObject, key));
    }
    if (key == "steps") {
      spec.steps = static_cast<std::int32_t>(read_integer(value, kObject, key));
    }
    if (key == "topk") spec.topk = static_cast<std::int32_t>(read_integer(value, kObject, key));
    if (key == "acceptance") spec.acceptance = read_number(value, kObject, key);
  }
  return spec;
}

NvmeSpec read_nvme(const Field& field) {
  const KeyReader nvme{field, "nvme"};
  return {.capacity = read_size(nvme.at("capacity"), "nvme", "capacity"),
          .read = read_bandwidth(nvme.at("read"), "nvme", "read"),
          .write = read_bandwidth(nvme.at("write"), "nvme", "write")};
}

ServiceCalibration read_bench(const Field& field) {
  const KeyReader bench{field, "bench"};
  const auto error = [&](std::string_view key) { return read_number(bench.at(key), "bench", key); };
  const double prompt = bench.number("prompt_factor").value_or(1);
  return {.times = {.decode = bench.number("decode_factor").value_or(1),
                    .prefill = prompt,
                    .front_end = 1,
                    .request = Seconds{bench.number("request_s").value_or(0)},
                    .sequence = Seconds{bench.number("sequence_s").value_or(0)}},
          .ttft_error = error("ttft_error"),
          .tpot_error = error("tpot_error"),
          .e2e_error = error("e2e_error"),
          .throughput_error = error("throughput_error"),
          .runs = bench.integer("runs").value_or(1)};
}

OffloadSpec read_offload(const Field& field) {
  const KeyReader offload{field, "offload"};
  OffloadSpec spec;
  spec.to = read_name(offload.at("to"), "offload", "to") == "host" ? OffloadTier::kHost
                                                                   : OffloadTier::kNvme;
  if (const auto prefetch = offload.boolean("prefetch")) spec.prefetch = *prefetch;
  if (const auto reuse = offload.number("reuse")) spec.reuse = *reuse;
  return spec;
}

SloSpec read_slo(const Field& field) {
  const KeyReader slo{field, "slo"};
  SloSpec spec{.ttft = slo.time("ttft"), .tpot = slo.time("tpot"), .e2e = slo.time("e2e")};
  if (const auto percentile = slo.integer("percentile")) {
    spec.percentile = static_cast<int>(*percentile);
    if (shown_percentile(*spec.percentile / 100.0) != *spec.percentile) {
      slo.at("percentile").expected("50, 90, 95 or 99");
    }
  }
  return spec;
}

}  // namespace kvsim
