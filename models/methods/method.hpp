#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Cost class of producing attention scores at prefill (S0, SW, SF in the method catalogue).
enum class PromptScoreClass : std::uint8_t { kNone, kLastWindow, kColumnSums };
/// How column sums are computed: the result is the same, but memory and traffic differ.
enum class ScoreExec : std::uint8_t { kEager, kEagerChunked, kFusedTwoPass };
/// Whether the whole prompt's cache is held in every layer before anything is dropped.
enum class PrefillPeak : std::uint8_t { kPerLayer, kAllLayers };
/// How kept entries are written: append only, one slot overwritten, a ring, or everything
/// rewritten.
enum class Compaction : std::uint8_t { kAppend, kSwap, kRing, kGather };

/// Scores that a learned surrogate predicts from hidden states; LayerVectors::per_head holds them
/// under `name`, [tokens, n_kv_heads].
struct PredictedScores {
  std::string name;
  std::string path;         // file of the surrogate's weights, or the trace that it is fitted on
  bool calibrates = false;  // `path` is a trace with a repeat, for a linear fit
};

/// Data that a method needs from a trace in addition to post-RoPE Q, K and V; a trace without them
/// is rejected.
struct TraceInputs {
  bool hidden = false;
  bool output_projection = false;
  bool rope = false;                  // rope_style and rope_theta
  bool repeat = false;                // a repeat segment
  bool token_ids = false;             // the tensor "tokens"
  bool separator_ids = false;         // in the metadata
  bool reused = false;                // rows of separately computed chunks
  std::vector<std::string> per_head;  // "score.NAME", "decision.NAME"
  std::vector<PredictedScores> predicted;

  TraceInputs& operator+=(const TraceInputs& other);
};

/// A method's requirements: `kvsim show method` prints them, and the cost model charges them.
struct MethodNeeds {
  PromptScoreClass prompt_scores = PromptScoreClass::kNone;
  std::int32_t prompt_window = 0;  // rows of kLastWindow
  ScoreExec score_exec = ScoreExec::kEager;
  bool retries_smaller_chunks = false;  // prefill scores in smaller query chunks after an OOM
  std::int32_t score_copies =
      1;                     // score matrices of the cache's dtype alive at once in eager execution
  bool fp32_softmax = true;  // eager execution also holds an fp32 copy for the softmax
  bool decode_rows = false;  // class SD: the attention row of every decode step
  TraceInputs inputs{};

  /// Combines the needs of two axes.
  MethodNeeds& operator+=(const MethodNeeds& other);
};

/// Events of one stored head at one decode step, for its traffic. Counts may be means.
struct StepEvents {
  double attended = 0;   // entries attended over, including the new one
  double read = -1;      // attended entries that were read; -1: all
  double left = 0;       // entries that left: dropped, or merged into another
  double merged = 0;     // entries of `left` that were merged
  double prompt = 0;     // entries left from the prompt, for formats that treat them separately
  double stored = -1;    // bytes of K and V attended over, if counted; -1: by the law
  double shared = 0;     // 1 in a layer that shares its cache; as a mean, the share of such layers
  double refreshed = 0;  // tokens in host memory that the cache was rebuilt from
};

/// One stored head, for costs and sizes.
struct HeadShape {
  std::int32_t group = 1;
  std::int32_t head_dim = 0;
  Dtype recorded = Dtype::kFp16;  // of the model or trace
  Dtype stored = Dtype::kFp16;    // of full-precision rows in the cache

  [[nodiscard]] double row_bytes() const {  // a key and a value in full precision
    return 2.0 * head_dim * bits_of(stored) / 8.0;
  }
};

/// Bytes of a cache: stored K and V with their format's scales and indices; side data; bytes in
/// host memory.
struct CacheBytes {
  Bytes kv{0}, side{0}, host{0};
  CacheBytes& operator+=(const CacheBytes& other) {
    kv += other.kv;
    side += other.side;
    host += other.host;
    return *this;
  }
};

