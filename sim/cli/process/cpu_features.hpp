#pragma once

// The processor features that the build requires. This is plain data because cpu_check.cpp runs
// before main and may use neither the library nor code compiled with the build's -march.

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

/// Bit set of the features that this build's code may use. Defined in cpu_needs.cpp, which is
/// compiled with the same flags as all other files.
extern const unsigned kCpuNeeds;

}  // namespace kvsim
