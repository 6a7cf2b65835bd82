// KVQuant (Hooper et al. 2024, arXiv 2401.18079; quant/kvquant/simquant_module_quantizer.py): codes
// of a codebook ("nuq") and a share of outliers that stay exact.
//
//   keys    before RoPE, per channel: lower and upper percentiles of the channel; z in [-1, 1]
//           between them; elements outside are outliers
//   values  per token: the smallest and the largest elements of the layer's row are outliers; z in
//           [-1, 1] for the other elements
//   x ~ codebook[nearest z] * range + middle, one codebook for the keys and one for the values of a
//   layer, by k-means over all z except outliers
//
// A row of a layer has the same number of places for outliers in its keys and in its values (the
// released option cap_outliers: 21 on each side of 4096 channels), with 16 bits of value and 16 of
// index each. Key outliers without a place use the nearest code, so the number of bytes is fixed.
// The released code calibrates thresholds and codebooks on other texts, weighted by Fisher
// information; a replay uses the prompt, without weights. They are parts of the model and not
// counted. Q-Norm is omitted. The first tokens stay exact. RoPE is applied to keys when they are
// read.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "models/math/kmeans.hpp"
#include "models/methods/store/row_store.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kIterations = 50;  // KMeans(max_iter=50)

struct KvquantSettings {
  std::int32_t bits = 3;
  double share = 0.01;  // outliers, half on each side
  std::int64_t sinks = 1;
  std::int32_t kv_heads = 1;
  /// Number of places for outliers on each side of a layer's row.
  [[nodiscard]] std::int64_t places(std::int32_t head_dim) const {
    if (share <= 0) return 0;
    const std::int64_t channels = static_cast<std::int64_t>(kv_heads) * head_dim;
    return static_cast<std::int64_t>(share / 2 * static_cast<double>(channels - 1)) + 1;
  }
};

/// Returns the quantile with linear interpolation, like NumPy's percentile. Reorders `values`.
double quantile(std::vector<float>& values, double share) {
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), middle, values.end());
  const auto low = static_cast<double>(*middle);
  if (below + 1 >= values.size()) return low;
  const auto high = static_cast<double>(*std::min_element(middle + 1, values.end()));
  return low + (at - static_cast<double>(below)) * (high - low);
}

/// One row of a layer with its outliers.
struct RoundedRow {
  std::vector<float> z;          // [channels], within [-1, 1] except for outliers
  std::vector<bool> is_outlier;  // [channels]
  float middle = 0, range = 0;   // of values
};

/// Data fixed after the prompt: middle and range of keys per channel of the layer, and both
/// codebooks.
class KvquantTables {
 public:
  KvquantTables(const KvquantSettings& settings, std::vector<HeadVectors> heads, const Rope& rope)
      : set_{settings}, heads_{std::move(heads)}, rope_{&rope} {}

