#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// `kvsim --version [--json]`: the version, how the program was built, and the calibrations in it.
/// Returns the exit status. Errors: InputError for another word.
[[nodiscard]] int write_version(const std::vector<std::string>& words);

}  // namespace kvsim
