// KVarN (vLLM, vllm/v1/attention/backends/kvarn_attn.py): tiles of 128 or 64 tokens of one head.
// Keys and values are rotated by a Hadamard matrix, then rows and columns of a tile are scaled
// until their standard deviations are nearly equal. Keys are rounded per channel, values per token.
//
//   x ~ (code step + zero) scale of the other side, all three in fp16
//
// The first tokens and those of an unfinished tile stay in fp16. A tile is rounded between the step
// that fills it and the next one. The engine's pool for fp16 rows has a fixed size, which limits
// its sequences; here each sequence is charged for its rows.

#include "models/math/kvarn.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "models/math/low_int.hpp"
#include "models/methods/store/store.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kKeyBits = 4;
constexpr std::int32_t kIterations = 8;  // KVarNConfig.sinkhorn_iters

struct KvarnShape {
  std::int32_t value_bits = 4;
  std::int32_t tile = 128;  // g, tokens
  std::int64_t sinks = 128;

  [[nodiscard]] std::int64_t tiles(std::int64_t entries) const {
    return std::max<std::int64_t>(entries - sinks, 0) / tile;
  }
  /// Codes, and fp16 numbers: for keys two per channel and one per token, for values two per token
  /// and one per channel. Padded to 8 bytes; with 256 or more channels, the bytes per token are a
  /// power of 2.
  [[nodiscard]] std::int64_t tile_bytes(std::int32_t head_dim) const {
    const std::int64_t d = head_dim;
    const std::int64_t codes = (d * tile * kKeyBits + 7) / 8 + (d * tile * value_bits + 7) / 8;
    const std::int64_t bytes = codes + 2 * (2 * d + tile) + 2 * (d + 2 * tile);
    if (d < 256) return (bytes + 7) / 8 * 8;
    const auto slot = static_cast<std::uint64_t>((bytes + tile - 1) / tile);
    return static_cast<std::int64_t>(std::bit_ceil(slot)) * tile;
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t entries, std::int32_t head_dim) const {
    const std::int64_t full = tiles(entries);
    return full * tile_bytes(head_dim) +
           (entries - full * tile) * bytes_of(2LL * head_dim, Dtype::kFp16).count();
  }
};

class KvarnStore final : public Store {
 public:
  KvarnStore(const KvarnShape& shape, const SessionPlace& place)
      : shape_{shape}, d_{place.head_dim} {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) appended(entries, slot);
    stepped(entries);
  }
  void appended(EntryTable& entries, std::int32_t slot) override {
    for (const std::span<float> row : {entries.mutable_key(slot), entries.mutable_value(slot)}) {
      for (float& x : row) x = as_stored(x, Dtype::kFp16);
    }
  }
  void stepped(EntryTable& entries) override {
    requantised_.clear();
    for (; rounded_ < shape_.tiles(entries.size()); ++rounded_) {
      round_tile(entries, static_cast<std::int32_t>(shape_.sinks + rounded_ * shape_.tile));
    }
  }
  void rewritten(EntryTable& /*entries*/, std::int32_t slot) override {
    KVSIM_CHECK(false, "a merge into slot {} of a tile", slot);
  }
  std::span<const std::int32_t> requantised() const override { return requantised_; }
  Bytes kv_bytes(const EntryTable& entries) const override {
    return Bytes{rounded_ * shape_.tile_bytes(d_) + (entries.size() - rounded_ * shape_.tile) *
                                                        bytes_of(2LL * d_, Dtype::kFp16).count()};
  }

 private:
  /// Tokens never leave, so slots are positions.
  void round_tile(EntryTable& entries, std::int32_t first) {
    const auto d = static_cast<std::size_t>(d_);
    const auto g = static_cast<std::size_t>(shape_.tile);
    const float norm = std::sqrt(static_cast<float>(d_));
    std::vector<float> keys(d * g), values(g * d), row(d);
    const auto rotate = [&] {
      hadamard(row);
      for (float& x : row) x /= norm;
    };
    for (std::size_t t = 0; t < g; ++t) {
      const std::int32_t slot = first + static_cast<std::int32_t>(t);
      const auto key = entries.key(slot);
      row.assign(key.begin(), key.end());
      rotate();
      for (std::size_t j = 0; j < d; ++j) keys[j * g + t] = row[j];
      const auto value = entries.value(slot);
      row.assign(value.begin(), value.end());
      rotate();
      std::copy(row.begin(), row.end(), values.begin() + static_cast<std::ptrdiff_t>(t * d));
      requantised_.push_back(entries.id(slot));
    }
    const KvarnTile k = kvarn_tile(keys, d_, shape_.tile, (1 << kKeyBits) - 1, kIterations);
    const KvarnTile v =
        kvarn_tile(values, shape_.tile, d_, (1 << shape_.value_bits) - 1, kIterations);
    for (std::int32_t t = 0; t < shape_.tile; ++t) {
      for (std::int32_t j = 0; j < d_; ++j) row[static_cast<std::size_t>(j)] = k.value(j, t);
      rotate();
      std::copy(row.begin(), row.end(), entries.mutable_key(first + t).begin());
      for (std::int32_t j = 0; j < d_; ++j) row[static_cast<std::size_t>(j)] = v.value(t, j);
      rotate();
      std::copy(row.begin(), row.end(), entries.mutable_value(first + t).begin());
    }
  }

  KvarnShape shape_;
  std::int32_t d_;
  std::int64_t rounded_ = 0;  // tiles
  std::vector<std::int32_t> requantised_;
};

