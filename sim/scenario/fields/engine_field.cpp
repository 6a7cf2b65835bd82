#include "sim/scenario/fields/engine_field.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {
constexpr std::int32_t kMostExpertGpus = 1024;
const std::vector<std::string> kBlocks{"across-heads", "per-head"};
const std::vector<std::string> kCompactions{"at-once", "lazy"};
}  // namespace

StackOptions read_engine(const Field& field) {
  field.allow_only(scenario_key_names("engine"));
  StackOptions options;
  const auto count = [&](std::string_view key, std::optional<std::int64_t>& value) {
    if (const auto given = field.find(key)) value = given->integer(1, kMostPointTokens);
  };
  const auto size = [&](std::string_view key, std::optional<Bytes>& value) {
    const auto given = field.find(key);
    if (!given) return;
    value = given->bytes();
    if (*value < Bytes{}) given->expected("a size of at least 0");
  };
  if (const auto given = field.find("max_model_len"); given && given->is_string()) {
    if (given->string() != "workload") given->expected("tokens, or \"workload\"");
    options.longest_request = true;
  } else {
    count("max_model_len", options.max_model_len);
  }
  count("max_num_seqs", options.max_num_seqs);
  count("prefill_chunk", options.prefill_chunk);
  count("block_tokens", options.block_tokens);
  if (const auto given = field.find("kv_blocks")) {
    options.per_head_blocks = given->choice(kBlocks) == "per-head";
  }
  if (const auto given = field.find("compaction")) {
    options.lazy_compaction = given->choice(kCompactions) == "lazy";
  }
  if (const auto given = field.find("memory_fraction")) {
    options.memory_fraction = given->number(0.01, 1);
  }
  if (const auto given = field.find("expert_parallel")) {
    options.expert_parallel = static_cast<std::int32_t>(given->integer(1, kMostExpertGpus));
  }
  if (const auto given = field.find("expert_imbalance")) {
    options.expert_imbalance = given->number(1, kMostExpertGpus);
  }
  if (const auto given = field.find("expert_link")) {
    options.expert_link = given->bandwidth();
    if (!(options.expert_link->count() > 0)) given->expected("a bandwidth above 0");
  }
  if (const auto given = field.find("expert_link_latency")) {
    options.expert_link_latency = given->duration();
    if (!(options.expert_link_latency->count() >= 0)) given->expected("a time of at least 0");
  }
  if (const auto given = field.find("cuda_graphs")) options.cuda_graphs = given->boolean();
  size("weights", options.weights);
  size("non_torch", options.non_torch);
  size("activation", options.activation);
  size("graphs", options.graphs);
  return options;
}

}  // namespace kvsim
