// MiniCache (Liu et al. 2024): starting at the middle of the model, two neighbouring layers share
// one direction per token and keep separate norms. Both layers keep the full rows of tokens that
// differ too much.

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "models/math/merging/slerp.hpp"
#include "models/methods/share/share.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

enum class PairMerge : std::uint8_t { kSlerp, kMaxNorm, kAverage };
enum class Retention : std::uint8_t { kRangeFar, kTopkFar, kPaperLiteral, kNone };
enum Side : std::size_t { kKeys = 0, kValues = 1 };

struct MiniCacheShape {
  std::int32_t first_layer = 0;  // S
  std::int32_t n_layers = 0;
  PairMerge merge = PairMerge::kSlerp;
  double interpolation = 0.6;  // t
  Retention rule = Retention::kRangeFar;
  double retention = 0.05;  // gamma
  bool whole_rows = true;   // unit=token
  bool folded = false;
  std::int32_t n_kv_heads = 1;

  /// Norms kept per token for keys and values of one layer of the pair (max_norm: half of the
  /// pair's).
  [[nodiscard]] std::int64_t norms() const {
    return merge == PairMerge::kSlerp ? 2 : merge == PairMerge::kMaxNorm ? 1 : 0;
  }
  [[nodiscard]] std::int64_t topk(std::int64_t prompt) const {
    return std::min(prompt,
                    static_cast<std::int64_t>(std::ceil(retention * static_cast<double>(prompt))));
  }
};

constexpr std::int64_t kIndexBytes = 4;

/// Returns half of a pair's shared bytes, rounded up.
std::int64_t half(std::int64_t bytes) { return (bytes + 1) / 2; }

class MiniCachePair final : public Sharer {
 public:
  MiniCachePair(const MiniCacheShape& shape, const SessionPlace& place, const StoreRule& store,
                Dtype recorded)
      : shape_{shape},
        place_{place},
        store_{store},
        recorded_{recorded},
        d_{static_cast<std::size_t>(place.head_dim)} {
    for (auto& of_layer : norms_) {
      for (auto& of_side : of_layer) of_side.resize(static_cast<std::size_t>(place.tokens), 0.0);
    }
    for (auto& flags : retained_) flags.resize(static_cast<std::size_t>(place.tokens), 0);
  }

  void prompt_written(std::span<EntryTable* const> heads, PromptScores& scores) override {
    heads_ = heads.size() / 2;
    KVSIM_CHECK(heads.size() == 2 * heads_ && heads_ >= 1, "a pair of {} heads", heads.size());
    for (auto* row : {&shallow_, &deep_, &e_, &other_e_}) row->resize(heads_ * d_);
    if (store_.rounds()) {
      for (std::size_t h = 0; h < heads_; ++h) {
        directions_.emplace_back(place_.head_dim);
        stores_.push_back(store_.start(place_, recorded_));
      }
    }
    std::vector<std::int32_t> ids{heads.front()->ids().begin(), heads.front()->ids().end()};
    std::sort(ids.begin(), ids.end());
    choose_retained(heads, ids);
    for (const std::int32_t id : ids) merge(heads, id);
    if (!ids.empty()) next_ = scores.prompt();
    if (!store_.rounds()) return;
    for (std::size_t h = 0; h < heads_; ++h) {
      stores_[h]->prompt_written(directions_[h], scores, h);
    }
    for (const std::int32_t id : ids) restore(heads, id);
  }

  void stepped(std::span<EntryTable* const> heads) override {
    const std::int32_t id = next_++;
    const bool held = heads.front()->slot_of(id) >= 0;  // otherwise it left immediately
    if (held) merge(heads, id);
    if (!store_.rounds()) return;
    for (std::size_t h = 0; h < heads_; ++h) {
      if (held) stores_[h]->appended(directions_[h], directions_[h].slot_of(id));
      stores_[h]->stepped(directions_[h]);
    }
    if (held) restore(heads, id);
    for (const std::int32_t each : stores_.front()->requantised()) restore(heads, each);
  }

  void leaving(std::span<const std::int32_t> ids) override {
    for (const std::int32_t id : ids) {
      if (id >= next_) continue;  // the newest, not merged yet
      --merged_;
      for (const Side side : {kKeys, kValues}) {
        char& kept = retained_[side][static_cast<std::size_t>(id)];
        n_retained_[side] -= kept;
        kept = 0;
      }
      for (std::size_t h = 0; h < directions_.size(); ++h) {
        stores_[h]->leaving(directions_[h], id);
        directions_[h].erase(directions_[h].slot_of(id));
      }
    }
  }