/// A method's additional work in the prefill of one layer of one sequence, beyond attention scores.
struct PrefillExtra {
  double flops = 0, read = 0, written = 0;
  Bytes transient{0};
  std::int32_t launches = 0;
  double prefill_repeats = 0;  // additional passes of the whole model over the prompt (KVzip)
};

/// Added before a share of tokens is rounded down, so that a share computed from a number of tokens
/// yields this number.
inline constexpr double kShareRounding = 1e-6;

/// The part of a prompt that a layer's prefill computes.
struct PromptPart {
  double computed = 1;  // share of the tokens that go through the layer
  double attended = 1;  // share of the tokens that these may attend to
  /// Rows of all tokens are loaded from host memory; then rows of computed tokens are replaced.
  bool reused = false;
  /// All tokens go through the Q, K and V projections, because this layer chooses computed tokens.
  bool chooses = false;

  [[nodiscard]] bool is_whole() const { return computed == 1 && attended == 1 && !reused; }
  /// Number of computed or attended tokens in a prompt of `tokens` tokens; at least 1.
  [[nodiscard]] std::int64_t computed_of(std::int64_t tokens) const;
  [[nodiscard]] std::int64_t attended_of(std::int64_t tokens) const;

  friend bool operator==(const PromptPart&, const PromptPart&) = default;
};

/// Bytes and work of one decode step in one layer of one sequence, by event.
struct StepTraffic {
  double attention_read = 0;  // keys and values attended over
  double append_write = 0;    // the new token's key and value
  double score_row_read = 0;  // attention row, unless a kernel keeps it on chip
  double score_row_write = 0;
  double side_read = 0;  // carried scores, counts
  double side_write = 0;
  double move_read = 0;  // evictions and merges
  double move_write = 0;
  double link_read = 0;    // from host memory
  double link_write = 0;   // to host memory
  double extra_flops = 0;  // beyond attention itself
  double rotated = 0;      // cached keys that are rotated to new positions first; a kernel that
                           // fuses the rotation reads them once, as attention does
  // Bytes that code copies into a longer tensor because it grows a cache by concatenation, for
  // methods without plain rows: packed rows, and unpacked rows waiting to be packed.
  double repacked = 0;
  double recopied = 0;
  double scratch = 0;  // bytes of dequantised rows that are alive next to that copy

  [[nodiscard]] double read() const {
    return attention_read + score_row_read + side_read + move_read;
  }
  [[nodiscard]] double written() const {
    return append_write + score_row_write + side_write + move_write;
  }
  StepTraffic& operator+=(const StepTraffic& other);
  [[nodiscard]] StepTraffic operator*(double times) const;
};

using ParamValue = std::variant<bool, std::int64_t, double, std::string>;
using Params = std::map<std::string, ParamValue>;

/// Shape of one layer, as required by a method's size law and cost.
struct LayerShape {
  std::int32_t n_heads = 0;
  std::int32_t n_kv_heads = 0;
  std::int32_t head_dim = 0;
};

/// A method with parameters resolved for a prompt of known length: size law and cost. Immutable.
/// All counts are per sequence.
class Method {
 public:
  virtual ~Method() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;  // as requested: "h2o+store=fp16"
  /// All parameters as resolved for this prompt (including "budget" in entries).
  [[nodiscard]] virtual const Params& params() const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const = 0;
  [[nodiscard]] virtual PrefillPeak prefill_peak() const = 0;
  [[nodiscard]] virtual Compaction compaction() const = 0;
  /// Kernels that the method adds to a layer's decode step if each axis runs as one or a few
  /// kernels.
  [[nodiscard]] virtual std::int32_t extra_launches() const = 0;
  /// The same in plain PyTorch: one operator per product, sum, gather or scatter of the equations.
  /// `has_rows`: whether attention leaves its rows in memory.
  [[nodiscard]] virtual std::int32_t eager_operators(bool /*has_rows*/) const {
    return extra_launches();
  }
  /// True if the method merges entries; retained mass is then undefined.
  [[nodiscard]] virtual bool merges() const = 0;

