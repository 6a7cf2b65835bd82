#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/dtype.hpp"

namespace kvsim {

enum class RopeStyle : std::uint8_t { kHalfSplit, kInterleaved };

/// Limit of a trace's layers, far above that of any model.
inline constexpr std::int64_t kMaxTraceLayers = 10'000;

/// A named part of a trace: tokens [start, end).
struct TraceSegment {
  std::string name;
  std::int64_t start = 0, end = 0;
};

/// End of the prompt and start of the decode steps.
enum class TraceSplit : std::uint8_t {
  kRecorded,         // as the trace was recorded
  kQuestionAware,    // at answer_start: methods compress with the question in view
  kQuestionAgnostic  // at question_start: methods compress before it
};
/// In the order of the enumerators.
inline constexpr std::array<std::string_view, 3> kTraceSplits{"recorded", "question-aware",
                                                              "question-agnostic"};

/// Returns nullopt for another word.
[[nodiscard]] std::optional<TraceSplit> split_of(std::string_view word);

/// Shapes and metadata of an attention trace (kv-attention-trace, version 1).
struct TraceInfo {
  std::string name;  // file name without folder and extension
  std::string model;
  std::int32_t n_layers = 0;
  std::int32_t n_heads = 0;
  std::int32_t n_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t d_model = 0;        // 0 if no hidden states are recorded
  std::int64_t tokens = 0;         // T
  std::int64_t prompt_tokens = 0;  // s; T - s are decode steps
  double softmax_scale = 0;
  Dtype dtype = Dtype::kFp16;  // of the recorded K and V
  std::optional<RopeStyle> rope_style;
  std::optional<double> rope_theta;
  bool has_hidden = false;             // in every layer
  bool has_output_projection = false;  // wo, in every layer
  // An indexer in every layer: number of query heads, and channels of a query and of a key; 0:
  // none.
  std::int32_t index_heads = 0, index_dim = 0;
  bool has_reused = false;  // reused.k and reused.v, in every layer
  bool has_token_ids = false;
  std::vector<std::int32_t> separator_ids;  // token ids of punctuation and white space, from the
                                            // metadata
  std::optional<std::int64_t> repeat_start, repeat_tokens;
  // Marks: the first token of a question and of its answer. Segments ascend and do not overlap. If
  // the metadata has only marks, the segments are context, question and answer; if it has only
  // segments, those named question and answer define the marks.
  std::optional<std::int64_t> question_start, answer_start;
  std::vector<TraceSegment> segments;
  std::vector<std::string> scores;     // NAMEs of layers.{i}.score.NAME present in every layer
  std::vector<std::string> decisions;  // likewise for layers.{i}.decision.NAME
  // For a sample, whose layers and heads are counted above: counts in the file, and the numbers of
  // the sampled layers there.
  std::int32_t all_layers = 0, all_kv_heads = 0;
  std::vector<std::int32_t> layer_numbers;
  std::vector<std::vector<std::int32_t>> head_numbers;  // [layer]: likewise for its KV heads
  std::vector<std::int32_t> layers_by_stratum;          // layers of each range of depths, in order
  [[nodiscard]] bool samples_layers() const { return n_layers < all_layers; }
  [[nodiscard]] bool samples_heads() const { return n_kv_heads < all_kv_heads; }
  /// Number of the layer in the model, for methods that treat layers by position.
  [[nodiscard]] std::int32_t number_of(std::int32_t layer) const {
    return layer_numbers.empty() ? layer : layer_numbers[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] std::int32_t head_number_of(std::int32_t layer, std::int32_t head) const {
    if (head_numbers.empty()) return head;
    return head_numbers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)];
  }
  [[nodiscard]] std::int32_t model_kv_heads() const {
    return all_kv_heads > 0 ? all_kv_heads : n_kv_heads;
  }
  [[nodiscard]] std::int32_t model_layers() const { return all_layers > 0 ? all_layers : n_layers; }
  std::map<std::string, std::string> metadata;
};

