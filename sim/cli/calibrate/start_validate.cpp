// Commands that the program kvsim-validate runs. Linked into kvsim only.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/cli/calibrate/command_calibrate.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/validate/command_validate.hpp"

namespace kvsim {
namespace {

/// Replaces this process by kvsim-validate, from the folder of this program, with the same
/// arguments. Errors: InputError if the program does not exist.
[[noreturn]] void start(const Arguments& arguments) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "kvsim-validate").string();
  std::vector<std::string> words = command_words();
  std::vector<char*> argv;
  std::string name = "kvsim";
  argv.push_back(name.data());
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  const int reason = errno;
  throw InputError{arguments.command(), fmt::format("the program {}", program),
                   fmt::format("{} (build it: cmake --build BUILD --target kvsim-validate)",
                               std::strerror(reason))};
}

}  // namespace

int run_validate_allocator(const Arguments& arguments) { start(arguments); }
int run_validate_e2e(const Arguments& arguments) { start(arguments); }
int run_validate_kernels(const Arguments& arguments) { start(arguments); }
int run_validate_measured(const Arguments& arguments) { start(arguments); }
int run_validate_published(const Arguments& arguments) { start(arguments); }
int run_validate_served(const Arguments& arguments) { start(arguments); }
int calibrate_measured(const Arguments& arguments) { start(arguments); }
int calibrate_residuals(const Arguments& arguments) { start(arguments); }
int calibrate_on_device(const Arguments& arguments) { start(arguments); }

}  // namespace kvsim
