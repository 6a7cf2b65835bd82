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

/// One request as schedulers see it: all but how many tokens it will generate.
struct Sequence {
  SimTime arrival{};
  std::int32_t prompt = 1;    // tokens
  std::int32_t declared = 0;  // most it may generate; 0: not said
  std::int32_t priority = 0;  // lower is served earlier, under orders that use it
  std::int32_t known = 1;     // tokens of the prompt and of what was generated
  std::int32_t computed = 0;  // of these, those whose keys and values are cached
  std::int32_t target = 1;    // its prefill ends when so many are computed: `known` when admitted
  std::int32_t room = 0;      // tokens that may be computed before the next allocation
  std::int32_t planned = 0;   // tokens of the iteration that is being formed, or runs
  std::int32_t rank = 0;      // by arrival, from 0
  std::int32_t drafts = 0;    // of a decoding one: tokens proposed to follow its next
  std::int32_t micro_batch = 0;  // of a pipeline: where it was planned last
  /// Of a member of SteadyDecodes: its iterations() to which known, computed and room are counted.
  static constexpr std::int64_t kAlone = -1;  // of all others
  std::int64_t counted_to = kAlone;
  SequenceState state = SequenceState::kComing;
  bool in_flight = false;  // in an iteration of a pipeline that has not ended: not to be planned

  [[nodiscard]] std::int32_t generated() const { return known - prompt; }
  /// False of one that was never written, or whose memory was released.
  [[nodiscard]] bool is_steady() const {
    return state == SequenceState::kRunning && counted_to != kAlone;
  }
  [[nodiscard]] bool prefills() const { return computed < target; }
  [[nodiscard]] std::int32_t to_compute() const { return known - computed + drafts; }
};

}  // namespace kvsim
