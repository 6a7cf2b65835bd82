#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// What `order` compares: smaller is served earlier. Never changes while a request lives, so that
/// the first of all that are present is put out by nobody, and somebody always gets on.
[[nodiscard]] inline std::pair<std::int64_t, std::int32_t> order_key(QueueOrder order,
                                                                     const Sequence& s) {
  switch (order) {
    case QueueOrder::kPriority:
      return {s.priority, s.rank};
    case QueueOrder::kShortestDeclared:
      // Who does not say may be the longest.
      return {s.declared > 0 ? s.declared : std::numeric_limits<std::int64_t>::max(), s.rank};
    case QueueOrder::kFcfs:
      break;
  }
  return {0, s.rank};
}

}  // namespace kvsim
