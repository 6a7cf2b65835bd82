#include "sim/cli/overrides.hpp"

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {

std::vector<Override> read_overrides(const Arguments& arguments) {
  std::vector<Override> overrides;
  for (const std::string& text : arguments.values("set")) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw InputError{"--set", "/json/pointer=value", fmt::format("\"{}\"", text)};
    }
    overrides.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return overrides;
}

}  // namespace kvsim
