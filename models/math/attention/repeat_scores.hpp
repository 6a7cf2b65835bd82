#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// One KV head's vectors of a sequence that repeats its prompt, and how to score the prompt.
///
/// Position repeat_start + r repeats prompt token first + r, where first = 1: a trace's repeat
/// omits the first token. Tokens between prompt and repeat (a separator) are not used as queries.
struct RepeatScoring {
  std::span<const float> q;     // [group, tokens, d], unscaled
  std::span<const float> keys;  // [tokens, d]
  std::int32_t group = 1;
  std::int32_t head_dim = 0;
  std::int64_t tokens = 0;
  std::int64_t prompt = 0;
  std::int64_t repeat_start = 0;
  std::int64_t repeat_tokens = 0;
  double scale = 0;
  std::int64_t chunk = 2048;  // prompt tokens scored by their own repeat
  std::int64_t sinks = 4;     // first tokens, included in every chunk's softmax
  /// True: the softmax runs over sinks, chunk and the chunk's repeat so far (KVzip). False: over
  /// all keys up to the query's own (training targets of KVzap).
  bool subsample = true;
  std::span<const double> key_weights;    // [group, prompt], >= 0; empty: all 1
  std::span<const double> query_weights;  // [repeat_tokens], >= 0; empty: all 1
};

/// First prompt token that is repeated.
inline constexpr std::int64_t kFirstRepeated = 1;

/// Returns the importance of each prompt token for repeating the prompt:
///
///   score[i] = max over j in the group and t in the repeat of
///              query_weights[t] * key_weights[j, i] * softmax_i(scale * q[j, t] . k[i])
///
/// The result is [prompt], fp64. Tokens without a score are NaN: with `subsample` those outside the
/// chunks (the first token, and tokens beyond the end of the repeat), otherwise none.
/// Throws ContractError if a span's length disagrees, or the repeat extends past the tokens.
/// Source: Kim et al., KVzip, eq. (2); the keys of one chunk as in kvpress' KVzipPress.
[[nodiscard]] std::vector<double> repeat_scores(const RepeatScoring& scoring);

/// Norm of W_O^(j) v_i for each query head j of a group: the size of a token's contribution to the
/// residual stream.
///
/// values [tokens, d], of which the first `prompt` are used; projection [d_model, columns]
/// row-major, in which query head j of the group owns columns first_column + j d …
/// Returns [group, prompt], fp64. Source: KVzip+ (kvpress' KVzipPress with kvzip_plus).
[[nodiscard]] std::vector<double> projected_value_norms(
    std::span<const float> values, std::int64_t prompt, std::int32_t head_dim, std::int32_t group,
    std::span<const float> projection, std::int64_t columns, std::int64_t first_column);

/// Euclidean norms of rows first … first + count - 1 of `rows` [n, width], fp64.
[[nodiscard]] std::vector<double> row_norms(std::span<const float> rows, std::int64_t width,
                                            std::int64_t first, std::int64_t count);

}  // namespace kvsim