  CacheBytes cache_bytes(std::span<EntryTable* const> heads, std::size_t head) const override {
    const std::int64_t pending = heads.front()->size() - merged_;
    return {
        .kv = Bytes{half(direction_bytes(head)) + own_bytes(head) +
                    (first_of_layer(head) ? half(index_bytes()) : 0) + pending * full_row_bytes()},
        .side = Bytes{0},
        .host = Bytes{0}};
  }
  Bytes read_bytes(std::span<EntryTable* const> heads, std::size_t head) const override {
    const std::int64_t pending = heads.front()->size() - merged_;
    return Bytes{direction_bytes(head) + own_bytes(head) +
                 (first_of_layer(head) ? index_bytes() : 0) + pending * full_row_bytes()};
  }
  void report(Counts& counts) const override {
    counts["minicache_retained_keys"] += static_cast<double>(chosen_[kKeys]);
    counts["minicache_retained_values"] += static_cast<double>(chosen_[kValues]);
    counts["minicache_antipodal"] += antipodal_;
  }

 private:
  [[nodiscard]] bool first_of_layer(std::size_t head) const { return head % heads_ == 0; }
  [[nodiscard]] std::int64_t full_row_bytes() const {
    return bytes_of(2LL * place_.head_dim, store_.dtype(recorded_)).count();
  }
  /// Bytes of the pair's directions, for one KV head.
  [[nodiscard]] std::int64_t direction_bytes(std::size_t head) const {
    if (store_.rounds()) {
      return stores_[head % heads_]->kv_bytes(directions_[head % heads_]).count();
    }
    return bytes_of(2 * merged_ * place_.head_dim, store_.dtype(recorded_)).count();
  }
  [[nodiscard]] std::int64_t retained() const { return n_retained_[kKeys] + n_retained_[kValues]; }
  /// Bytes of a single layer: retained rows, and norms (counted with the first head).
  [[nodiscard]] std::int64_t own_bytes(std::size_t head) const {
    const std::int64_t rows = retained() * store_.row_bytes(place_.head_dim, recorded_).count();
    const std::int64_t norms =
        first_of_layer(head) ? bytes_of(shape_.norms() * merged_, recorded_).count() : 0;
    return rows + norms;
  }
  [[nodiscard]] std::int64_t index_bytes() const { return kIndexBytes * retained(); }

  /// Collects the row of `id` in both layers.
  void gather(std::span<EntryTable* const> heads, std::int32_t id, Side side) {
    const std::int32_t slot = heads.front()->slot_of(id);
    for (std::size_t h = 0; h < 2 * heads_; ++h) {
      const auto row = side == kKeys ? heads[h]->key(slot) : heads[h]->value(slot);
      std::vector<double>& into = h < heads_ ? shallow_ : deep_;
      std::copy(row.begin(), row.end(),
                into.begin() + static_cast<std::ptrdiff_t>(h % heads_ * d_));
    }
  }

  void choose_retained(std::span<EntryTable* const> heads, const std::vector<std::int32_t>& ids) {
    if (ids.empty()) return;
    for (const Side side : {kKeys, kValues}) {
      std::vector<double> distance;
      std::vector<std::int32_t> antipodal;
      for (const std::int32_t id : ids) {
        gather(heads, id, side);
        const Slerp found = slerp(shallow_, deep_, shape_.interpolation, e_);
        distance.push_back(found.angle / std::numbers::pi);
        if (found.antipodal) antipodal.push_back(id);
      }
      for (const std::size_t at : far_ones(distance)) retain(ids[at], side);
      // Opposite rows have no common direction: such tokens are retained if the rule allows it.
      const bool forced = shape_.merge == PairMerge::kSlerp && shape_.retention > 0 &&
                          shape_.rule != Retention::kNone && shape_.rule != Retention::kTopkFar;
      for (const std::int32_t id : antipodal) {
        if (forced) retain(id, side);
      }
      antipodal_ += static_cast<double>(antipodal.size());
    }
  }
  /// Returns the indices of tokens whose full rows are kept.
  [[nodiscard]] std::vector<std::size_t> far_ones(const std::vector<double>& distance) const {
    std::vector<std::size_t> kept;
    const auto [low, high] = std::minmax_element(distance.begin(), distance.end());
    const double reach = shape_.retention * (*high - *low);
    if (shape_.rule == Retention::kTopkFar) {
      for (std::size_t i = 0; i < distance.size(); ++i) kept.push_back(i);
      const auto count =
          static_cast<std::size_t>(shape_.topk(static_cast<std::int64_t>(distance.size())));
      std::sort(kept.begin(), kept.end(), [&distance](std::size_t a, std::size_t b) {
        return distance[a] != distance[b] ? distance[a] > distance[b] : a < b;
      });
      kept.resize(count);
      return kept;
    }
    for (std::size_t i = 0; i < distance.size(); ++i) {
      if ((shape_.rule == Retention::kRangeFar && distance[i] > *high - reach) ||
          (shape_.rule == Retention::kPaperLiteral && distance[i] < *low + reach)) {
        kept.push_back(i);
      }
    }
    return kept;
  }
  void retain(std::int32_t id, Side side) {
    char& kept = retained_[side][static_cast<std::size_t>(id)];
    if (kept != 0) return;
    kept = 1;
    ++n_retained_[side];
    ++chosen_[side];
  }

