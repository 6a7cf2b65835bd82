#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvsim::cuda_sim {

/// Error of a kernel.
enum class FaultKind : std::uint8_t {
  kBarrier,        // a barrier that not every thread of the block reaches
  kOutOfBounds,    // an access outside its span
  kMisaligned,     // an access not aligned to its own size
  kUninitialised,  // a read of unwritten memory
  kRace,           // conflicting accesses of two threads without a barrier in between
  kDivergentWarp,  // a lane of the mask does not execute the warp operation
  kLaunch,         // a launch that no device supports
};

/// An error in a kernel. The message names the kernel, block, thread and line; for faults between
/// two threads it names both.
class KernelFault : public std::runtime_error {
 public:
  KernelFault(FaultKind kind, const std::string& message)
      : std::runtime_error{message}, kind_{kind} {}
  [[nodiscard]] FaultKind kind() const { return kind_; }

 private:
  FaultKind kind_;
};

}  // namespace kvsim::cuda_sim
