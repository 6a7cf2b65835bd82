#pragma once

#include <cstdint>
#include <span>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Keeps the requests in `order`, in that order; one that waits for others comes after them in it.
void keep_requests(RequestTrace& trace, std::span<const std::int32_t> order);

/// Puts the requests that wait for none in order of time, those that wait behind theirs.
void put_in_order(RequestTrace& trace);

}  // namespace kvsim