  /// Computes the common direction of both layers' rows and, unless it is quantised later, the rows
  /// that will be read.
  void merge(std::span<EntryTable* const> heads, std::int32_t id) {
    ++merged_;
    const auto at = static_cast<std::size_t>(id);
    for (const Side side : {kKeys, kValues}) {
      gather(heads, id, side);
      std::vector<double>& e = side == kKeys ? e_ : other_e_;
      const Slerp found = slerp(shallow_, deep_, shape_.interpolation, e);
      norms_[0][side][at] = found.norm_a;
      norms_[1][side][at] = found.norm_b;
      if (shape_.merge != PairMerge::kSlerp) mean_direction(found, side, at, e);
      if (retained_[side][at] != 0 && store_.rounds()) round_retained(heads, id, side);
    }
    if (!store_.rounds()) {
      for (const Side side : {kKeys, kValues}) {
        write(heads, id, side, side == kKeys ? e_ : other_e_);
      }
      return;
    }
    key_.resize(d_);
    value_.resize(d_);
    for (std::size_t h = 0; h < heads_; ++h) {
      for (std::size_t j = 0; j < d_; ++j) {
        key_[j] = static_cast<float>(e_[h * d_ + j]);
        value_[j] = static_cast<float>(other_e_[h * d_ + j]);
      }
      directions_[h].append(id, key_, value_);
    }
  }
  /// max_norm: the mean's direction and the larger norm; average: the mean itself.
  void mean_direction(const Slerp& found, Side side, std::size_t at, std::vector<double>& e) {
    double norm = 0;
    for (std::size_t j = 0; j < e.size(); ++j) {
      e[j] = 0.5 * (shallow_[j] + deep_[j]);
      norm += e[j] * e[j];
    }
    norm = std::sqrt(norm);
    const double kept =
        shape_.merge == PairMerge::kAverage ? norm : std::max(found.norm_a, found.norm_b);
    norms_[0][side][at] = norms_[1][side][at] = kept;
    if (shape_.merge == PairMerge::kMaxNorm && norm > 0) {
      for (double& x : e) x /= norm;
    }
  }
  void round_retained(std::span<EntryTable* const> heads, std::int32_t id, Side side) {
    const std::int32_t slot = heads.front()->slot_of(id);
    for (EntryTable* head : heads) {
      store_.round_row(side == kKeys ? head->mutable_key(slot) : head->mutable_value(slot),
                       recorded_);
    }
  }
  /// Restores both layers' rows from the stored direction.
  void restore(std::span<EntryTable* const> heads, std::int32_t id) {
    for (const Side side : {kKeys, kValues}) {
      for (std::size_t h = 0; h < heads_; ++h) {
        const std::int32_t slot = directions_[h].slot_of(id);
        const auto row = side == kKeys ? directions_[h].key(slot) : directions_[h].value(slot);
        std::copy(row.begin(), row.end(), e_.begin() + static_cast<std::ptrdiff_t>(h * d_));
      }
      write(heads, id, side, e_);
    }
  }
  /// x = e / |e| * norm of the layer (eq. 2); average: e.
  void write(std::span<EntryTable* const> heads, std::int32_t id, Side side,
             const std::vector<double>& e) {
    const auto at = static_cast<std::size_t>(id);
    if (retained_[side][at] != 0) return;
    double length = 0;
    for (const double x : e) length += x * x;
    length = std::sqrt(length);
    const std::int32_t slot = heads.front()->slot_of(id);
    for (std::size_t h = 0; h < 2 * heads_; ++h) {
      const double norm = norms_[h < heads_ ? 0 : 1][side][at];
      const double factor =
          shape_.merge == PairMerge::kAverage ? 1.0 : (length > 0 ? norm / length : 0.0);
      const auto row = side == kKeys ? heads[h]->mutable_key(slot) : heads[h]->mutable_value(slot);
      const double* from = e.data() + h % heads_ * d_;
      for (std::size_t j = 0; j < d_; ++j) row[j] = static_cast<float>(from[j] * factor);
    }
  }

