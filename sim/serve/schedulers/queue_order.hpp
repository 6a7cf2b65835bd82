#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// The value that `order` compares: smaller is served earlier. It is constant over a request's
/// lifetime. Therefore the first of all present requests is never preempted, and the system always
/// makes progress.
[[nodiscard]] inline std::pair<std::int64_t, std::int32_t> order_key(QueueOrder order,
                                                                     const Sequence& s) {
  switch (order) {
    case QueueOrder::kPriority:
      return {s.priority, s.rank};
    case QueueOrder::kShortestDeclared:
      // A request without a declared length may be the longest.
      return {s.declared > 0 ? s.declared : std::numeric_limits<std::int64_t>::max(), s.rank};
    case QueueOrder::kFcfs:
      break;
  }
  return {0, s.rank};
}

}  // namespace kvsim
