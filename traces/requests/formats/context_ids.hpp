#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Gives ids to the blocks of a growing context (see RequestTrace::prefix_ids): whole blocks that
/// two turns share have equal ids, a last block that is not full has a separate one.
class ContextIds {
 public:
  ContextIds(RequestTrace& trace, std::int32_t block) : trace_{trace}, block_{block} {
    trace_.prefix_block = block;
  }
  /// Sets the ids of a request; its prompt continues the whole blocks whose ids are in `full`, to
  /// which its own are added. Errors: InputError if the trace has more ids than it can number.
  void turn(Request& request, std::vector<std::uint64_t>& full);
  /// A number that no other block has.
  std::uint64_t fresh() { return next_++; }

 private:
  RequestTrace& trace_;
  std::int32_t block_;
  std::uint64_t next_ = 0;
};

/// Room for `count` ids behind those of `trace`. Errors: InputError beyond 2^31 - 1 of them.
void check_prefix_room(const RequestTrace& trace, std::size_t count);

}  // namespace kvsim
