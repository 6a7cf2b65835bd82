#pragma once

// Hand-written models, a GPU and methods, so that tests of cost and memory do not depend on
// catalogues.

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"

namespace kvsim::test {

struct Sizes {
  std::int32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab;
  bool tied = false;
};

inline Llm make_llm(const Sizes& s) {
  Llm llm;
  llm.name = "test";
  llm.d_model = s.d_model;
  llm.vocab_size = s.vocab;
  llm.tied_embeddings = s.tied;
  llm.rope_theta = 10000;
  const LayerSpec layer{.attention = {.n_heads = s.n_heads,
                                      .n_kv_heads = s.n_kv_heads,
                                      .head_dim = s.head_dim,
                                      .v_head_dim = s.head_dim},
                        .mlp = {.d_ff = s.d_ff}};
  llm.layers.assign(static_cast<std::size_t>(s.n_layers), layer);
  llm.extra_parameters = static_cast<std::int64_t>(2 * s.n_layers + 1) * s.d_model;  // norms
  return llm;
}

/// 6,738,415,616 parameters.
inline Llm llama2_7b() {
  return make_llm({.n_layers = 32,
                   .d_model = 4096,
                   .n_heads = 32,
                   .n_kv_heads = 32,
                   .head_dim = 128,
                   .d_ff = 11008,
                   .vocab = 32000});
}
/// Llama-3.1-8B and DeepSeek-R1-Distill-Llama-8B: 8,030,261,248 parameters.
inline Llm llama31_8b() {
  return make_llm({.n_layers = 32,
                   .d_model = 4096,
                   .n_heads = 32,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .d_ff = 14336,
                   .vocab = 128256});
}
/// Small, with grouped heads: for laws over many runs.
inline Llm small_llm() {
  return make_llm({.n_layers = 4,
                   .d_model = 256,
                   .n_heads = 8,
                   .n_kv_heads = 2,
                   .head_dim = 32,
                   .d_ff = 704,
                   .vocab = 1000});
}

/// A800-80GB-SXM according to its data sheet; 79.33 GiB usable.
inline Gpu a800() {
  Gpu gpu;
  gpu.name = "A800-80GB-SXM";
  gpu.hbm = 80_GiB;
  gpu.hbm_usable = Bytes{85179490000};
  gpu.hbm_bandwidth = BytesPerSecond{2.039e12};
  gpu.peak[Dtype::kFp16] = FlopsPerSecond{312e12};
  gpu.peak[Dtype::kBf16] = FlopsPerSecond{312e12};
  gpu.peak_fp32 = FlopsPerSecond{19.5e12};
  gpu.sms = 108;
  return gpu;
}

/// Keeps everything.
class FullMethod : public Method {
 public:
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const std::map<std::string, ParamValue>& params() const override { return params_; }
  [[nodiscard]] MethodNeeds needs() const override { return {}; }
  [[nodiscard]] PrefillPeak prefill_peak() const override { return PrefillPeak::kPerLayer; }
  [[nodiscard]] Compaction compaction() const override { return Compaction::kAppend; }
  [[nodiscard]] std::int32_t extra_launches() const override { return 0; }
  [[nodiscard]] bool merges() const override { return false; }
  [[nodiscard]] std::optional<std::int64_t> entries_held(std::int32_t, std::int64_t,
                                                         std::int64_t tokens) const override {
    return tokens;
  }
  [[nodiscard]] std::optional<std::int64_t> entries_attended(std::int32_t layer,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const override {
    return *entries_held(layer, prompt, tokens - 1) + 1;
  }
  [[nodiscard]] bool has_equal_layers() const override { return true; }
  [[nodiscard]] std::int32_t stored_heads(const LayerShape& shape) const override {
    return shape.n_kv_heads;
  }
  [[nodiscard]] Dtype store_dtype(Dtype recorded) const override { return recorded; }
  [[nodiscard]] StepTraffic decode_traffic(std::int32_t /*layer*/, const LayerShape& shape,
                                           Dtype recorded, double attended,
                                           bool evicts) const override {
    const double entry = 2.0 * shape.n_kv_heads * shape.head_dim * bits_of(recorded) / 8;
    StepTraffic traffic{.attention_read = attended * entry, .append_write = entry};
    if (evicts && compaction() == Compaction::kGather) {
      traffic.move_read = traffic.move_write = (attended - 1) * entry;
    }
    return traffic;
  }

 protected:
  std::string name_ = "full";
  std::map<std::string, ParamValue> params_;
};

/// A data-dependent method: its size has no closed form.
class UnknownSizeMethod : public FullMethod {
 public:
  [[nodiscard]] std::optional<std::int64_t> entries_held(std::int32_t, std::int64_t,
                                                         std::int64_t) const override {
    return std::nullopt;
  }
};

/// At most `budget` entries, starting with the prompt, at all times.
struct BoundedOptions {
  std::int64_t budget = 1;
  Compaction compaction = Compaction::kRing;
  MethodNeeds needs{};
  PrefillPeak prefill_peak = PrefillPeak::kPerLayer;
  std::int64_t side_per_entry = 0;  // bytes
  std::int64_t budget_step = 0;     // fewer entries per layer
  std::int32_t extra_launches = 0;
  bool has_equal_layers = false;
};
class BoundedMethod : public FullMethod {
 public:
  explicit BoundedMethod(const BoundedOptions& options) : options_{options} { name_ = "bounded"; }
  [[nodiscard]] MethodNeeds needs() const override { return options_.needs; }
  [[nodiscard]] PrefillPeak prefill_peak() const override { return options_.prefill_peak; }
  [[nodiscard]] Compaction compaction() const override { return options_.compaction; }
  [[nodiscard]] std::int32_t extra_launches() const override { return options_.extra_launches; }
  [[nodiscard]] std::optional<std::int64_t> entries_held(std::int32_t layer, std::int64_t,
                                                         std::int64_t tokens) const override {
    return std::min(tokens, options_.budget - layer * options_.budget_step);
  }
  [[nodiscard]] bool has_equal_layers() const override { return options_.has_equal_layers; }
  [[nodiscard]] CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                      std::int64_t prompt_entries,
                                      std::int64_t entries) const override {
    CacheBytes all = FullMethod::rows_bytes(layer, shape, recorded, prompt_entries, entries);
    all.side = Bytes{entries * options_.side_per_entry} * stored_heads(shape);
    return all;
  }

 private:
  BoundedOptions options_;
};

/// A fraction of the prompt is kept at prefill; generated tokens are appended.
class PromptFractionMethod : public FullMethod {
 public:
  explicit PromptFractionMethod(double kept) : kept_{kept} { name_ = "prompt-fraction"; }
  [[nodiscard]] std::optional<std::int64_t> entries_held(std::int32_t, std::int64_t prompt,
                                                         std::int64_t tokens) const override {
    return static_cast<std::int64_t>(static_cast<double>(prompt) * kept_) + tokens - prompt;
  }

 private:
  double kept_;
};

/// Decayed column sums of the prompt's attention, eager, with three copies of the matrix in the
/// cache's format, and a query chunk that is quartered after an out-of-memory error (as in
/// ZeroMerge's code).
inline MethodNeeds eager_sums_with_retry() {
  return {.prompt_scores = PromptScoreClass::kColumnSums,
          .score_exec = ScoreExec::kEager,
          .retries_smaller_chunks = true,
          .score_copies = 3,
          .fp32_softmax = false};
}

}  // namespace kvsim::test
