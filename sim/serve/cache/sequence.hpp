#pragma once

#include <cstdint>

#include "models/units/units.hpp"

namespace kvsim {

using RequestId = std::int32_t;  // index in the workload

enum class SequenceState : std::uint8_t {
  kComing,   // has not arrived
  kWaiting,  // in the queue
  kRunning,  // holds cache
  kSwapped,  // its cache is in host memory
  kMoving,   // prefilled; its cache is on its way to the engine that decodes it
  kEnded     // completed or rejected
};

/// One request as visible to schedulers: everything except the number of tokens it will generate.
struct Sequence {
  SimTime arrival{};
  std::int32_t prompt = 1;    // tokens
  std::int32_t declared = 0;  // most output tokens; 0: not declared
  std::int32_t priority = 0;  // lower is served earlier, under orders that use it
  std::int32_t known = 1;     // tokens of the prompt and generated so far
  std::int32_t computed = 0;  // of these, those whose keys and values are cached
  std::int32_t target = 1;    // its prefill ends at this many computed tokens: `known` at admission
  std::int32_t room = 0;      // tokens that may be computed before the next allocation
  std::int32_t planned = 0;   // tokens in the iteration being formed or running
  std::int32_t rank = 0;      // by arrival, from 0
  std::int32_t drafts = 0;    // if decoding: tokens proposed after its next token
  std::int32_t micro_batch = 0;  // in a pipeline: where it was last planned
  /// For a member of SteadyDecodes: iterations() at the last update of known, computed and room.
  static constexpr std::int64_t kAlone = -1;  // all other sequences
  std::int64_t counted_to = kAlone;
  SequenceState state = SequenceState::kComing;
  bool in_flight = false;  // in an unfinished iteration of a pipeline: must not be planned

  [[nodiscard]] std::int32_t generated() const { return known - prompt; }
  /// False for an element that was never written or was released.
  [[nodiscard]] bool is_steady() const {
    return state == SequenceState::kRunning && counted_to != kAlone;
  }
  [[nodiscard]] bool prefills() const { return computed < target; }
  [[nodiscard]] std::int32_t to_compute() const { return known - computed + drafts; }
};

}  // namespace kvsim
