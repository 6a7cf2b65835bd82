#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "models/cost/kernels/library.hpp"
#include "models/cost/op.hpp"
#include "models/cost/step.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// The kernels of a step's operators, for calibrations that contain them.

/// y[rows, out] = x[rows, in] w, in `passes` equal parts of its rows. w has `weight_bytes`, the
/// product is in `compute`, and blocks may have one scale each. Both 16-bit formats are treated as
/// one: rates and bytes are the same.
[[nodiscard]] KernelUse gemm_use(std::int64_t rows, std::int64_t out, std::int64_t in,
                                 double weight_bytes, Dtype compute, std::int32_t passes = 1,
                                 bool blocks = false);
/// A layer's routed experts over the tokens of `share`, in `passes` equal consecutive parts. Tokens
/// are distributed over experts by a power law of exponent 1.2, as in serving benchmarks
/// (aiconfigurator, power_law_1.2), and over GPUs by the stack's expert_imbalance.
[[nodiscard]] KernelUse moe_use(const CostInput& in, const MlpSpec& mlp, const ExpertShare& share,
                                std::int32_t passes = 1);
/// A collective over `gpus` GPUs of a node; `bytes`: of the largest buffer, as counted by
/// nccl-tests.
[[nodiscard]] KernelUse collective_use(CollectiveKind kind, double bytes, std::int32_t gpus,
                                       std::int32_t passes = 1);
/// Formats of attention: queries of `compute` over a cache of `kv`.
[[nodiscard]] const KernelFormat* shared_attention_format(Dtype compute, Dtype kv);
/// A fused streaming kernel, in `passes` equal parts of its rows; nullopt if several launches form
/// one operation, or the family has no kernel form.
[[nodiscard]] std::optional<KernelUse> stream_use(OpFamily family, std::int64_t rows, double read,
                                                  double written, std::int32_t launches,
                                                  Dtype dtype, std::int32_t passes = 1);

/// Whether FlashAttention 2 processes each query head of a decoding sequence in separate tiles
/// (Stack::joint_attention): next to sequences of several new tokens, and in layers with a window
/// (flash_api.cpp, seqlenq_ngroups_swapped). It does not support 8-bit caches.
[[nodiscard]] bool has_lone_heads(const Stack& stack, const AttentionSpec& attention, bool several,
                                  Dtype activations, Dtype cache);
/// `batch` sequences of `entries` entries each in such tiles of 64 rows, all of which are
/// multiplied with all keys, at the rate of long prompts.
[[nodiscard]] KernelUse lone_heads_use(double batch, double entries, std::int32_t q_heads,
                                       std::int32_t kv_heads, std::int32_t head_dim, Dtype dtype);

/// A causal convolution over the `channels` of `rows` tokens, in `passes` equal parts of the
/// tokens.
[[nodiscard]] KernelUse convolution_use(std::int64_t rows, std::int64_t channels,
                                        std::int32_t passes = 1);
/// A mixer's operator over `sequences` sequences with `span` each; nullopt if there are no
/// published timings of its kernels: Mamba 1, decode of Mamba 2, gates, compression.
[[nodiscard]] std::optional<KernelUse> mixer_use(const LayerSpec& layer, const MixerOp& op,
                                                 double sequences, const NewTokens& span);
/// Attention over the latent entries chosen by an index, for `sequences` sequences with `tokens`
/// new tokens each, to `attended` entries; nullopt for layers of another kind, whose kernels have
/// no published timings.
[[nodiscard]] std::optional<KernelUse> sparse_decode_use(const AttentionSpec& attention,
                                                         double sequences, double tokens,
                                                         double attended, Dtype compute, Dtype kv);
/// The same for `pieces` equal pieces of prompts, whose kernel processes whole lists of entries.
[[nodiscard]] std::optional<KernelUse> sparse_prompt_use(const Stack& stack,
                                                         const AttentionSpec& attention,
                                                         const NewTokens& piece, double pieces,
                                                         Dtype compute, Dtype kv);

/// Returns the piece of a prompt's attention that covers `tokens` tokens after `before` others.
[[nodiscard]] KernelCall prompt_piece(const KernelCall& call, double tokens, double before);

/// Calls `visit(count, call)` for calls that represent all calls of the use: equal calls once; many
/// pieces of a prompt in equal groups of neighbours, each represented by its middle one. (Query,
/// key) pairs, which are linear in the cached length, sum to those of the whole prompt.
template <class Visit>
void visit_calls(const KernelUse& use, Visit&& visit) {
  constexpr double kMaxGroups = 8;
  if (use.times <= 0) return;
  const double tokens = use.chunk > 0 ? length_of(use.call) : 0;
  if (tokens <= use.chunk) {
    visit(use.times, use.call);
    return;
  }
  const double pieces = std::floor(tokens / use.chunk);
  const double groups = std::min(pieces, kMaxGroups);
  double first = 0;
  for (double group = 1; group <= groups; ++group) {
    const double next = std::floor(pieces * group / groups);
    const double middle = (first + next - 1) / 2;
    visit(use.times * (next - first), prompt_piece(use.call, use.chunk, middle * use.chunk));
    first = next;
  }
  const double rest = tokens - pieces * use.chunk;
  if (rest > 0) visit(use.times, prompt_piece(use.call, rest, pieces * use.chunk));
}

/// Returns the time of all its calls, µs.
[[nodiscard]] double microseconds(const KernelChoice& choice, const KernelUse& use);
/// Returns one call that represents all: for pieces, a whole one with their mean cached length.
[[nodiscard]] KernelCall typical_call(const KernelUse& use);

}  // namespace kvsim
