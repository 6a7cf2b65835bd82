#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "sim/serve/sequence.hpp"

namespace kvsim {

/// Which waiting request is served first; ties go to the earlier arrival. By priority: the lowest.
enum class QueueOrder : std::uint8_t { kFcfs, kPriority, kShortestDeclared };
inline constexpr std::array kQueueOrders{QueueOrder::kFcfs, QueueOrder::kPriority,
                                         QueueOrder::kShortestDeclared};

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
