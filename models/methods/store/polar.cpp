// PolarQuant keys (Wu et al. 2025, arXiv 2502.00527; models/modeling_llama_polar.py): the two
// channels of a RoPE pair are stored as angle and radius, with 4 bits each.
//
//   angle = atan2 in [0, 2 pi); per pair and group of tokens: step = (max - min) / 16,
//   code = floor((angle - min) / step), decoded at min + (code + 1/2) step; the same for the radius
//
// Step and minimum are in the recorded format. Values stay as recorded, and also keys until their
// group is full; it is rounded after the step that fills it. (This is not the method of the same
// name with recursive polar coordinates of the whole vector.)

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <fmt/format.h>

#include "models/math/low_int.hpp"
#include "models/methods/store/store.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr float kBins = 16;  // 4 bits

struct PolarShape {
  std::int64_t group = 128;  // tokens
  [[nodiscard]] std::int64_t groups(std::int64_t entries) const { return entries / group; }
  /// Bytes of a group of keys: one byte per pair and token; step and minimum of angle and radius
  /// per pair.
  [[nodiscard]] std::int64_t group_bytes(std::int32_t head_dim, Dtype recorded) const {
    const std::int64_t pairs = head_dim / 2;
    return group * pairs + bytes_of(4 * pairs, recorded).count();
  }
  [[nodiscard]] Bytes bytes(std::int64_t entries, std::int32_t head_dim, Dtype recorded) const {
    const std::int64_t rounded = groups(entries) * group;
    return Bytes{groups(entries) * group_bytes(head_dim, recorded)} +
           bytes_of((2 * entries - rounded) * head_dim, recorded);
  }
};

class PolarStore final : public Store {
 public:
  PolarStore(const PolarShape& shape, const SessionPlace& place, Dtype recorded)
      : shape_{shape}, d_{place.head_dim}, recorded_{recorded}, rope_{place.rope} {}

  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t /*head*/) override {
    if (rope_ == nullptr && scores.knows_layer()) rope_ = scores.layer().rope;
    stepped(entries);
  }
  void appended(EntryTable& /*entries*/, std::int32_t /*slot*/) override {}
  void stepped(EntryTable& entries) override {
    requantised_.clear();
    for (; rounded_ < shape_.groups(entries.size()); ++rounded_) {
      round_group(entries, rounded_ * shape_.group);
    }
  }
  void rewritten(EntryTable& /*entries*/, std::int32_t slot) override {
    KVSIM_CHECK(false, "a merge into slot {} of a group", slot);
  }
  std::span<const std::int32_t> requantised() const override { return requantised_; }
  Bytes kv_bytes(const EntryTable& entries) const override {
    return Bytes{rounded_ * shape_.group_bytes(d_, recorded_)} +
           bytes_of((2LL * entries.size() - rounded_ * shape_.group) * d_, recorded_);
  }

 private:
  /// Replaces each number by the middle of its bin between minimum and maximum.
  void round(std::vector<float>& numbers) const {
    const auto [min, max] = std::minmax_element(numbers.begin(), numbers.end());
    const float zero = as_stored(*min, recorded_);
    const float step = as_stored((*max - *min) / kBins, recorded_);
    for (float& x : numbers) {
      const float code =
          step > 0 ? std::clamp(std::floor((x - zero) / step), 0.0F, kBins - 1) : 0.0F;
      x = zero + (code + 0.5F) * step;
    }
  }
  /// Tokens never leave, so slots are positions.
  void round_group(EntryTable& entries, std::int64_t first) {
    KVSIM_CHECK(rope_ != nullptr, "pairs of channels without the rotary embedding");
    const auto n = static_cast<std::size_t>(shape_.group);
    std::vector<float> angles(n), radii(n);
    for (std::size_t pair = 0; pair < rope_->pairs(); ++pair) {
      const std::size_t a = rope_->first_of(pair);
      const std::size_t b = rope_->second_of(pair);
      for (std::size_t t = 0; t < n; ++t) {
        const auto key =
            entries.key(static_cast<std::int32_t>(first) + static_cast<std::int32_t>(t));
        const float angle = std::atan2(key[b], key[a]);
        angles[t] = angle < 0 ? angle + 2 * std::numbers::pi_v<float> : angle;
        radii[t] = std::sqrt(key[a] * key[a] + key[b] * key[b]);
      }
      round(angles);
      round(radii);
      for (std::size_t t = 0; t < n; ++t) {
        const auto key =
            entries.mutable_key(static_cast<std::int32_t>(first) + static_cast<std::int32_t>(t));
        key[a] = radii[t] * std::cos(angles[t]);
        key[b] = radii[t] * std::sin(angles[t]);
      }
    }
    for (std::int64_t t = first; t < first + shape_.group; ++t) {
      requantised_.push_back(entries.id(static_cast<std::int32_t>(t)));
    }
  }

  PolarShape shape_;
  std::int32_t d_;
  Dtype recorded_;
  const Rope* rope_;
  std::int64_t rounded_ = 0;  // groups
  std::vector<std::int32_t> requantised_;
};