  [[nodiscard]] std::vector<double> fit() {
    const auto d = static_cast<std::size_t>(heads_.front().head_dim);
    const std::int64_t prompt = heads_.front().prompt;
    std::vector<double> numbers;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      std::vector<std::vector<float>> columns(d);
      for (std::int64_t t = 0; t < prompt; ++t) {
        const std::vector<float> key = before_rope(h, t);
        for (std::size_t j = 0; j < d; ++j) columns[j].push_back(key[j]);
      }
      for (std::vector<float>& column : columns) {
        const double low = quantile(column, set_.share / 2);
        const double high = quantile(column, 1 - set_.share / 2);
        numbers.push_back((low + high) / 2);
        numbers.push_back((high - low) / 2);
      }
    }
    use(numbers);
    std::vector<float> keys, values;
    for (std::int64_t t = std::min(set_.sinks, prompt - 1); t < prompt; ++t) {
      const RoundedRow key = key_row(t, /*places=*/false);
      const RoundedRow value = value_row(t);
      for (std::size_t c = 0; c < key.z.size(); ++c) {
        if (!key.is_outlier[c]) keys.push_back(key.z[c]);
        if (!value.is_outlier[c]) values.push_back(value.z[c]);
      }
    }
    for (std::vector<float>* each : {&keys, &values}) {
      if (each->empty()) each->push_back(0);  // every element is an outlier
      for (const float level : kmeans_levels(std::move(*each), 1 << set_.bits, kIterations)) {
        numbers.push_back(static_cast<double>(level));
      }
    }
    use(numbers);
    return numbers;
  }
  /// Sets the numbers computed by `fit`.
  void use(const std::vector<double>& numbers) {
    const std::size_t channels = heads_.size() * static_cast<std::size_t>(heads_.front().head_dim);
    middle_.resize(channels);
    range_.resize(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      middle_[c] = static_cast<float>(numbers[2 * c]);
      range_[c] = static_cast<float>(numbers[2 * c + 1]);
    }
    const std::size_t levels = std::size_t{1} << static_cast<unsigned>(set_.bits);
    key_levels_.clear();
    value_levels_.clear();
    for (std::size_t i = 2 * channels; i < numbers.size(); ++i) {
      (i < 2 * channels + levels ? key_levels_ : value_levels_)
          .push_back(static_cast<float>(numbers[i]));
    }
  }

  /// Returns the row of the layer's keys at position t. `places`: whether outliers are limited to
  /// the row's places.
  [[nodiscard]] RoundedRow key_row(std::int64_t t, bool places) const {
    const auto d = static_cast<std::size_t>(heads_.front().head_dim);
    RoundedRow row;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const std::vector<float> key = before_rope(h, t);
      for (std::size_t j = 0; j < d; ++j) {
        const std::size_t c = h * d + j;
        const float range = range_[c];
        row.z.push_back(range > 0 ? (key[j] - middle_[c]) / range
                                  : signed_infinity(key[j] - middle_[c]));
      }
    }
    row.is_outlier.assign(row.z.size(), false);
    if (set_.share <= 0) return row;
    std::vector<std::pair<float, std::size_t>> above, below;
    for (std::size_t c = 0; c < row.z.size(); ++c) {
      if (row.z[c] > 1) above.emplace_back(-row.z[c], c);
      if (row.z[c] < -1) below.emplace_back(row.z[c], c);
    }
    const auto max = static_cast<std::size_t>(set_.places(heads_.front().head_dim));
    for (auto* side : {&above, &below}) {
      if (places && side->size() > max) {
        std::sort(side->begin(), side->end());
        side->resize(max);
      }
      for (const auto& [z, c] : *side) row.is_outlier[c] = true;
    }
    return row;
  }
  /// Returns the row of the layer's values at position t.
  [[nodiscard]] RoundedRow value_row(std::int64_t t) const {
    RoundedRow row;
    for (const HeadVectors& head : heads_) {
      const auto value = head.value(t);
      row.z.insert(row.z.end(), value.begin(), value.end());
    }
    const std::size_t n = row.z.size();
    row.is_outlier.assign(n, false);
    std::vector<std::size_t> order(n);
    for (std::size_t c = 0; c < n; ++c) order[c] = c;
    const auto less = [&row](std::size_t a, std::size_t b) {
      return row.z[a] != row.z[b] ? row.z[a] < row.z[b] : a < b;
    };
    const auto max =
        std::min(static_cast<std::size_t>(set_.places(heads_.front().head_dim)), (n - 1) / 2);
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(max);
    const auto last = order.end() - static_cast<std::ptrdiff_t>(max);
    if (max > 0) {
      std::nth_element(order.begin(), first - 1, order.end(), less);
      std::nth_element(first, last - 1, order.end(), less);
    }
    for (auto c = order.begin(); c != first; ++c) row.is_outlier[*c] = true;
    for (auto c = last; c != order.end(); ++c) row.is_outlier[*c] = true;
    // The released code replaces outliers by the median, which is within the range of the rest.
    const auto [min, max_at] = std::minmax_element(first, last, less);
    const float low = row.z[*min];
    const float high = row.z[*max_at];
    row.middle = (low + high) / 2;
    row.range = (high - low) / 2;
    for (float& x : row.z) x = row.range > 0 ? (x - row.middle) / row.range : 0.0F;
    return row;
  }

  [[nodiscard]] float key_value(const RoundedRow& row, std::size_t c) const {
    return range_[c] > 0 ? nearest(key_levels_, row.z[c]) * range_[c] + middle_[c] : middle_[c];
  }
  [[nodiscard]] float value_value(const RoundedRow& row, std::size_t c) const {
    return nearest(value_levels_, row.z[c]) * row.range + row.middle;
  }
  [[nodiscard]] std::vector<float> before_rope(std::size_t h, std::int64_t t) const {
    const auto key = heads_[h].key(t);
    std::vector<float> row{key.begin(), key.end()};
    rope_->rotate(row, -t);
    return row;
  }
  [[nodiscard]] const Rope& rope() const { return *rope_; }

 private:
  static float signed_infinity(float x) {
    return x == 0 ? 0.0F : std::copysign(std::numeric_limits<float>::infinity(), x);
  }
  /// Ties go to the first, as in the released code.
  static float nearest(const std::vector<float>& levels, float z) {
    float best = levels.front();
    for (const float each : levels) {
      if (std::abs(z - each) < std::abs(z - best)) best = each;
    }
    return best;
  }

  KvquantSettings set_;
  std::vector<HeadVectors> heads_;
  const Rope* rope_;
  std::vector<float> middle_, range_, key_levels_, value_levels_;
};

