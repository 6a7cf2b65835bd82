#pragma once

#include <cstdint>
#include <optional>

#include "models/cost/op.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// Which kernels a step's operators are, for calibrations that know them.

/// y[rows, out] = x[rows, in] w, in `passes` equal parts of its rows, where w takes `weight_bytes`
/// and the product is in `compute`. Both 16-bit formats are one: the rates and the bytes are the
/// same.
[[nodiscard]] KernelUse gemm_use(std::int64_t rows, std::int64_t out, std::int64_t in,
                                 double weight_bytes, Dtype compute, std::int32_t passes = 1);
/// Sums of `bytes` over `gpus` GPUs of a node.
[[nodiscard]] KernelUse all_reduce_use(double bytes, std::int32_t gpus, std::int32_t passes = 1);
/// Formats of attention: queries of `compute` over a cache of `kv`.
[[nodiscard]] const KernelFormat* shared_attention_format(Dtype compute, Dtype kv);
/// A fused streaming kernel, in `passes` equal parts of its rows; nullopt where several launches
/// stand in for one operation, or the family has no kernel form.
[[nodiscard]] std::optional<KernelUse> stream_use(OpFamily family, std::int64_t rows, double read,
                                                  double written, std::int32_t launches,
                                                  Dtype dtype, std::int32_t passes = 1);

}  // namespace kvsim