class PolarRule final : public StoreRule {
 public:
  explicit PolarRule(const PolarShape& shape) : shape_{shape} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<PolarStore>(shape_, place, recorded);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  Dtype dtype(Dtype recorded) const override { return recorded; }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  bool groups_tokens() const override { return true; }
  bool rounds_rows_apart() const override { return false; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    return shape_.bytes(entries, head_dim, recorded);
  }
  double bits_per_element(std::int32_t head_dim, Dtype recorded) const override {
    const double key = 8.0 * static_cast<double>(shape_.group_bytes(head_dim, recorded)) /
                       static_cast<double>(shape_.group) / head_dim;
    return (key + bits_of(recorded)) / 2;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    // For each pair and group, the kernel computes the products of the query with every angle (3
    // for each of 16). A key then needs a lookup, a radius and a sum per pair.
    const double pairs = shape.head_dim / 2.0;
    const double groups = events.attended / static_cast<double>(shape_.group);
    traffic.extra_flops += shape.group * pairs * (3.0 * kBins * groups + 3.0 * events.attended);
    // A key's share of a group is read, rounded and written.
    traffic.extra_flops += pairs * kRoundFlops;
    traffic.move_read += shape.head_dim * bits_of(shape.recorded) / 8.0;
    traffic.move_write += static_cast<double>(shape_.group_bytes(shape.head_dim, shape.recorded)) /
                          static_cast<double>(shape_.group);
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    extra.flops =
        static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim / 2.0 * kRoundFlops;
    extra.launches = 2;  // angles and radii, codes; the cache write includes their bytes
    return extra;
  }

 private:
  // Per pair: radius (4), angle (1), and for both minimum, maximum, difference, division, floor.
  static constexpr double kRoundFlops = 5 + 2 * 5;
  PolarShape shape_;
};

std::shared_ptr<const StoreRule> make_polar(MethodResolver& resolver) {
  if (resolver.choice("select") != "all" || resolver.choice("share") != "none") {
    resolver.refuse(
        fmt::format("store=polar rounds groups of tokens, from which none can be evicted: expected "
                    "select=all and share=none, got select={} and share={}",
                    resolver.choice("select"), resolver.choice("share")));
  }
  const std::int32_t d = resolver.site().shape.head_dim;
  if (d % 2 != 0) {
    resolver.refuse(fmt::format("store=polar: expected an even head size, got {}", d));
  }
  return std::make_shared<PolarRule>(PolarShape{.group = resolver.integer("quant_group")});
}

}  // namespace

AxisChoice store_polar() {
  return {.axis = "store",
          .name = "polar",
          .params = with_kept_layers(
              {integer_param("quant_group", "g", 128, 1, 65536, "an integer in [1, 65536]",
                             "tokens of a group", "PolarQuant, released code (group_size)")}),
          .make = &make_polar};
}

}  // namespace kvsim
