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
AxisChoice store_gear();
AxisChoice store_think();
AxisChoice store_masked();

/// Where codes are dequantised: inside the attention kernel, or as a copy of the whole cache in the
/// recorded format.
[[nodiscard]] ParamInfo dequant_param();
/// Two operations per element; a copy is also written and read back.
void add_dequant(StepTraffic& traffic, const StepEvents& events, const HeadShape& shape, bool copy);

/// Bits of one code: 2, 4 or 8.
[[nodiscard]] ParamInfo code_bits_param(std::int64_t bits, std::string source);
/// Errors: refuses code sizes that do not pack into bytes.
[[nodiscard]] std::int32_t resolved_code_bits(MethodResolver& resolver);

}  // namespace kvsim
