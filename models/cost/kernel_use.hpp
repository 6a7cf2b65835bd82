#pragma once

#include <cstdint>
#include <optional>

#include "models/cost/op.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// Which kernels a step's operators are, for calibrations that know them.

/// y[rows, out] = x[rows, in] w over weights of `weights`. Both 16-bit formats are one: the rates and
/// the bytes are the same.
[[nodiscard]] KernelUse gemm_use(std::int64_t rows, std::int64_t out, std::int64_t in,
                                 Dtype weights);
/// Formats of attention: queries of `compute` over a cache of `kv`.
[[nodiscard]] const KernelFormat* shared_attention_format(Dtype compute, Dtype kv);
/// A fused streaming kernel; nullopt where several launches stand in for one operation, or the
/// family has no kernel form.
[[nodiscard]] std::optional<KernelUse> stream_use(OpFamily family, std::int64_t rows, double read,
                                                  double written, std::int32_t launches,
                                                  Dtype dtype);

}  // namespace kvsim