  /// Entries that a (layer, stored head) holds after the compression that follows token `tokens`
  /// (prompt included), with a prefill of `prompt` tokens. nullopt if it depends on data and can
  /// only be replayed.
  [[nodiscard]] virtual std::optional<std::int64_t> entries_held(std::int32_t layer,
                                                                 std::int64_t prompt,
                                                                 std::int64_t tokens) const = 0;
  /// Entries attended at the decode step that brings the sequence to `tokens` tokens, including the
  /// new one.
  [[nodiscard]] virtual std::optional<std::int64_t> entries_attended(std::int32_t layer,
                                                                     std::int64_t prompt,
                                                                     std::int64_t tokens) const = 0;
  /// Entries held and attended, computed together.
  struct StepEntries {
    std::int64_t held = 0, attended = 0;
  };
  [[nodiscard]] virtual std::optional<StepEntries> step_entries(std::int32_t layer,
                                                                std::int64_t prompt,
                                                                std::int64_t tokens) const;
  /// True if each step after the prompt adds one entry to every layer and attends to all entries.
  /// One evaluation of the size law then covers all steps. False if this is not known.
  [[nodiscard]] virtual bool appends_in_decode() const { return false; }
  /// True if the stored heads of a layer are known to hold different numbers of entries.
  /// entries_held and entries_attended are then means over heads.
  [[nodiscard]] virtual bool ragged() const { return false; }
  /// Writes the entries of each of `held.size()` stored heads of `layer` in descending order. For a
  /// GPU with fewer heads than the law covers, each value is the longest head of a run, because the
  /// other GPUs wait for the GPU that stores it. Errors: ContractError if the size depends on data.
  virtual void heads_held(std::int32_t layer, std::int64_t prompt, std::int64_t tokens,
                          std::span<std::int64_t> held) const;
  /// True if all layers follow the same size law, so that one evaluation is enough. This is a hint:
  /// evaluating each layer produces the same result more slowly.
  [[nodiscard]] virtual bool has_equal_layers() const { return false; }
  /// Stored heads per layer: n_kv_heads, or n_heads under `granularity=query_head`.
  [[nodiscard]] virtual std::int32_t stored_heads(const LayerShape& shape) const = 0;
  /// Format of stored entries; `recorded` is the format of the model or trace.
  [[nodiscard]] virtual Dtype store_dtype(Dtype recorded) const = 0;

  /// Traffic of one decode step of `layer`. `attended`: entries per stored head; `evicts`: whether
  /// the step evicts, which is always one entry per head here.
  [[nodiscard]] virtual StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape,
                                                   Dtype recorded, double attended,
                                                   bool evicts) const = 0;

  /// Cache of all stored heads of `layer` by the size law; nullopt if it can only be replayed.
  /// Includes formats without a fixed number of bits per element, pairs of layers, and offload.
  [[nodiscard]] virtual std::optional<CacheBytes> layer_bytes(std::int32_t layer,
                                                              const LayerShape& shape,
                                                              Dtype recorded, std::int64_t prompt,
                                                              std::int64_t tokens) const;
  /// The same for stored heads with `entries` entries each, `prompt_entries` of them from the
  /// prompt. The default is plain rows without side data.
  [[nodiscard]] virtual CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape,
                                              Dtype recorded, std::int64_t prompt_entries,
                                              std::int64_t entries) const;
  /// Only rows_bytes().side.
  [[nodiscard]] virtual Bytes side_bytes(std::int32_t layer, const LayerShape& shape,
                                         Dtype recorded, std::int64_t prompt_entries,
                                         std::int64_t entries) const {
    return rows_bytes(layer, shape, recorded, prompt_entries, entries).side;
  }
  /// True if K and V are plain rows of store_dtype in every layer.
  [[nodiscard]] virtual bool plain_rows() const { return true; }
  /// True if every token is stored in rows of a fixed size as soon as it is written, so that an
  /// engine's pages can consist of such rows.
  [[nodiscard]] virtual bool fixed_rows() const { return false; }
  /// Layers of the same kind have the same bytes and traffic for the same number of entries.
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  /// Work and memory added to the prefill of `prompt` tokens in `layer`.
  [[nodiscard]] virtual PrefillExtra prefill_extra(std::int32_t layer, const LayerShape& shape,
                                                   Dtype recorded, std::int64_t prompt) const;
  /// The tokens of the prompt that go through `layer`; all of them by default.
  [[nodiscard]] virtual PromptPart prompt_part(std::int32_t /*layer*/) const { return {}; }
  /// Work over all `tokens` entries per decode step in released code that evicts only by a mask;
  /// dropping the entries would avoid it. None by default.
  [[nodiscard]] virtual PrefillExtra masked_step(std::int32_t layer, const LayerShape& shape,
                                                 Dtype recorded, std::int64_t tokens) const;
};