class KvquantFormat final : public RowFormat {
 public:
  KvquantFormat(const KvquantSettings& settings, const SessionPlace& place, std::uint64_t memo)
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
    d_ = static_cast<std::size_t>(heads.front().head_dim);
    tables_ = std::make_unique<KvquantTables>(set_, std::move(heads), *rope);
    if (whole) {
      tables_->use(scores.layer().memo->get(memo_, [&] { return tables_->fit(); }));
    } else {
      static_cast<void>(tables_->fit());
    }
  }
  void round_key(std::span<float> /*key*/) const override {
    KVSIM_CHECK(false, "a key of {} channels without its position", d_);
  }
  void round_value(std::span<float> /*value*/) const override {
    KVSIM_CHECK(false, "a value of {} channels without its layer", d_);
  }
  void round_entry(EntryTable& entries, std::int32_t slot) override {
    const std::int32_t id = entries.id(slot);
    const RoundedRow keys = tables_->key_row(id, /*places=*/true);
    const std::vector<float> exact = tables_->before_rope(head_, id);
    const std::span<float> key = entries.mutable_key(slot);
    for (std::size_t j = 0; j < d_; ++j) {
      const std::size_t c = head_ * d_ + j;
      key[j] = keys.is_outlier[c] ? exact[j] : tables_->key_value(keys, c);
    }
    tables_->rope().rotate(key, id);
    const RoundedRow values = tables_->value_row(id);
    const std::span<float> value = entries.mutable_value(slot);
    for (std::size_t j = 0; j < d_; ++j) {
      const std::size_t c = head_ * d_ + j;
      if (!values.is_outlier[c]) value[j] = tables_->value_value(values, c);
    }
  }

 private:
  KvquantSettings set_;
  const Rope* rope_;
  std::uint64_t memo_;
  std::unique_ptr<KvquantTables> tables_;
  std::size_t head_ = 0, d_ = 0;
};

