#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "models/units/dtype.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// What a synthetic trace holds. Ranges, inclusive, are checked by generate_trace.
struct GenerateOptions {
  std::int32_t layers = 4;           // 1 … 1024
  std::int32_t heads = 8;            // 1 … 1024, a multiple of kv_heads
  std::int32_t kv_heads = 2;         // 1 … 1024
  std::int32_t head_dim = 64;        // even, 8 … 1024
  std::int64_t tokens = 512;         // 2 … 2^20; with a repeat, the context's tokens included
  std::int64_t prompt_tokens = 384;  // 1 … tokens - 1; with a repeat, the context's length
  std::int32_t d_model = 0;          // 0 stands for heads * head_dim; else 16 … 65536
  Dtype dtype = Dtype::kFp16;        // fp32, fp16 or bf16
  std::uint64_t seed = 0;
  RopeStyle rope_style = RopeStyle::kHalfSplit;
  double rope_theta = 10000;  // 1 < theta <= 1e9
  bool with_hidden = false;
  bool with_output_projection = false;
  /// Tokens prompt_tokens … are a separator of two tokens and a copy of the context's tokens 1 …;
  /// needs tokens == 2 * prompt_tokens + 1 and prompt_tokens >= 2.
  bool with_repeat = false;
  bool with_scores = false;              // kvzip, kvzip_plus, kvzap
  bool with_decisions = false;           // alpha, omega, evict
  std::function<void(double)> progress;  // called with the share done, 0 … 1; may be empty
};

/// Writes a synthetic kv-attention-trace to `path`, layer by layer; memory holds one layer. The
/// same options give the same bytes.
///
/// Before RoPE, keys and queries are sums of components drawn from the seed, each head with its own
/// strengths, so that attention has what papers report of large models: a sink on the first token
/// in many heads, heads that look back a few tokens, a few percent of heavy-hitter tokens, and
/// queries that find the token after an earlier occurrence of their own (induction). The logit
/// gains are calibrated to the shape and the number of tokens.
///
/// What holds, up to the rounding of `dtype` and 1 % noise:
///   - q and k are stored after RoPE at their positions, in the style named; v has none.
///   - with hidden states, k before RoPE and v are linear maps of a layer's hidden rows, which have
///     unit root mean square; queries are not (they know their token's history).
///   - score.kvzip: of each key, the largest attention any sampled later query (of the repeat,
///   where
///     there is one) of its group gave it; kvzip_plus: the same weighted by |v| over the mean |v|;
///     kvzap: ln(kvzip_plus + 1e-6) with noise of 0.3 nats, as a learned predictor would answer.
///   - decision.alpha in {0, 1}: 1 merges a token into the one before it, where the cosine of their
///     pre-RoPE keys is in the head's top quarter; omega in (0, 1]: the weight of the token in such
///     a merge; evict in {0, 1}: 1 for the half of the tokens with the lowest kvzip, never the
///     first 4. They exercise the mechanics of methods that read decisions; no network was trained.
/// Errors: InputError naming the option, its range and its value; or the path if it cannot be
/// written.
void generate_trace(const GenerateOptions& options, const std::filesystem::path& path);

}  // namespace kvsim
