#pragma once

// Runs the built program as a user would.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvsim::test {

using Words = std::vector<std::string>;

struct Outcome {
  int status = 0;  // exit status; 128 + n if signal n ended it
  std::string out;
  std::string err;
};

/// Target of standard output; if it cannot be read back, Outcome::out is empty.
enum class Stdout { kCaptured, kClosed, kFull, kGone };

/// Runs kvsim with `arguments` in `folder`.
[[nodiscard]] Outcome run_kvsim(const Words& arguments, const std::filesystem::path& folder,
                                Stdout where = Stdout::kCaptured);

/// Like run_kvsim, but limits each file to `file_bytes` (`ulimit -f`).
[[nodiscard]] Outcome run_kvsim_up_to(std::int64_t file_bytes, const Words& arguments,
                                      const std::filesystem::path& folder);

/// Like run_kvsim, but sends `signal` as soon as a name that contains ".partial-" exists in
/// `folder`. Returns early if the program ends before that. Outcome::out is left empty.
[[nodiscard]] Outcome interrupt_kvsim(const Words& arguments, const std::filesystem::path& folder,
                                      int signal);

}  // namespace kvsim::test
