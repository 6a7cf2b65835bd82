#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvsim::cuda_sim {

/// What a kernel did wrong.
enum class FaultKind : std::uint8_t {
  kBarrier,        // a barrier that not every thread of the block reaches
  kOutOfBounds,    // an access outside its span
  kMisaligned,     // an access not aligned to its own size
  kUninitialised,  // a read of memory that nothing wrote
  kRace,           // two threads, one address, a write, no barrier between
  kDivergentWarp,  // a lane of the mask does not take part in a warp operation
  kLaunch,         // a launch that no device would take
};

/// The kernel is wrong. The message names kernel, block, thread and line, and for faults between
/// two threads both of them.
class KernelFault : public std::runtime_error {
 public:
  KernelFault(FaultKind kind, const std::string& message)
      : std::runtime_error{message}, kind_{kind} {}
  [[nodiscard]] FaultKind kind() const { return kind_; }

 private:
  FaultKind kind_;
};

}  // namespace kvsim::cuda_sim
