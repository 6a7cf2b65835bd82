#pragma once

#include <cstdint>
#include <span>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Keeps the requests in `order`, in that order; a request that waits for others comes after them.
void keep_requests(RequestTrace& trace, std::span<const std::int32_t> order);

/// Sorts requests by time; a waiting request follows those for which it waits.
void put_in_order(RequestTrace& trace);

}  // namespace kvsim