class KvarnRule final : public StoreRule {
 public:
  explicit KvarnRule(const KvarnShape& shape) : shape_{shape} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype /*recorded*/) const override {
    return std::make_unique<KvarnStore>(shape_, place);
  }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kFp16; }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  bool groups_tokens() const override { return true; }
  bool rounds_rows_apart() const override { return false; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t entries, std::int32_t head_dim,
                 Dtype /*recorded*/) const override {
    return Bytes{shape_.bytes(entries, head_dim)};
  }
  double bits_per_element(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return 4.0 * static_cast<double>(shape_.tile_bytes(head_dim)) / shape_.tile / head_dim;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    add_dequant(traffic, events, shape, /*copy=*/false);
    const double d = shape.head_dim;
    // A key, a value, each query and each output are rotated; one token's share of a tile is read,
    // balanced and written.
    traffic.extra_flops += rotation_flops(shape.head_dim) * 2 * (1 + shape.group);
    traffic.extra_flops += 2.0 * d * kBalanceFlops;
    traffic.move_read += 2.0 * d * bits_of(Dtype::kFp16) / 8.0;
    traffic.move_write += static_cast<double>(shape_.tile_bytes(shape.head_dim)) / shape_.tile;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const double rows =
        2.0 * static_cast<double>(shape_.tiles(prompt) * shape_.tile) * shape.n_kv_heads;
    PrefillExtra extra;
    extra.flops = rows * (rotation_flops(shape.head_dim) + shape.head_dim * kBalanceFlops);
    extra.launches = 3;  // rotation, balance, codes; the cache write includes their bytes
    return extra;
  }

 private:
  // Per element: in each iteration two passes of a standard deviation (3), without the logarithm,
  // and of a division by both scales (2), and the two deviations of the imbalance (3 each); then
  // minimum, maximum, difference, division, rounding and clamp.
  static constexpr double kBalanceFlops = kIterations * (2 * 3 + 2 * 2 + 2 * 3) + 6;
  KvarnShape shape_;
};

std::shared_ptr<const StoreRule> make_kvarn(MethodResolver& resolver) {
  check_rotation(resolver);
  if (resolver.choice("select") != "all" || resolver.choice("share") != "none") {
    resolver.refuse(
        fmt::format("store=kvarn rounds tiles of tokens, from which none can be evicted: expected "
                    "select=all and share=none, got select={} and share={}",
                    resolver.choice("select"), resolver.choice("share")));
  }
  const std::int64_t bits = resolver.integer("value_bits");
  if (bits != 2 && bits != 4) {
    resolver.refuse(fmt::format("value_bits: expected 2 or 4 (vLLM's presets), got {}", bits));
  }
  const std::int64_t tile = resolver.integer("tile");
  if (tile != 64 && tile != 128) {
    resolver.refuse(fmt::format("tile: expected 64 or 128 tokens (vLLM's presets), got {}", tile));
  }
  const std::int64_t sinks = resolver.integer("full_tokens");
  if (sinks % tile != 0) {
    resolver.refuse(fmt::format("full_tokens: expected a multiple of the tile of {} tokens, got {}",
                                tile, sinks));
  }
  return std::make_shared<KvarnRule>(KvarnShape{.value_bits = static_cast<std::int32_t>(bits),
                                                .tile = static_cast<std::int32_t>(tile),
                                                .sinks = sinks});
}

}  // namespace

AxisChoice store_kvarn() {
  const std::string source = "vLLM vllm/model_executor/layers/quantization/kvarn/config.py";
  return {.axis = "store",
          .name = "kvarn",
          .params = with_kept_layers(
              {integer_param("value_bits", "", 4, 2, 4, "2 or 4",
                             "bits of a value's code; keys have 4", source),
               integer_param("tile", "g", 128, 64, 128, "64 or 128",
                             "tokens of a tile, which is the engine's block", source),
               integer_param("full_tokens", "", 128, 0, 1048576, "a multiple of the tile",
                             "first tokens kept in fp16", source + " (sink_tokens)")}),
          .make = &make_kvarn};
}

}  // namespace kvsim
