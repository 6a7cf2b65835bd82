#pragma once

// Which keys of a scenario may be lists: of every value a run makes points, and a sweep one axis.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// Keys of a point that may be lists, in the order of points: the last changes fastest.
[[nodiscard]] std::span<const std::string_view> list_keys();

/// What within an object of `key` may be a list, as pointers from there, the last changing fastest:
/// "/budget" of "method", "/arrivals/rate" of "requests". Empty of keys that hold no objects.
[[nodiscard]] std::vector<std::string> list_members(std::string_view key);

/// A member of `requests` that may be a list: where it stands, and what points and labels call it.
struct RequestList {
  std::string_view pointer;
  std::string_view name;
};
[[nodiscard]] std::span<const RequestList> request_lists();

/// What the list `items` stands for: its items, of each that has lists at `members` every
/// combination, the last member changing fastest.
[[nodiscard]] std::vector<nlohmann::json> listed_values(const nlohmann::json& items,
                                                        const std::vector<std::string>& members);

}  // namespace kvsim