/// Stored K, V and side bytes of one layer by the size law; nullopt if there is no law.
[[nodiscard]] std::optional<Bytes> layer_cache_bytes(const Method& method, std::int32_t layer,
                                                     const LayerShape& shape, Dtype recorded,
                                                     std::int64_t prompt, std::int64_t tokens);

/// A method's budget: a fraction of the prompt (0 < f <= 1) or a number of entries per head.
struct Budget {
  double fraction = 0;       // > 0: entries = int(fraction * prompt)
  std::int64_t entries = 0;  // used if fraction is 0
};

/// A method as specified by the user. `name` is a preset, or presets and single choices joined by
/// "+".
struct MethodSpec {
  std::string name;
  Params params;
  std::optional<Budget> budget;
};

/// A parameter of a method: meaning, range and source. Its type is the type of the default.
struct ParamInfo {
  std::string name;
  std::string symbol;
  ParamValue default_value;
  double low = 0, high = 0;        // numbers: inclusive bounds
  std::vector<std::string> words;  // strings: allowed values
  std::string range;               // the range in words
  std::string help;
  std::string source;
  std::vector<std::string> aliases;  // other accepted spellings
};
struct MethodInfo {
  std::string name;
  std::string summary;
  std::string paper;
  std::map<std::string, std::string> axes;  // axis -> choice
  std::vector<ParamInfo> params;
  std::string size_law;
  std::string cost_class;
};
[[nodiscard]] const std::vector<MethodInfo>& builtin_methods();

/// The catalogue's entry of a preset, or the equivalent for a composition ("h2o+store=fp16"). A
/// composition's axes and parameters are resolved; its size law and cost class are those of the
/// preset with the same select and merge choices. Errors: InputError as in make_method, only for
/// the name.
[[nodiscard]] MethodInfo describe_method(const std::string& name);

/// The model and trace that a method is applied to. A budget is a share of bytes, so storage per
/// query head or in another format changes its number of entries.
struct MethodContext {
  Dtype recorded = Dtype::kFp16;
  LayerShape shape{};                   // zeros: one query head per KV head
  std::vector<std::int64_t> windows{};  // window of each layer, 0 for none; empty: no layer has one
  std::int32_t n_layers = 0;            // 0: unknown; methods whose law needs it report an error
  /// For a model with layers whose caches no method compresses: for each layer, its index among the
  /// compressible layers, or -1. `windows` and `n_layers` cover only compressible layers.
  std::vector<std::int32_t> ordinals{};
  std::int32_t d_model = 0;                      // 0: unknown
  std::optional<TraceInputs> recorded_inputs{};  // contents of the trace; nullopt: no trace
};

/// Resolves `spec` for a prompt of `prompt` tokens. Errors: InputError (unknown method or
/// parameter, value outside its range, two choices on one axis, a budget the method cannot keep).
/// The message contains no location; callers add it.
[[nodiscard]] std::shared_ptr<const Method> make_method(const MethodSpec& spec, std::int64_t prompt,
                                                        const MethodContext& site = {});

/// Returns the method, its budget and its given parameters in a canonical spelling. The order of
/// the name's parts and parameter aliases do not affect it. Errors: InputError for an unknown name.
[[nodiscard]] std::string canonical_text(const MethodSpec& spec);

/// True for methods that take a budget (`full` does not). Errors: InputError for an unknown name.
[[nodiscard]] bool takes_budget(std::string_view name);

/// Formats a value for messages and tables: 0.6, 18000, code.
[[nodiscard]] std::string to_text(const ParamValue& value);

}  // namespace kvsim
