#include "sim/scenario/engine_field.hpp"

#include "sim/scenario/keys.hpp"

namespace kvsim {
namespace {
constexpr std::int32_t kMostExpertGpus = 1024;
}

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
  if (const auto given = field.find("memory_fraction")) {
    options.memory_fraction = given->number(0.01, 1);
  }
  if (const auto given = field.find("expert_parallel")) {
    options.expert_parallel = static_cast<std::int32_t>(given->integer(1, kMostExpertGpus));
  }
  if (const auto given = field.find("expert_imbalance")) {
    options.expert_imbalance = given->number(1, kMostExpertGpus);
  }
  if (const auto given = field.find("cuda_graphs")) options.cuda_graphs = given->boolean();
  size("weights", options.weights);
  size("non_torch", options.non_torch);
  size("activation", options.activation);
  size("graphs", options.graphs);
  return options;
}

}  // namespace kvsim
