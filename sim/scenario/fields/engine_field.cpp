#include "sim/scenario/fields/engine_field.hpp"

#include "sim/scenario/fields/key_value.hpp"

namespace kvsim {

StackOptions read_engine(const Field& field) {
  const KeyReader engine{field, "engine"};
  StackOptions options;
  if (const auto length = engine.find("max_model_len"); length && length->is_string()) {
    if (length->string() != "workload") length->expected("tokens, or \"workload\"");
    options.longest_request = true;
  } else {
    options.max_model_len = engine.integer("max_model_len");
  }
  options.max_num_seqs = engine.integer("max_num_seqs");
  options.prefill_chunk = engine.integer("prefill_chunk");
  options.block_tokens = engine.integer("block_tokens");
  if (const auto blocks = engine.name("kv_blocks")) options.per_head_blocks = *blocks == "per-head";
  if (const auto how = engine.name("compaction")) options.lazy_compaction = *how == "lazy";
  options.memory_fraction = engine.number("memory_fraction");
  if (const auto gpus = engine.integer("expert_parallel")) {
    options.expert_parallel = static_cast<std::int32_t>(*gpus);
  }
  options.expert_imbalance = engine.number("expert_imbalance");
  options.expert_link = engine.bandwidth("expert_link");
  options.expert_link_latency = engine.time("expert_link_latency");
  options.cuda_graphs = engine.boolean("cuda_graphs");
  options.weights = engine.size("weights");
  options.non_torch = engine.size("non_torch");
  options.activation = engine.size("activation");
  options.graphs = engine.size("graphs");
  return options;
}

}  // namespace kvsim
