#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "models/math/attention/rope.hpp"

namespace kvsim {

// Views of recorded data: methods access a trace only through these, independently of its file.

/// The recorded vectors of one KV head and the query heads that share it.
struct HeadVectors {
  std::span<const float> q;       // [group, tokens, d]
  std::span<const float> keys;    // [tokens, d]
  std::span<const float> values;  // [tokens, d]
  // Rows of separately computed chunks, [tokens, d]; empty if the trace has none.
  std::span<const float> reused_keys{}, reused_values{};
  std::int32_t group = 1;
  std::int32_t head_dim = 0;
  std::int64_t tokens = 0;
  std::int64_t prompt = 0;
  double scale = 0;

  [[nodiscard]] std::span<const float> query(std::int32_t g, std::int64_t t) const {
    return row(q, g * tokens + t);
  }
  [[nodiscard]] std::span<const float> key(std::int64_t t) const { return row(keys, t); }
  [[nodiscard]] std::span<const float> value(std::int64_t t) const { return row(values, t); }

 private:
  [[nodiscard]] std::span<const float> row(std::span<const float> rows, std::int64_t at) const {
    const auto d = static_cast<std::size_t>(head_dim);
    return rows.subspan(static_cast<std::size_t>(at) * d, d);
  }
};

/// Results that the heads of a layer share. Thread-safe.
class LayerMemo {
 public:
  /// Returns the result for `key`, which the first call computes. It is not cached if `compute`
  /// throws.
  const std::vector<double>& get(std::uint64_t key,
                                 const std::function<std::vector<double>()>& compute) {
    const std::scoped_lock lock{guard_};
    const auto found = known_.find(key);
    return found != known_.end() ? found->second : known_.emplace(key, compute()).first->second;
  }

 private:
  std::mutex guard_;
  std::map<std::uint64_t, std::vector<double>> known_;
};

/// All data of one layer in a trace. Data that was not recorded is empty.
struct LayerVectors {
  std::int32_t layer = 0;
  std::int32_t n_layers = 1;
  std::vector<HeadVectors> heads;  // [n_kv_heads]
  // For a sample of heads: their numbers in the model's layer. Empty: 0, 1, …
  std::vector<std::int32_t> head_numbers;
  std::int32_t d_model = 0;
  std::span<const float> hidden;             // [tokens, d_model], inputs of the attention module
  std::span<const float> output_projection;  // [d_model, n_heads * d]; head j owns d columns
  const Rope* rope = nullptr;                // not owned
  // Positions of a teacher-forced repeat of the prompt (for KVzip's oracles); tokens 0: none.
  std::int64_t repeat_start = 0;
  std::int64_t repeat_tokens = 0;
  std::span<const std::int32_t> token_ids;      // [tokens]
  std::span<const std::int32_t> separator_ids;  // token ids of punctuation and white space
  std::map<std::string, std::span<const float>>
      per_head;  // "score.NAME", "decision.NAME": [tokens, n_kv_heads]
  std::shared_ptr<LayerMemo> memo = std::make_shared<LayerMemo>();
};

}  // namespace kvsim
