// Records of MLA's latent rows: 512 channels of the latent and 64 of RoPE. They are the key and,
// without the last 64 channels, the value. A trace holds them as one KV head of 576 channels whose
// values are the keys' first 512 channels and 64 zeros. Sources: fp8: vLLM
// csrc/libtorch_stable/cache_kernels.cu (00eb0c87) and v1/kv_cache_interface.py; nvfp4: FlashMLA
// pull request 18, vLLM pull request 51724.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/math/low_float.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kLatent = 512, kRope = 64, kRow = kLatent + kRope;
constexpr std::size_t kTile = 128;  // channels per fp32 scale
constexpr std::size_t kGroup = 16;  // channels per E4M3 scale

enum class Record : std::uint8_t { kRecorded, kFp8, kNvfp4 };

/// Rounds tiles of 128 to E4M3 with the scale max / 448, at least the smallest normal fp32 number.
void round_tiles(std::span<float> latent) {
  for (std::size_t at = 0; at < latent.size(); at += kTile) {
    const std::span<float> tile = latent.subspan(at, kTile);
    const float scale =
        std::max(abs_max(tile) / fp8_max(Fp8::kE4m3), std::numeric_limits<float>::min());
    round_fp8_row(tile, scale, Fp8::kE4m3);
  }
}

void round_groups(std::span<float> latent) {
  for (std::size_t at = 0; at < latent.size(); at += kGroup) {
    const std::span<float> values = latent.subspan(at, kGroup);
    const Nvfp4Group group = nvfp4_group(values, 1, Nvfp4Search::kMax6);
    for (std::size_t i = 0; i < kGroup; ++i) values[i] = nvfp4_value(group, i, 1);
  }
}

class DsMlaFormat final : public RowFormat {
 public:
  explicit DsMlaFormat(Record record) : record_{record} {}
  void round_key(std::span<float> key) const override {
    round_value(key);
    if (record_ != Record::kNvfp4) return;
    for (float& x : key.subspan(kLatent)) x = round_to_fp8(x, Fp8::kE4m3);
  }
  /// The channels of a value after the latent are zeros.
  void round_value(std::span<float> value) const override {
    if (record_ == Record::kFp8) round_tiles(value.first(kLatent));
    if (record_ == Record::kNvfp4) round_groups(value.first(kLatent));
  }

 private:
  Record record_;
};

class DsMlaRule final : public RowRule {
 public:
  explicit DsMlaRule(Record record) : record_{record} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<DsMlaFormat>(record_);
  }
  Dtype dtype(Dtype recorded) const override {
    return record_ == Record::kFp8     ? Dtype::kFp8E4m3
           : record_ == Record::kNvfp4 ? Dtype::kFp4
                                       : recorded;
  }
  Bytes entry_bytes(std::int32_t /*head_dim*/, Dtype recorded) const override {
    switch (record_) {
      case Record::kFp8:  // codes, four scales, RoPE in bf16
        return Bytes{kLatent + 4 * 4 + kRope * 2};
      case Record::kNvfp4:  // codes, RoPE in E4M3, 32 scales
        return Bytes{kLatent / 2 + kRope + kLatent / 16};
      case Record::kRecorded:
        break;
    }
    return bytes_of(kRow, recorded);
  }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return record_ == Record::kRecorded; }
  /// A key and its value are one record.
  bool rounds_rows_apart() const override { return false; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (record_ != Record::kRecorded) RowRule::add_step(traffic, events, shape);
    traffic.append_write = static_cast<double>(entry_bytes(shape.head_dim, shape.recorded).count());
  }

 private:
  Record record_;
};

std::shared_ptr<const StoreRule> make_ds_mla(MethodResolver& resolver) {
  const LayerShape& shape = resolver.site().shape;
  if (shape.head_dim != kRow || shape.n_kv_heads != 1) {
    resolver.refuse(
        fmt::format("store=ds-mla: expected a trace of latent rows, one KV head of {} channels, "
                    "got {} of {}; for a model with a latent cache, kv_dtype fp8 is this format",
                    kRow, shape.n_kv_heads, shape.head_dim));
  }
  const std::string& word = resolver.word("record");
  return std::make_shared<DsMlaRule>(word == "fp8"     ? Record::kFp8
                                     : word == "nvfp4" ? Record::kNvfp4
                                                       : Record::kRecorded);
}

}  // namespace

AxisChoice store_ds_mla() {
  return {.axis = "store",
          .name = "ds-mla",
          .params = {word_param("record", {"fp8", "nvfp4", "recorded"},
                                "656 B: latent in E4M3 with a scale per 128 channels, RoPE in "
                                "bf16; 352 B: latent in NVFP4, RoPE in E4M3; or as recorded, once",
                                "vLLM fp8_ds_mla; FlashMLA pull request 18")},
          .make = &make_ds_mla};
}

}  // namespace kvsim
