#pragma once

// Keys of a scenario that may be lists. In a run each value becomes a point; in a sweep the list
// becomes an axis.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// Point keys that may be lists, in the order of points: the last changes fastest.
[[nodiscard]] std::span<const std::string_view> list_keys();

/// Members within an object of `key` that may be lists, as pointers relative to it, the last
/// changing fastest: "/budget" of "method", "/arrivals/rate" of "requests". Empty for keys without
/// objects.
[[nodiscard]] std::vector<std::string> list_members(std::string_view key);

/// A member of `requests` that may be a list: its place, and its name in points and labels.
struct RequestList {
  std::string_view pointer;
  std::string_view name;
};
[[nodiscard]] std::span<const RequestList> request_lists();

/// The values of the list `items`: its items or, for each with lists at `members`, every
/// combination, the last member changing fastest.
[[nodiscard]] std::vector<nlohmann::json> listed_values(const nlohmann::json& items,
                                                        const std::vector<std::string>& members);

}  // namespace kvsim