  MiniCacheShape shape_;
  SessionPlace place_;
  const StoreRule& store_;
  Dtype recorded_;
  std::size_t d_;
  std::size_t heads_ = 1;                                    // per layer
  std::array<std::array<std::vector<double>, 2>, 2> norms_;  // [layer][side][id]
  std::array<std::vector<char>, 2> retained_;                // [side][id]
  std::array<std::int64_t, 2> n_retained_{}, chosen_{};
  std::int64_t merged_ = 0;  // entries whose direction is stored
  std::int32_t next_ = 0;    // position of the next token to merge
  double antipodal_ = 0;
  std::vector<EntryTable> directions_;  // by KV head, if the store rounds
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<double> shallow_, deep_, e_, other_e_;
  std::vector<float> key_, value_;
};

class MiniCacheRule final : public ShareRule {
 public:
  explicit MiniCacheRule(const MiniCacheShape& shape) : shape_{shape} {}
  bool starts_pair(std::int32_t layer, std::int32_t n_layers) const override {
    return layer >= shape_.first_layer && (layer - shape_.first_layer) % 2 == 0 &&
           layer + 1 < n_layers;
  }
  bool whole_rows() const override { return shape_.whole_rows; }
  std::unique_ptr<Sharer> start(const SessionPlace& place, const StoreRule& store,
                                Dtype recorded) const override {
    return std::make_unique<MiniCachePair>(shape_, place, store, recorded);
  }
  std::optional<CacheBytes> layer_bytes(const LayerShape& shape, Dtype recorded,
                                        const StoreRule& store, std::int64_t prompt,
                                        std::int64_t entries) const override {
    std::int64_t retained = 0;  // for keys and for values
    if (shape_.rule == Retention::kTopkFar) {
      retained = shape_.topk(prompt);
    } else if (shape_.rule != Retention::kNone && shape_.retention > 0) {
      return std::nullopt;
    }
    const std::int64_t units = shape_.whole_rows ? 1 : shape.n_kv_heads;
    const std::int64_t directions =
        half(store.kv_bytes(prompt, entries, shape.head_dim, recorded).count()) * shape.n_kv_heads;
    const std::int64_t rows =
        2 * retained * store.row_bytes(shape.head_dim, recorded).count() * shape.n_kv_heads;
    const std::int64_t norms = bytes_of(shape_.norms() * entries, recorded).count() * units;
    const std::int64_t indices = half(kIndexBytes * 2 * retained) * units;
    return CacheBytes{
        .kv = Bytes{directions + rows + norms + indices}, .side = Bytes{0}, .host = Bytes{0}};
  }
  double bytes_share() const override {
    const double paired = shape_.n_layers < 1
                              ? 0.0
                              : (shape_.n_layers - shape_.first_layer) / 2 * 2.0 / shape_.n_layers;
    // A layer of a pair: half a direction, and its retained rows (an estimate for range_far).
    const double retained = shape_.rule == Retention::kNone ? 0.0 : shape_.retention;
    return 1.0 - paired * (0.5 - retained);
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double d = shape.head_dim;
    const double element = bits_of(shape.recorded) / 8.0;
    const double entries = events.attended;
    StepTraffic more;
    if (events.stored < 0) {  // replay includes them in the bytes read
      const double norms =
          static_cast<double>(shape_.norms()) / (shape_.whole_rows ? shape_.n_kv_heads : 1.0);
      more.attention_read += entries * norms * element;
    }
    if (shape_.folded) {
      more.extra_flops += 2.0 * entries * shape.group;  // logits by |k|, probabilities by |v|
    } else {
      more.extra_flops += 2.0 * entries * d;
      more.move_write += 2.0 * entries * d * element;
    }
    // Each layer's half of merging a row of the pair: 10 operations per element; parked rows are
    // read.
    more.extra_flops += 10.0 * d;
    more.move_read += d * element;
    traffic += more * events.shared;
    // Tensors that grow by concatenation are shared by a pair.
    traffic.repacked *= 1.0 - 0.5 * events.shared;
    traffic.recopied *= 1.0 - 0.5 * events.shared;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const double elements =
        2.0 * static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim;  // of K and V
    PrefillExtra extra;
    extra.flops = 10.0 * elements;
    extra.read = 2.0 * elements * bits_of(recorded) / 8.0;
    extra.written = elements * bits_of(recorded) / 8.0;
    // The shallower layer's full rows are held until the deeper layer is processed.
    extra.transient = bytes_of(2 * prompt * shape.n_kv_heads * shape.head_dim, recorded);
    extra.launches = 8;
    return extra;
  }

