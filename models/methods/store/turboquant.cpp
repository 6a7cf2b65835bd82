// TurboQuant: keys as a norm and codes of a rotated direction, values in groups of one row.

#include "models/math/turboquant.hpp"

#include <algorithm>

#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

struct TurboQuantSettings {
  std::int32_t key_bits = 4;  // 8: E4M3 without a scale
  std::int32_t value_bits = 4;
  bool corrected = true;
  bool lmdeploy = false;  // LMDeploy's codes, with signs of the residuals
  Codebook codebook = Codebook::kEngine;
};

class TurboQuantFormat final : public RowFormat {
 public:
  TurboQuantFormat(const TurboQuantSettings& settings, Dtype recorded)
      : settings_{settings}, recorded_{recorded} {}
  void round_key(std::span<float> key) const override {
    if (settings_.lmdeploy) {
      round_lmdeploy_turbo_key(key, recorded_);
    } else if (settings_.key_bits == 8) {
      round_fp8_row(key, 1, Fp8::kE4m3);
    } else {
      round_turboquant_key(key, settings_.key_bits, settings_.corrected, settings_.codebook);
    }
  }
  void round_value(std::span<float> value) const override {
    if (settings_.lmdeploy) {
      round_lmdeploy_turbo_value(value, recorded_);
    } else {
      round_turboquant_value(value, settings_.value_bits);
    }
  }

 private:
  TurboQuantSettings settings_;
  Dtype recorded_;
};

class TurboQuantRule final : public RowRule {
 public:
  explicit TurboQuantRule(const TurboQuantSettings& settings) : settings_{settings} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/, Dtype recorded) const override {
    return std::make_unique<TurboQuantFormat>(settings_, recorded);
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return settings_.key_bits == 8 ? Dtype::kFp8E4m3 : Dtype::kInt4;
  }
  bool rounds_rows_apart() const override { return false; }
  /// A slot of both rows with an fp16 norm, step and minimum, rounded up to even.
  Bytes entry_bytes(std::int32_t head_dim, Dtype recorded) const override {
    const auto codes = [&](std::int32_t bits) {
      return (static_cast<std::int64_t>(head_dim) * bits + 7) / 8;
    };
    if (settings_.lmdeploy) return Bytes{codes(4) + codes(2)} + bytes_of(3, recorded);
    constexpr std::int64_t kFp16Bytes = 2;
    const std::int64_t norm = settings_.key_bits == 8 ? 0 : kFp16Bytes;
    const std::int64_t slot =
        codes(settings_.key_bits) + norm + codes(settings_.value_bits) + 2 * kFp16Bytes;
    return Bytes{slot + slot % 2};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (settings_.lmdeploy) {
      RowRule::add_step(traffic, events, shape);
    } else {
      // vLLM's kernel has one program per query head, which unpacks all keys and values of its KV
      // head without tensor cores. A lane's instruction rate equals its multiply-add rate.
      const double entries = events.read >= 0 ? events.read : events.attended;
      traffic.extra_flops += 2.0 * instructions() * entries * shape.head_dim * shape.group;
    }
    if (settings_.key_bits == 8) return;
    // The engines rotate the new key and each query by a matrix product; LMDeploy also rotates the
    // value and each output.
    const double rotations = (1 + shape.group) * (settings_.lmdeploy ? 2.0 : 1.0);
    traffic.extra_flops += rotation_flops(shape.head_dim) * rotations;
  }

 private:
  /// Instructions per channel of a key and a value, counted in the kernel's source: vLLM
  /// vllm/v1/attention/ops/triton_turboquant_decode.py, _tq_decode_stage1. One byte is loaded per
  /// channel, or two if a code may cross a byte boundary, because the addresses of lanes are not
  /// contiguous.
  [[nodiscard]] double instructions() const {
    // Two 64-bit addresses (4) and loads (2), joining, shift and mask (3), address and load of the
    // level (3), norm, its correction, selection and product (4); E4M3: conversion (2), share of
    // vector loads (1), selection and product (2).
    const double key = settings_.key_bits == 8 ? 5 : 16;
    // Address (2), load, shift, mask, conversion, step and minimum, sum (6); a code of 3 bits needs
    // a second address and load, and joining (5 with the shift).
    const double value = settings_.value_bits == 3 ? 13 : 8;
    return key + value;
  }
  TurboQuantSettings settings_;
};

std::shared_ptr<const StoreRule> make_turboquant(MethodResolver& resolver) {
  const std::string& preset = resolver.word("preset");
  TurboQuantSettings settings;
  if (preset == "k8v4") {
    settings.key_bits = 8;
  } else if (preset == "k3v4_nc") {
    settings.key_bits = 3;
  } else if (preset == "3bit_nc") {
    settings.key_bits = settings.value_bits = 3;
  } else if (preset == "qjl4v2") {
    settings.lmdeploy = true;
  }
  if (settings.key_bits != 8) check_rotation(resolver);
  if (settings.key_bits != 8 && !settings.lmdeploy) {
    settings.corrected = resolver.flag("norm_correction");
    settings.codebook = resolver.word("codebook") == "exact" ? Codebook::kExact : Codebook::kEngine;
  }
  return std::make_shared<TurboQuantRule>(settings);
}

}  // namespace

AxisChoice store_turboquant() {
  return {.axis = "store",
          .name = "turboquant",
          .params = with_kept_layers(
              {word_param("preset", {"4bit_nc", "k8v4", "k3v4_nc", "3bit_nc", "qjl4v2"},
                          "bits of keys and values: vLLM's presets, or LMDeploy's 3 bits and a "
                          "sign for keys and 2 bits for values",
                          "vLLM vllm/model_executor/layers/quantization/turboquant/config.py; "
                          "LMDeploy: --quant-policy 42"),
               flag_param("norm_correction", true,
                          "scale the levels of a key to a unit vector, so that its norm is kept",
                          "vLLM's presets that end in _nc"),
               word_param("codebook", {"engine", "exact"},
                          "levels of vLLM's numerical solution, or of the exact Lloyd-Max "
                          "quantiser",
                          "vLLM vllm/v1/attention/ops/turboquant/centroids.py")},
              KeptEnds::kDense),
          .make = &make_turboquant};
}

}  // namespace kvsim
