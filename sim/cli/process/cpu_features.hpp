#pragma once

// What the build assumes of the processor. Plain data and plain functions: cpu_check.cpp runs
// before main and may use neither the library nor anything compiled for the build's own level.

namespace kvsim {

/// Processor features that -march may let the compiler use.
enum CpuFeature : unsigned {
  kSse3,
  kSsse3,
  kSse41,
  kSse42,
  kPopcnt,
  kAvx,
  kAvx2,
  kBmi,
  kBmi2,
  kFma,
  kF16c,
  kLzcnt,
  kAvx512f,
  kAvx512bw,
  kAvx512cd,
  kAvx512dq,
  kAvx512vl,
  kCpuFeatures
};

/// One bit a feature, of those that this build's code may use; defined in cpu_needs.cpp, which is
/// compiled as all else is.
extern const unsigned kCpuNeeds;

}  // namespace kvsim