 private:
  MiniCacheShape shape_;
};

std::shared_ptr<const ShareRule> resolve_minicache(MethodResolver& resolver) {
  const std::int32_t layers = resolver.n_layers();
  MiniCacheShape shape;
  shape.n_layers = layers;
  const std::int64_t automatic = layers / 2 / 2 * 2;
  const std::int64_t first = resolver.integer("first_layer");
  shape.first_layer = static_cast<std::int32_t>(first < 0 ? automatic : first);
  if (shape.first_layer % 2 != 0 || shape.first_layer > layers) {
    resolver.refuse(
        fmt::format("first_layer: expected an even number in [0, {}] (layers are "
                    "merged two by two, MiniCache section 4.2), got {}",
                    layers, first));
  }
  resolver.resolve("first_layer", std::int64_t{shape.first_layer});
  const std::string& merge = resolver.word("merge");
  shape.merge = merge == "slerp"      ? PairMerge::kSlerp
                : merge == "max_norm" ? PairMerge::kMaxNorm
                                      : PairMerge::kAverage;
  if (shape.merge == PairMerge::kSlerp) shape.interpolation = resolver.number("interpolation");
  const std::string& rule = resolver.word("retention_rule");
  shape.rule = rule == "range_far"       ? Retention::kRangeFar
               : rule == "topk_far"      ? Retention::kTopkFar
               : rule == "paper_literal" ? Retention::kPaperLiteral
                                         : Retention::kNone;
  shape.retention = shape.rule == Retention::kNone ? 0.0 : resolver.number("retention");
  shape.whole_rows = resolver.word("unit") == "token";
  shape.folded = resolver.word("restore") == "folded";
  shape.n_kv_heads = std::max(resolver.site().shape.n_kv_heads, 1);
  const std::string& store = resolver.choice("store");
  if (store == "smoothquant-kv" || store == "think" || store == "gear" || store == "masked") {
    resolver.refuse(fmt::format(
        "share=minicache stores directions common to two layers, which store={} does not support: "
        "expected recorded, fp32, fp16, bf16, int8, rtn, kivi, fp8-e4m3 or fp8-e5m2",
        store));
  }
  if (store == "nvfp4" && resolver.store().needs_layer()) {
    resolver.refuse(
        "global: a layer's rows do not determine the scale of the directions that share=minicache "
        "stores: expected one or given, got a maximum of the prompt");
  }
  if (store.starts_with("fp8-e") && resolver.word("scale") == "tensor") {
    resolver.refuse(
        "scale: a layer's rows do not determine the scale of the directions that share=minicache "
        "stores: expected head or token, got tensor");
  }
  return std::make_shared<MiniCacheRule>(shape);
}

}  // namespace

AxisChoice share_minicache() {
  return {
      .axis = "share",
      .name = "minicache",
      .params =
          {integer_param("first_layer", "S", -1, -1, 65536,
                         "even, at most the number of layers; -1: the largest even number up to "
                         "half of them",
                         "first merged layer", "MiniCache section 5: half of the layers", {"S"}),
           word_param("merge", {"slerp", "max_norm", "average"},
                      "how two rows are combined into one direction", "MiniCache eq. (3), eq. (A)"),
           number_param("interpolation", "t", 0.6, 0, 1, "[0, 1]", "weight of the deeper layer",
                        "MiniCache section 5: 0.6", {"t"}),
           word_param("retention_rule", {"range_far", "topk_far", "paper_literal", "none"},
                      "prompt tokens kept whole: distance above the largest minus gamma times the "
                      "range, the share gamma with the largest distances, eq. (4) as printed (the "
                      "nearest), or none",
                      "MiniCache eq. (4) according to its text; KVCache-Factory: topk_far"),
           number_param("retention", "gamma", 0.05, 0, 1, "[0, 1]",
                        "share of the range of distances, or of the tokens",
                        "MiniCache section 5: 0.05", {"gamma"}),
           word_param("unit", {"token", "head"},
                      "a direction for the row of all heads, or for each head",
                      "MiniCache's size law has one norm per row; KVCache-Factory works per head"),
           word_param("restore", {"unfolded", "folded"},
                      "keys and values written out before attention, or norms multiplied into "
                      "logits and probabilities",
                      "MiniCache eq. (2) restores; folding is ours")},
      .make = &resolve_minicache};
}

}  // namespace kvsim
