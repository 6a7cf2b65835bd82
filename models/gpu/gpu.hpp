#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A GPU with values of its data sheet and its driver. The catalogue file stores the source of
/// every value in `sources`, under the value's key.
struct Gpu {
  std::string name;                  // "A800-80GB-SXM"
  std::vector<std::string> aliases;  // other spellings
  std::string generation;            // "ampere", "hopper", "ada", …: selects kernels
  std::string silicon;               // GPU with the same kernel timings ("A800" is "A100" silicon)

  Bytes hbm;                         // nominal
  Bytes hbm_usable;                  // total memory that the driver reports
  bool hbm_usable_measured = false;  // false: scaled from a sibling GPU named in the source
  BytesPerSecond hbm_bandwidth;
  std::map<Dtype, FlopsPerSecond> peak;  // dense tensor-core rate by operand format, never sparse
  FlopsPerSecond peak_fp32;              // non-tensor fp32
  std::int32_t sms = 0;
  Bytes l2;
  std::optional<BytesPerSecond> nvlink;     // sum of both directions, as in data sheets
  std::optional<std::int32_t> nvlink_gpus;  // GPUs that it connects; absent: all of a node
  BytesPerSecond pcie;                      // one direction
  std::optional<BytesPerSecond> c2c;        // CPU-GPU link of superchips, one direction

  std::map<std::string, std::string> sources;
};

/// Whether the GPU runs CUDA programs. Otherwise it is an AMD GPU: compute units are stored as SMs,
/// the L2 caches of all dies as one, and Infinity Fabric as NVLink.
[[nodiscard]] inline bool is_nvidia(const Gpu& gpu) { return !gpu.generation.starts_with("cdna"); }

/// Returns the dense arithmetic rate for operands of `dtype`: the tensor-core rate if the data
/// sheet has one, otherwise that of the next wider format in which the GPU computes (int4 weights
/// compute in 16 bit), and the fp32 rate for fp32.
[[nodiscard]] FlopsPerSecond peak_flops(const Gpu& gpu, Dtype dtype);

/// Returns the clocks per second of all SMs together: the number of SMs times the boost clock,
/// derived from the peak of the FP32 lanes, 64 per SM on Turing, A100 and A30, 128 on later chips
/// (NVIDIA's architecture white papers).
[[nodiscard]] double sm_clocks(const Gpu& gpu);

/// Returns the GPU named `name` (catalogue name or alias; case, blanks, "_" and "-" are ignored).
/// Throws InputError with the nearest known name.
[[nodiscard]] const Gpu& find_gpu(std::string_view name);
[[nodiscard]] const std::vector<Gpu>& builtin_gpus();

}  // namespace kvsim
