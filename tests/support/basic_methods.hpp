#pragma once

// The presets that decide per head and need only Q, K and V, for tests of laws of single heads.
// Laws of every method are tested on whole traces.

#include <vector>

#include "models/methods/resolve/presets.hpp"

namespace kvsim::test {

inline std::vector<MethodInfo> basic_methods() {
  std::vector<MethodInfo> infos;
  for (const PresetRow& row : basic_presets()) infos.push_back(describe_method(row.name));
  return infos;
}

}  // namespace kvsim::test
