#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "models/units/dtype.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Contents of a synthetic trace. generate_trace checks the ranges, which are inclusive.
struct GenerateOptions {
  std::int32_t layers = 4;           // 1 … 1024
  std::int32_t heads = 8;            // 1 … 1024, a multiple of kv_heads
  std::int32_t kv_heads = 2;         // 1 … 1024
  std::int32_t head_dim = 64;        // even, 8 … 1024
  std::int64_t tokens = 512;         // 2 … 2^20; with a repeat, including the context's tokens
  std::int64_t prompt_tokens = 384;  // 1 … tokens - 1; with a repeat, the context's length
  std::int32_t d_model = 0;          // 0 means heads * head_dim; else 16 … 2^20
  Dtype dtype = Dtype::kFp16;        // fp32, fp16 or bf16
  std::uint64_t seed = 0;
  RopeStyle rope_style = RopeStyle::kHalfSplit;
  double rope_theta = 10000;  // 1 < theta <= 1e9
  bool with_hidden = false;
  bool with_output_projection = false;
  /// Tokens from prompt_tokens are a separator of two tokens and a copy of the context's tokens
  /// from 1; requires tokens == 2 * prompt_tokens + 1 and prompt_tokens >= 2.
  bool with_repeat = false;
  bool with_scores = false;              // kvzip, kvzip_plus, kvzap
  bool with_decisions = false;           // alpha, omega, evict
  std::function<void(double)> progress;  // called with the fraction done, 0 … 1; may be empty
};

/// Writes a synthetic kv-attention-trace to `path`, layer by layer, with one layer in memory. The
/// same options produce the same bytes.
///
/// Keys before RoPE and values are random linear maps of latent rows: a mark on the first token,
/// four kinds of heavy hitters (1 % of the tokens each, drawn per layer), the token's embedding and
/// three contexts that drift at different speeds. A query is a sum of its targets: the sink and the
/// heavy hitters by a fixed direction in the slowest rotary pairs, its neighbours by its own key,
/// and the token that followed an earlier occurrence of the same token by that token's key
/// (induction: ids follow Zipf's law, with copied spans). Each query head has its own shares of
/// these, and the logits that produce them at the trace's length. Sinks fade with distance once
/// theta^(2/d - 1) * tokens exceeds about 2 (theta 10000, head_dim 64: past 15,000 tokens), as is
/// inherent in RoPE: long traces need a larger theta.
///
/// Properties, up to the rounding of `dtype`:
///   - q and k are stored after RoPE at their positions, in the style named.
///   - k before RoPE and v are linear maps of a layer's hidden rows (of root mean square about 1);
///     queries are not: they depend on their token's history. wo is random and independent of the
///     rest.
///   - in a repeat, hidden rows, v, and k before RoPE equal those of the context's tokens.
///   - score.kvzip: for each key, the largest attention from up to 128 evenly sampled queries of
///     its group (of the repeat, if there is one); kvzip_plus: the same times |v| over the head's
///     mean |v|; kvzap: ln(kvzip_plus + 1e-6) with noise of 0.3 nats, as from a predictor.
///   - decision.alpha in {0, 1}: 1 merges a token into the previous one, at the quarter of a head's
///     tokens with the most similar keys before RoPE; omega in (0, 1]: |k[t]|^2 over
///     |k[t]|^2 + |k[t-1]|^2, 1 at the first token; evict in {0, 1}: 1 for the half of a head's
///     tokens with the lowest kvzip, never the first 4. They exercise mechanics; no network was
///     trained.
/// Errors: InputError naming the option, its range and its value; or the path if it cannot be
/// written.
void generate_trace(const GenerateOptions& options, const std::filesystem::path& path);

}  // namespace kvsim
