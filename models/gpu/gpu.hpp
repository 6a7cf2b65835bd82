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

/// A GPU by its data sheet and its driver. The catalogue file has the source of every value in
/// `sources`, under the value's key.
struct Gpu {
  std::string name;                  // "A800-80GB-SXM"
  std::vector<std::string> aliases;  // other spellings
  std::string generation;            // "ampere", "hopper", "ada", …: whose kernels it runs
  std::string silicon;  // GPU whose kernels' timings hold for it ("A800" is "A100" silicon)

  Bytes hbm;                         // nominal
  Bytes hbm_usable;                  // total memory the driver reports to a process
  bool hbm_usable_measured = false;  // false: scaled from a sibling, the source says which
  BytesPerSecond hbm_bandwidth;
  std::map<Dtype, FlopsPerSecond> peak;  // dense tensor-core rate by operand format, never sparse
  FlopsPerSecond peak_fp32;              // non-tensor fp32
  std::int32_t sms = 0;
  Bytes l2;
  std::optional<BytesPerSecond> nvlink;     // both directions together, as sheets print it
  std::optional<std::int32_t> nvlink_gpus;  // that it joins; none: all of a node
  BytesPerSecond pcie;                      // one direction
  std::optional<BytesPerSecond> c2c;        // CPU-GPU link of the superchips, one direction

  std::map<std::string, std::string> sources;
};

/// Whether CUDA programs run on it; else it is an AMD GPU, whose compute units count as SMs, whose
/// L2 caches of all dies as one, and whose Infinity Fabric as NVLink.
[[nodiscard]] inline bool is_nvidia(const Gpu& gpu) { return !gpu.generation.starts_with("cdna"); }

/// Dense arithmetic rate for operands of `dtype`: the tensor-core rate where the sheet has one,
/// that of the next wider format it computes in otherwise (int4 weights compute in 16 bit), fp32
/// for fp32.
[[nodiscard]] FlopsPerSecond peak_flops(const Gpu& gpu, Dtype dtype);

/// Clocks of all SMs together, Hz: their number times the boost clock, by what their FP32 lanes
/// reach, 64 an SM on Turing, A100 and A30, 128 on later chips (NVIDIA's architecture white
/// papers).
[[nodiscard]] double sm_clocks(const Gpu& gpu);

/// The GPU named `name` (catalogue name or alias; case, blanks, "_" and "-" do not matter).
/// Errors: InputError naming the nearest known one.
[[nodiscard]] const Gpu& find_gpu(std::string_view name);
[[nodiscard]] const std::vector<Gpu>& builtin_gpus();

}  // namespace kvsim