/// Returns the number of stored head `head` among the `stored` heads of a layer, one or more per KV
/// head, in a sample with the KV heads of numbers `kv_heads`; empty: all.
[[nodiscard]] inline std::int32_t stored_head_number(std::span<const std::int32_t> kv_heads,
                                                     std::size_t head, std::size_t stored) {
  if (kv_heads.empty()) return static_cast<std::int32_t>(head);
  const std::size_t each = std::max<std::size_t>(1, stored / kv_heads.size());
  return kv_heads[head / each] * static_cast<std::int32_t>(each) +
         static_cast<std::int32_t>(head % each);
}

/// One layer, converted to fp32 and laid out by head, so that a head's rows are contiguous: q
/// [n_heads, tokens, head_dim], k and v [n_kv_heads, tokens, head_dim].
struct TraceLayer {
  std::vector<float> q, k, v;
};

/// Keys and values, laid out as in TraceLayer.
struct TraceRows {
  std::vector<float> k, v;
};

/// A memory-mapped attention trace. Reading a layer touches only that layer's pages.
class Trace {
 public:
  /// Errors: InputError "PATH: TENSOR: expected …, got …" for a file that is truncated, has wrong
  /// sizes, missing tensors, shapes that disagree, or metadata outside its range.
  [[nodiscard]] static Trace open(const std::filesystem::path& path);
  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;
  ~Trace();

  [[nodiscard]] const TraceInfo& info() const;
  /// Moves the end of the prompt. Errors: InputError if the trace has no such mark, or if the
  /// prompt would overlap with its repeat.
  void split(TraceSplit at);
  /// Keeps `layers` layers and `heads` KV heads of each; 0: all. They are drawn with `seed`,
  /// different heads in each layer, and numbered 0, 1, … from then. Layers are drawn from strata of
  /// adjacent layers, four or more from each; all sets of a stratum's layers, and of a layer's
  /// heads, are equally likely. Errors: InputError if the trace has fewer.
  void sample(std::int32_t layers, std::int32_t heads, std::uint64_t seed);
  /// Errors: InputError naming tensor and element if a value is NaN or infinite.
  [[nodiscard]] TraceLayer read_layer(std::int32_t layer) const;
  /// The same for KV heads first … first + count - 1 and their query heads.
  [[nodiscard]] TraceLayer read_heads(std::int32_t layer, std::int32_t first,
                                      std::int32_t count) const;
  /// layers.{layer}.hidden [tokens, d_model] in fp32. Errors: InputError if it is not recorded.
  [[nodiscard]] std::vector<float> read_hidden(std::int32_t layer) const;
  /// layers.{layer}.wo [d_model, n_heads * head_dim] in fp32.
  [[nodiscard]] std::vector<float> read_output_projection(std::int32_t layer) const;
  /// layers.{layer}.score.NAME or .decision.NAME [tokens, n_kv_heads] in fp32. -infinity (the
  /// logarithm of 0) is valid but NaN is not. `name` is "score.kvzap", ….
  [[nodiscard]] std::vector<float> read_per_head(std::int32_t layer, std::string_view name) const;
  /// layers.{layer}.index.q [tokens, index_heads, index_dim], index.k [tokens, index_dim] or
  /// index.w [tokens, index_heads] in fp32; `part` is "q", "k" or "w". Errors: InputError if no
  /// indexer is recorded.
  [[nodiscard]] std::vector<float> read_index(std::int32_t layer, std::string_view part) const;
  /// layers.{layer}.reused.k and reused.v of KV heads first … first + count - 1: the rows of tokens
  /// whose chunk went through the model separately, at its positions in the prompt. Errors:
  /// InputError if they are not recorded.
  [[nodiscard]] TraceRows read_reused(std::int32_t layer, std::int32_t first,
                                      std::int32_t count) const;
  [[nodiscard]] std::vector<std::int32_t> read_tokens() const;

 private:
  struct Impl;
  explicit Trace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
