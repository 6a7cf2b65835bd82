#pragma once

// Memory, shape and additional bytes of decode attention for tests of caches.

#include "kernels/decode/decode_attention.hpp"
#include "tests/kernels/graph_of.hpp"

namespace kvsim::test {

/// Outputs and scratch of an attention.
struct AttentionMemory {
  Buffer<on_sim::kv::Half> out;
  Buffer<float> partial, highest, total;

  AttentionMemory(Device& device, const kernels::DecodeShape& s)
      : out{device, "out", s.batch * s.n_heads * s.head_dim},
        partial{device, "partial", s.batch * s.n_heads * s.splits() * s.head_dim},
        highest{device, "partial_max", s.batch * s.n_heads * s.splits()},
        total{device, "partial_sum", s.batch * s.n_heads * s.splits()} {}
  [[nodiscard]] on_sim::DecodeAttention<on_sim::kv::Half> arguments(Span<const on_sim::kv::Half> q,
                                                                    float scale = 1) {
    return {.q = q,
            .keys = {},
            .values = {},
            .bias = {},
            .scale = scale,
            .out = on_sim::span_of(out),
            .logits = {},
            .log_sum = {},
            .partial = on_sim::span_of(partial),
            .partial_max = on_sim::span_of(highest),
            .partial_sum = on_sim::span_of(total)};
  }
};

/// Bytes that splitting adds to a fused attention: partial rows written and read, and repeated
/// reads of queries by each row of lanes.
struct SplitAdds {
  std::int64_t read, written;
};
inline SplitAdds split_adds(const kernels::DecodeShape& s) {
  const std::int64_t partials = 4 * s.batch * kHeads * s.splits() * (kHeadDim + 2);
  const std::int64_t lane_rows = kernels::kDecodeThreads * kernels::kQuantPerLane / kHeadDim;
  const std::int64_t queries = s.batch * kHeads * kHeadDim * 2 * (s.splits() * lane_rows - 1);
  return {partials + queries, partials};
}

inline kernels::DecodeShape decode_shape(std::int64_t batch, std::int64_t entries) {
  return {.batch = batch,
          .n_heads = kHeads,
          .n_kv_heads = kStored,
          .head_dim = kHeadDim,
          .entries = entries,
          .capacity = entries,
          .entries_per_split = 128};
}

}  // namespace kvsim::test
