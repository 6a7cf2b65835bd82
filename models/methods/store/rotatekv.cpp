// RotateKV (Su et al. 2025, arXiv 2501.16383; RotateKV_fake_quant/, fuse_weights.py and
// k_reordering_calibration.py, 3055e2b): keys before RoPE, rotated across heads and sorted by
// channel; a few tokens of the prompt stay exact.
//
//   keys    a layer's row before RoPE, 4 heads each times a Hadamard matrix of 4 d; the channels
//           of the layer in ascending order of their sums over a calibration set; then codes in
//           groups of channels. Order, rotation and RoPE are applied when a key is read
//   values  times a Hadamard matrix of d, then codes in the same groups
//   low = clip min x, high = clip max x, step = (high - low) / (2^bits - 1), zero = round(-low /
//   step); code = clamp(round(x / step) + zero, 0, 2^bits - 1). The range need not contain 0
//
// Pivot tokens (attention sinks) are those with the 20 largest elements of the hidden states. Some
// traces hold the normalised input of attention: pivots=hidden uses the 20 tokens with its largest
// elements. The default is the first 20 tokens, where most sinks are. Rows of generated tokens are
// also quantised.
//
// The authors sum channels over other texts. A replay omits the order (order=identity) or computes
// it from the layer's prompt (order=trace), which is an optimistic bound.
//
// The released step divides by bits^2 - 1, which is 8 instead of 7 at 3 bits (levels=code). Groups
// of equal channels, whose step would be 0, use the range from 0 to the channels' value. The
// released code only simulates rounding; step and zero point are counted as fp16. Rotations of new
// rows are part of the weights and have no cost.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "models/math/low_float.hpp"
#include "models/math/low_int.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/store/row_store.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct RotatekvSettings {
  std::int32_t bits = 2;
  std::int32_t divisor = 3;  // of the range
  float clip = 0.8F;
  std::int32_t group = 128;     // channels per step and zero point
  std::int32_t head_group = 4;  // KV heads that are rotated together
  std::int64_t pivots = 20;     // at most the prompt's length
  bool by_hidden = false;       // pivots by hidden states
  bool orders = false;          // channels in the order of the prompt's sums
  [[nodiscard]] std::int32_t top() const { return (1 << bits) - 1; }
};

/// Multiplies `row` by the Hadamard matrix, whose square is the identity.
void rotate(std::span<float> row) {
  const float norm = std::sqrt(static_cast<float>(row.size()));
  hadamard(row);
  for (float& x : row) x /= norm;
}

/// Replaces each element by its dequantised value.
void round_groups(std::span<float> row, const RotatekvSettings& set) {
  for (std::size_t at = 0; at < row.size(); at += static_cast<std::size_t>(set.group)) {
    const std::span<float> part = row.subspan(at, static_cast<std::size_t>(set.group));
    const auto [least, most] = std::minmax_element(part.begin(), part.end());
    const float low = *least * set.clip;
    const float step = (*most * set.clip - low) / static_cast<float>(set.divisor);
    const QuarotRow scale =
        step > 0 ? QuarotRow{.step = step, .zero = std::nearbyint(-low / step), .levels = set.top()}
                 : quarot_row(part, set.top(), 1);
    for (float& x : part) x = quarot_value(quarot_code(x, scale), scale);
  }
}

/// The keys of a layer before RoPE, rotated and sorted by channel.
class RotatekvKeys {
 public:
  RotatekvKeys(const RotatekvSettings& settings, std::vector<HeadVectors> heads, const Rope& rope)
      : set_{settings}, heads_{std::move(heads)}, rope_{&rope} {
    order_.resize(heads_.size() * head_dim());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }
  /// Returns channels in ascending order of their sums over the prompt; ties go to the lower index.
  [[nodiscard]] std::vector<double> prompt_order() const {
    std::vector<double> sums(order_.size(), 0.0);
    for (std::int64_t t = 0; t < heads_.front().prompt; ++t) {
      const std::vector<float> row = rotated(t);
      for (std::size_t c = 0; c < row.size(); ++c) sums[c] += static_cast<double>(row[c]);
    }
    std::vector<std::size_t> order = order_;
    std::stable_sort(order.begin(), order.end(),
                     [&sums](std::size_t a, std::size_t b) { return sums[a] < sums[b]; });
    return {order.begin(), order.end()};
  }
  void use(const std::vector<double>& order) {
    for (std::size_t c = 0; c < order_.size(); ++c) order_[c] = static_cast<std::size_t>(order[c]);
  }
  /// Writes the dequantised key of head `h` at position t, with RoPE, to `key`.
  void read(std::size_t h, std::int64_t t, std::span<float> key) const {
    const std::vector<float> row = rotated(t);
    std::vector<float> sorted(row.size()), back(row.size());
    for (std::size_t c = 0; c < row.size(); ++c) sorted[c] = row[order_[c]];
    round_groups(sorted, set_);
    for (std::size_t c = 0; c < row.size(); ++c) back[order_[c]] = sorted[c];
    const std::size_t width = rotated_width(), first = h * head_dim() / width * width;
    rotate(std::span{back}.subspan(first, width));
    const auto own = std::span{back}.subspan(h * head_dim(), head_dim());
    std::copy(own.begin(), own.end(), key.begin());
    rope_->rotate(key, t);
  }

