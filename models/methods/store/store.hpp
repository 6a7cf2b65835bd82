#pragma once

// The choices of the store axis, one maker per file; the list is in choices.cpp.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice store_recorded();
AxisChoice store_fp32();
AxisChoice store_fp16();
AxisChoice store_bf16();
AxisChoice store_int8();
AxisChoice store_rtn();
AxisChoice store_fp8_e4m3();
AxisChoice store_fp8_e5m2();
AxisChoice store_smoothquant();
AxisChoice store_kivi();
AxisChoice store_hf_quantized();
AxisChoice store_gear();
AxisChoice store_think();
AxisChoice store_masked();
AxisChoice store_nvfp4();
AxisChoice store_mx16();
AxisChoice store_ultraquant();
AxisChoice store_fp8_token();
AxisChoice store_int8_token();
AxisChoice store_int4_rotated();
AxisChoice store_quarot();
AxisChoice store_rotatekv();
AxisChoice store_lmdeploy();
AxisChoice store_turboquant();
AxisChoice store_kvarn();
AxisChoice store_oscar();
AxisChoice store_kvquant();
AxisChoice store_polar();
AxisChoice store_ds_mla();

/// Parameter for the place of dequantisation: inside the attention kernel, or into a copy of the
/// whole cache in the recorded format.
[[nodiscard]] ParamInfo dequant_param();
/// Adds two operations per element; a copy is also written and read back.
void add_dequant(StepTraffic& traffic, const StepEvents& events, const HeadShape& shape, bool copy);

/// Refuses head sizes that are not a power of two, which a Hadamard rotation requires.
void check_rotation(MethodResolver& resolver);
/// Returns the FLOPs of rotating one vector of `head_dim` channels by a matrix product.
[[nodiscard]] double rotation_flops(std::int32_t head_dim);

/// The largest magnitudes of keys and values in a layer's prompt, or in the session's heads if the
/// layer is unknown.
struct PromptMaxima {
  float key = 0, value = 0;
};
[[nodiscard]] PromptMaxima prompt_maxima(PromptScores& scores);

/// Parameter for a checkpoint's static scale of `side` ("keys").
[[nodiscard]] ParamInfo static_scale_param(std::string name, const std::string& side);

/// Layers at both ends of a model that TurboQuant keeps in the recorded format by default: 2 at
/// each end of a dense model, none of a hybrid model.
enum class KeptEnds : std::uint8_t { kNone, kDense };
/// Returns `params` with the parameters that keep layers in the recorded format.
[[nodiscard]] std::vector<ParamInfo> with_kept_layers(std::vector<ParamInfo> params,
                                                      KeptEnds ends = KeptEnds::kNone);
/// Returns for each layer whether the store keeps it in the recorded format, according to the
/// parameters of with_kept_layers; empty if none. Errors: refuses layers that the model does not
/// have.
[[nodiscard]] std::vector<bool> kept_layers(MethodResolver& resolver);

/// Parameter for the bits of one code: 2, 4 or 8.
[[nodiscard]] ParamInfo code_bits_param(std::int64_t bits, std::string source);
/// Returns the bits of one code. Errors: refuses code sizes that do not pack into bytes.
[[nodiscard]] std::int32_t resolved_code_bits(MethodResolver& resolver);

}  // namespace kvsim