class KvquantRule final : public EndsRule {
 public:
  explicit KvquantRule(const KvquantSettings& settings)
      : EndsRule{{.first = settings.sinks, .last = 0}}, set_{settings}, memo_{next()} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& place, Dtype /*recorded*/) const override {
    return std::make_unique<KvquantFormat>(set_, place, memo_);
  }
  bool needs_layer() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return set_.bits <= 2 ? Dtype::kInt2 : Dtype::kInt4;
  }
  Bytes entry_bytes(std::int32_t head_dim, Dtype recorded) const override {
    return rounded_bytes(1, head_dim, recorded);
  }
  /// Bytes of codes, and this head's part of a layer row's outliers and of its two numbers for
  /// values, rounded up.
  Bytes rounded_bytes(std::int64_t entries, std::int32_t head_dim,
                      Dtype /*recorded*/) const override {
    const std::int64_t codes = 2 * ((static_cast<std::int64_t>(head_dim) * set_.bits + 7) / 8);
    const std::int64_t shared = entries * layer_row(head_dim);
    return Bytes{entries * codes + (shared + set_.kv_heads - 1) / set_.kv_heads};
  }
  double bits_per_element(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return set_.bits + 4.0 * static_cast<double>(layer_row(head_dim)) / set_.kv_heads / head_dim;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    const double entries = events.read >= 0 ? events.read : events.attended;
    traffic.extra_flops += 3.0 * entries * shape.head_dim;  // RoPE is applied to keys when read
    traffic.extra_flops += 2.0 * shape.head_dim * round_flops();
    traffic.append_write =
        2.0 * shape.head_dim * bits_per_element(shape.head_dim, shape.recorded) / 8.0;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    extra.flops =
        2.0 * static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim * round_flops();
    extra.launches = 4;  // outliers and codes; the cache write includes their bytes
    return extra;
  }

 private:
  /// Bytes of a layer's row: outliers of keys and values, and two numbers for values.
  [[nodiscard]] std::int64_t layer_row(std::int32_t head_dim) const {
    constexpr std::int64_t kOutlier = 2 + 2;
    constexpr std::int64_t kPair = 2 + 2;
    return 2 * 2 * set_.places(head_dim) * kOutlier + kPair;
  }
  /// Per element: middle and range (2), two comparisons with the thresholds, a search in the
  /// codebook.
  [[nodiscard]] double round_flops() const { return 4.0 + set_.bits; }
  /// Returns a unique key in LayerMemo for rules that share a layer. It does not affect results.
  static std::uint64_t next() {
    static std::atomic<std::uint64_t> made{0};
    return (std::uint64_t{3} << 62U) + made++;
  }
  KvquantSettings set_;
  std::uint64_t memo_;
};

std::shared_ptr<const StoreRule> make_kvquant(MethodResolver& resolver) {
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse(
        "store=kvquant finds outliers in rows of KV heads: expected granularity=kv_head");
  }
  const std::int64_t bits = resolver.integer("bits");
  if (bits < 2 || bits > 4) {
    resolver.refuse(fmt::format("bits: expected 2, 3 or 4 (KVQuant's nuq), got {}", bits));
  }
  check_ends(resolver);
  return std::make_shared<KvquantRule>(
      KvquantSettings{.bits = static_cast<std::int32_t>(bits),
                      .share = resolver.number("outlier_share"),
                      .sinks = resolver.integer("full_first"),
                      .kv_heads = std::max(resolver.site().shape.n_kv_heads, 1)});
}

}  // namespace

AxisChoice store_kvquant() {
  const std::string source = "KVQuant, released code";
  std::vector<ParamInfo> params{
      integer_param("bits", "b", 3, 2, 4, "2, 3 or 4", "bits of a code", "KVQuant: nuq2 to nuq4"),
      number_param("outlier_share", "s", 0.01, 0, 0.5, "[0, 0.5]",
                   "share of elements stored separately, half of them the smallest",
                   "KVQuant: 1 %"),
      ends_params(1, 0, source + " (first_few_fp16)").front()};
  return {.axis = "store",
          .name = "kvquant",
          .params = with_kept_layers(std::move(params)),
          .make = &make_kvquant};
}

}  // namespace kvsim
