#include "traces/requests/formats/context_ids.hpp"

#include <limits>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {

void check_prefix_room(const RequestTrace& trace, std::size_t count) {
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (trace.prefix_ids.size() + count > kMax) {
    throw InputError{trace.name, fmt::format("at most {} prefix ids", kMax), "more"};
  }
}

void ContextIds::turn(Request& request, std::vector<std::uint64_t>& full_ids) {
  const auto full = static_cast<std::size_t>(request.prompt_tokens / block_);
  while (full_ids.size() < full) full_ids.push_back(fresh());
  const bool partial = request.prompt_tokens % block_ != 0;
  check_prefix_room(trace_, full + 1);
  request.prefix_first = static_cast<std::int32_t>(trace_.prefix_ids.size());
  request.prefix_count = static_cast<std::int32_t>(full) + (partial ? 1 : 0);
  trace_.prefix_ids.insert(trace_.prefix_ids.end(), full_ids.begin(),
                           full_ids.begin() + static_cast<std::ptrdiff_t>(full));
  if (partial) trace_.prefix_ids.push_back(fresh());
}

}  // namespace kvsim