 private:
  [[nodiscard]] std::size_t head_dim() const {
    return static_cast<std::size_t>(heads_.front().head_dim);
  }
  [[nodiscard]] std::size_t rotated_width() const {
    return static_cast<std::size_t>(set_.head_group) * head_dim();
  }
  /// Returns the layer's row at position t before RoPE, with each group of heads rotated.
  [[nodiscard]] std::vector<float> rotated(std::int64_t t) const {
    std::vector<float> row;
    for (const HeadVectors& head : heads_) {
      const auto key = head.key(t);
      row.insert(row.end(), key.begin(), key.end());
      rope_->rotate(std::span{row}.last(head_dim()), -t);
    }
    const std::size_t width = rotated_width();
    KVSIM_CHECK(row.size() % width == 0, "{} channels in groups of {}", row.size(), width);
    for (std::size_t at = 0; at < row.size(); at += width) {
      rotate(std::span{row}.subspan(at, width));
    }
    return row;
  }

  RotatekvSettings set_;
  std::vector<HeadVectors> heads_;
  const Rope* rope_;
  std::vector<std::size_t> order_;  // order_[c]: the channel that is stored at c
};

class RotatekvFormat final : public RowFormat {
 public:
  RotatekvFormat(const RotatekvSettings& settings, const SessionPlace& place, std::uint64_t memo)
      : set_{settings}, rope_{place.rope}, memo_{memo} {}

  void calibrate(const EntryTable& /*entries*/, PromptScores& scores, std::size_t head) override {
    const Rope* rope = rope_;
    if (rope == nullptr && scores.knows_layer()) rope = scores.layer().rope;
    KVSIM_CHECK(rope != nullptr, "keys before RoPE without the rotary embedding");
    const bool whole = scores.knows_layer();
    std::vector<HeadVectors> heads =
        whole ? scores.layer().heads
              : std::vector<HeadVectors>{scores.heads().begin(), scores.heads().end()};
    head_ = head + static_cast<std::size_t>(whole ? scores.first_head() : 0);
    KVSIM_CHECK(head_ < heads.size(), "head {} of {}", head_, heads.size());
    keys_ = std::make_unique<RotatekvKeys>(set_, std::move(heads), *rope);
    if (set_.by_hidden) find_pivots(scores.layer(), scores.prompt());
    if (!set_.orders) return;
    keys_->use(whole ? scores.layer().memo->get(memo_, [&] { return keys_->prompt_order(); })
                     : keys_->prompt_order());
  }
  bool keeps(std::int32_t id, std::int64_t first) const override {
    return set_.by_hidden ? std::binary_search(pivots_.begin(), pivots_.end(), id) : id < first;
  }
  void round_key(std::span<float> key) const override {
    KVSIM_CHECK(false, "a key of {} channels without its position", key.size());
  }
  void round_value(std::span<float> value) const override {
    rotate(value);
    round_groups(value, set_);
    rotate(value);
  }
  void round_entry(EntryTable& entries, std::int32_t slot) override {
    keys_->read(head_, entries.id(slot), entries.mutable_key(slot));
    round_value(entries.mutable_value(slot));
  }

 private:
  /// Finds the prompt's tokens with the largest elements of the hidden states; ties go to the
  /// older.
  void find_pivots(const LayerVectors& layer, std::int32_t prompt) {
    const auto width = static_cast<std::size_t>(layer.d_model);
    std::vector<float> largest;
    for (std::int32_t t = 0; t < prompt; ++t) {
      largest.push_back(abs_max(layer.hidden.subspan(static_cast<std::size_t>(t) * width, width)));
    }
    pivots_.resize(largest.size());
    std::iota(pivots_.begin(), pivots_.end(), 0);
    std::stable_sort(pivots_.begin(), pivots_.end(), [&largest](std::int32_t a, std::int32_t b) {
      return largest[static_cast<std::size_t>(a)] > largest[static_cast<std::size_t>(b)];
    });
    pivots_.resize(std::min(pivots_.size(), static_cast<std::size_t>(set_.pivots)));
    std::sort(pivots_.begin(), pivots_.end());
  }

  RotatekvSettings set_;
  const Rope* rope_;
  std::uint64_t memo_;
  std::unique_ptr<RotatekvKeys> keys_;
  std::size_t head_ = 0;
  std::vector<std::int32_t> pivots_;  // by hidden states, ascending
};

