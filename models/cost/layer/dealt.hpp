#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/op.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// Attention to entries that are distributed over ranks (AttentionWork::context_ranks): each rank
// computes attention of all ranks' heads to its own entries. Source: vLLM
// v1/attention/ops/common.py (cp_lse_ag_out_rs), v1/attention/backends/flash_attn.py
// (_forward_with_dcp), model_executor/layers/attention/mla_attention.py.

/// Throws InputError if `stack` distributes entries but its release does not support this for `llm`
/// in `kv_dtype`, or if `method` is neither the full cache nor a format of rows of fixed size: a
/// rank holds entries by their positions.
void check_dealt(const Stack& stack, const Llm& llm, const Method& method, Dtype kv_dtype);

/// Returns a description of the assumptions; nullopt if `stack` does not distribute entries.
[[nodiscard]] std::optional<std::string> describe_dealt(const Stack& stack);

/// Returns the operators before attention: the queries of `rows` tokens in `passes` equal parts,
/// `heads` heads of this rank each, are sent to all ranks. Empty if entries are not distributed.
[[nodiscard]] std::vector<Op> gather_queries(const AttentionWork& work, double rows, double heads,
                                             Dtype dtype, std::int32_t passes = 1);
/// Returns the operators after attention: ranks exchange the logarithms of their softmax sums,
/// scale their outputs by their shares, and sum them; each receives the sums of its heads.
/// Attention with keys of heads processes the new tokens' own keys in a separate kernel, whose
/// output is merged; the latent of a decoding token is already in the cache.
[[nodiscard]] std::vector<Op> combine_outputs(const AttentionWork& work, double rows, double heads,
                                              Dtype dtype, std::int32_t passes = 1);
/// Returns the gathering of latents of `tokens` tokens of a prompt's earlier parts, which all ranks
/// expand for their heads; `bytes` is the total over all tokens.
[[nodiscard]] std::vector<Op> gather_latents(const AttentionWork& work, double bytes, Dtype dtype,
                                             std::int32_t passes = 1);

}  // namespace kvsim
