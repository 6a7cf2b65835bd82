#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A separate pool for layers of one kind.
struct EnginePool {
  std::string kind;  // "full", "window", "gated-delta", …
  std::int32_t layers = 0;
  std::int64_t window = 0;  // tokens that a layer attends to; 0: all
  bool holds_states = false;
  std::int64_t capacity = 0;  // in tokens; for states, in slots
  Bytes unit{};               // of a token or a slot, in all its layers

  [[nodiscard]] Bytes bytes() const { return unit * capacity; }
  /// Units of a request of `tokens` tokens.
  [[nodiscard]] std::int64_t request(std::int64_t tokens, std::int64_t slots) const;
};

/// Pools of an engine with a separate pool for each kind of layer.
struct EnginePools {
  std::vector<EnginePool> pools;
  std::int64_t slots = 1;  // states that a running request may own

  /// Tokens of the pool that holds entire sequences, else of the first pool.
  [[nodiscard]] std::int64_t tokens() const;
  /// Number of requests of `tokens` tokens that all pools hold simultaneously.
  [[nodiscard]] double concurrency(std::int64_t tokens) const;
  [[nodiscard]] Bytes request_bytes(std::int64_t tokens) const;
  /// Number of requests that the pool of states holds, at least 1; 0: there is no such pool.
  [[nodiscard]] std::int64_t max_states() const;
};

/// SGLang's pools from `available` bytes. States and the rest share it 0.9 : 1, in whole slots of
/// which one is set aside, or states get the configured number of slots. Of the rest, layers with a
/// window get room for 0.8 tokens per token of full layers, in releases and models with such a
/// pool; else their tokens are in the pool of the full layers. Sources: sglang
/// model_executor/model_runner_kv_cache_mixin.py (_handle_max_mamba_cache, _calculate_mamba_ratio,
/// set_num_tokens_hybrid_swa), server_args.py (mamba_full_memory_ratio 0.9, swa_full_tokens_ratio
/// 0.8).
struct SglangPoolSettings {
  Dtype kv_dtype = Dtype::kBf16;
  std::int64_t state_slots = 1;      // that a running request may own
  std::int64_t state_sequences = 0;  // slots of all requests; 0: by memory
  bool window_pools = true;
  std::int64_t page_tokens = 1;
};
[[nodiscard]] EnginePools sglang_pools(const Llm& shard, const SglangPoolSettings& settings,
                                       Bytes available);

/// TensorRT-LLM's pools: states first, one slot for each of `max_num_seqs` sequences. The rest is
/// divided in proportion to window times bytes per token, with max_model_len for full layers, in
/// whole blocks. Sources: TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp
/// (calculateMaxNumBlocks, calculateWindowSizeShare), _torch/pyexecutor/mamba_cache_manager.py.
struct TrtllmPoolSettings {
  Dtype kv_dtype = Dtype::kBf16;
  std::int64_t max_num_seqs = 1;
  std::int64_t max_model_len = 1;
  std::int64_t block_tokens = 32;
};
[[nodiscard]] EnginePools trtllm_pools(const Llm& shard, const TrtllmPoolSettings& settings,
                                       Bytes available);

}  // namespace kvsim