class RotatekvRule final : public EndsRule {
 public:
  explicit RotatekvRule(const RotatekvSettings& settings)
      : EndsRule{{.first = settings.pivots, .last = 0}}, set_{settings}, memo_{next()} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& place, Dtype /*recorded*/) const override {
    return std::make_unique<RotatekvFormat>(set_, place, memo_);
  }
  bool needs_layer() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    needs.inputs.hidden = set_.by_hidden;
    return needs;
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return set_.bits <= 2 ? Dtype::kInt2 : Dtype::kInt4;
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    constexpr std::int64_t kScaleBytes = 2 * 2;  // step and zero point in fp16
    return Bytes{(static_cast<std::int64_t>(head_dim) * set_.bits + 7) / 8 +
                 head_dim / set_.group * kScaleBytes};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    // When keys are read, their rotation is reversed (by butterflies, as released) and RoPE is
    // applied; the weights rotate each query's output.
    const double entries = events.read >= 0 ? events.read : events.attended;
    const double width = static_cast<double>(set_.head_group) * shape.head_dim;
    traffic.extra_flops += entries * shape.head_dim * (std::log2(width) + 3);
    traffic.extra_flops += 2.0 * shape.head_dim * kRoundFlops;
    traffic.append_write =
        2.0 * shape.head_dim * bits_per_element(shape.head_dim, shape.recorded) / 8.0;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    extra.flops =
        2.0 * static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim * kRoundFlops;
    extra.launches = 2;  // codes of keys and values; the cache write includes their bytes
    return extra;
  }

 private:
  // Per element: minimum, maximum, division, rounding, sum and clamp (2).
  static constexpr double kRoundFlops = 7;
  /// Returns a unique key in LayerMemo for rules that share a layer. It does not affect results.
  static std::uint64_t next() {
    static std::atomic<std::uint64_t> made{0};
    return (std::uint64_t{1} << 62U) + made++;
  }
  RotatekvSettings set_;
  std::uint64_t memo_;
};

std::shared_ptr<const StoreRule> make_rotatekv(MethodResolver& resolver) {
  check_rotation(resolver);
  check_ends(resolver);
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("store=rotatekv rotates rows of KV heads: expected granularity=kv_head");
  }
  RotatekvSettings set;
  set.bits = static_cast<std::int32_t>(resolver.integer("bits"));
  set.divisor = resolver.word("levels") == "code" ? set.bits * set.bits - 1 : set.top();
  double clip = resolver.number("clip");
  if (clip == 0) clip = set.bits == 2 ? 0.8 : 1.0;
  resolver.resolve("clip", clip);
  set.clip = static_cast<float>(clip);
  const std::int32_t d = resolver.site().shape.head_dim;
  const std::int64_t group = std::min<std::int64_t>(resolver.integer("quant_group"), d);
  if (d % group != 0) {
    resolver.refuse(fmt::format(
        "quant_group: expected a divisor of the head dimension {}, or no less than it, got {}", d,
        group));
  }
  set.group = static_cast<std::int32_t>(group);
  const auto heads = static_cast<std::uint32_t>(resolver.integer("head_group"));
  if (!std::has_single_bit(heads)) {
    resolver.refuse(
        fmt::format("head_group: expected a power of two (a Hadamard rotation), got {}", heads));
  }
  const std::int32_t kv_heads = std::max(resolver.site().shape.n_kv_heads, 1);
  set.head_group = static_cast<std::int32_t>(heads);
  while (kv_heads % set.head_group != 0) set.head_group /= 2;
  resolver.resolve("head_group", std::int64_t{set.head_group});
  set.pivots = std::min(resolver.integer("pivots"), resolver.prompt());
  set.by_hidden = resolver.word("pivots_by") == "hidden";
  set.orders = resolver.word("order") == "trace";
  return std::make_shared<RotatekvRule>(set);
}

}  // namespace

AxisChoice store_rotatekv() {
  const std::string source = "RotateKV, utils.py";
  const std::string model = "RotateKV, modeling_llama_RotateKV.py";
  return {.axis = "store",
          .name = "rotatekv",
          .params = with_kept_layers(
              {integer_param("bits", "b", 2, 2, 4, "2, 3 or 4", "bits of a code",
                             source + ": RotateKV2 to RotateKV4"),
               number_param("clip", "", 0, 0, 1, "a number in [0, 1]; 0: 0.8 at 2 bits, else 1",
                            "share of a group's minimum and maximum that codes cover",
                            source + ", k_clip_ratio and v_clip_ratio"),
               integer_param("quant_group", "g", 128, 1, 65536, "an integer >= 1",
                             "channels under a step and a zero point, at most those of a head",
                             source + ", k_groupsize and v_groupsize"),
               integer_param("head_group", "", 4, 1, 1024, "a power of two",
                             "KV heads that are rotated together; halved until it divides them",
                             source + ", head_group_num"),
               word_param("levels", {"full", "code"},
                          "the range is divided by 2^bits - 1, or by bits^2 - 1",
                          "code: RotateKV, fake_quant.py, which differs at 3 bits"),
               word_param("order", {"identity", "trace"},
                          "channels in the recorded order, or sorted by their sums over the prompt "
                          "in this layer",
                          "RotateKV sorts them by sums over other texts; trace is an optimistic "
                          "bound"),
               integer_param("pivots", "", 20, 0, kManyEntries, "an integer >= 0",
                             "tokens of the prompt in the recorded format", model),
               word_param("pivots_by", {"first", "hidden"},
                          "the first tokens, or those with the largest elements of the hidden "
                          "states",
                          model + ": hidden states before the norm, which no trace has")}),
          .make = &make_rotatekv};
}

}  // namespace kvsim
