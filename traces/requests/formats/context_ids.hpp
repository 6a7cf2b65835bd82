#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Assigns ids to the blocks of a growing context (see RequestTrace::prefix_ids). Whole blocks
/// shared by two turns have equal ids; a partial last block has a unique id.
class ContextIds {
 public:
  ContextIds(RequestTrace& trace, std::int32_t block) : trace_{trace}, block_{block} {
    trace_.prefix_block = block;
  }
  /// Sets the ids of a request. Its prompt continues the whole blocks whose ids are in `full`; its
  /// own whole blocks are appended to them. Errors: InputError if the trace has more ids than can
  /// be numbered.
  void turn(Request& request, std::vector<std::uint64_t>& full);
  /// Returns a number that is unique among blocks.
  std::uint64_t fresh() { return next_++; }

 private:
  RequestTrace& trace_;
  std::int32_t block_;
  std::uint64_t next_ = 0;
};

/// Errors: InputError if `trace` with `count` more ids has more than 2^31 - 1.
void check_prefix_room(const RequestTrace& trace, std::size_t count);

}  // namespace kvsim
