#pragma once

// Runs the built program as a user would.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvsim::test {

using Words = std::vector<std::string>;

struct Outcome {
  int status = 0;  // exit status; 128 + n where signal n ended it
  std::string out;
  std::string err;
};

/// Where standard output goes; what cannot be read back leaves Outcome::out empty.
enum class Stdout { kCaptured, kClosed, kFull, kGone };

/// Runs kvsim with `arguments` in `folder`.
[[nodiscard]] Outcome run_kvsim(const Words& arguments, const std::filesystem::path& folder,
                                Stdout where = Stdout::kCaptured);

/// As the first, but no file may grow past `file_bytes` (`ulimit -f`).
[[nodiscard]] Outcome run_kvsim_up_to(std::int64_t file_bytes, const Words& arguments,
                                      const std::filesystem::path& folder);

/// As the first, but sends `signal` as soon as a name that holds ".partial-" is somewhere in
/// `folder`. If the program ends before, so does this. Outcome::out is left empty.
[[nodiscard]] Outcome interrupt_kvsim(const Words& arguments, const std::filesystem::path& folder,
                                      int signal);

}  // namespace kvsim::test
