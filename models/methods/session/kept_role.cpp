#include <array>
#include <cstddef>

#include "models/methods/session/kept_entry.hpp"

namespace kvsim {

std::string_view name_of(KeptRole role) {
  constexpr std::array<std::string_view, kKeptRoles> kNames{
      "whole", "sink", "recent", "protected", "score", "decoded", "merged"};
  return kNames.at(static_cast<std::size_t>(role));
}

}  // namespace kvsim
