// The folder of a test program's files.

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReport = "KVSIM_TEST_SCRATCH_REPORT";
constexpr const char* kCase = "--test-case=each process has a unique scratch folder";

/// Runs this program with kCase; its case writes the name of its scratch folder to `report`.
pid_t start_case(const fs::path& report) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv(kReport, report.c_str(), 1);
  ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
  std::string program = fs::read_symlink("/proc/self/exe").string();
  std::string filter = kCase;
  std::array<char*, 3> arguments{program.data(), filter.data(), nullptr};
  ::execv(program.c_str(), arguments.data());
  ::_exit(127);
}

TEST_CASE("each process has a unique scratch folder") {
  const fs::path& mine = test::scratch_folder();
  CHECK(fs::is_empty(mine));
  if (const char* report = std::getenv(kReport)) {
    std::ofstream{report} << mine.string();
    return;
  }
  std::array<std::string, 2> folders;
  for (std::string& folder : folders) {
    const fs::path report = mine / "report";
    int status = 0;
    ::waitpid(start_case(report), &status, 0);
    CHECK(status == 0);
    folder = test::text_of(report);
    CHECK_FALSE(folder.empty());
    CHECK_FALSE(fs::exists(folder));  // the run passed
  }
  CHECK(folders[0] != folders[1]);
  CHECK(folders[0] != mine.string());
}

}  // namespace
}  // namespace kvsim
