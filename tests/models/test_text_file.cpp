// Reading whole files: inputs that are not files, pipes, sizes; and the folders in which files are
// built.

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "models/units/temporary.hpp"
#include "models/units/text_file.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::fresh;
using test::text_of;
using test::write;

std::string complaint(const fs::path& path, std::size_t max = 1000) {
  try {
    (void)read_text_file(path, max);
  } catch (const InputError& error) {
    return std::string{error.what()}.substr(path.string().size());
  }
  return "none";
}

TEST_CASE("a file is read whole and other inputs are refused") {
  const fs::path folder = fresh("text-file");
  write(folder / "empty", "");
  CHECK(read_text_file(folder / "empty", 0).empty());
  const std::string text(1'000'000, 'x');
  write(folder / "a", text);
  CHECK(read_text_file(folder / "a", text.size()) == text);
  CHECK(complaint(folder / "a", text.size() - 1) ==
        ": expected a file of at most 999999 bytes, got a larger one");
  CHECK(complaint(folder) == ": cannot be read: expected a file, got a folder");
  CHECK(complaint("/dev/zero") == ": cannot be read: expected a file, got a device");
  CHECK(complaint(folder / "absent") == ": cannot be read: No such file or directory");
  CHECK(complaint("/proc/self/status", 100).starts_with(": expected a file of at most"));
}

TEST_CASE("a pipe is read to its end and refused without a writer") {
  const fs::path folder = fresh("text-pipe");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const std::string text(300'000, 'y');  // larger than a pipe's capacity
  {
    const std::jthread writer{[&] { write(folder / "pipe", text); }};
    CHECK(read_text_file(folder / "pipe", 1U << 20U) == text);
  }
  // The text is stored once: a second read returns the same text.
  CHECK(read_text_file(folder / "pipe", 1U << 20U) == text);
  REQUIRE(::mkfifo((folder / "silent").c_str(), 0600) == 0);
  CHECK(complaint(folder / "silent") == ": cannot be read: it is a pipe that no program writes to");
}

/// Id of a process that has ended.
pid_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST_CASE("only folders marked by a kvsim process that has ended are removed") {
  const fs::path folder = fresh("marks");
  const fs::path target = folder / "out";
  const pid_t child = ::fork();
  if (child == 0) {
    const fs::path mine = sibling_of(target, "partial");
    fs::create_directories(mine / "a/b");
    ::_exit(write_owner_mark(mine));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(status == 0);
  const fs::path left = folder / fmt::format("out.partial-{}", child);
  REQUIRE(fs::exists(left / kOwnerMark));
  // A folder and a file of the user with names of this form, and folders whose marker files have
  // other content.
  const fs::path users = folder / fmt::format("out.partial-{}", ended_process());
  write(users.string() + "-2", "a file");
  fs::create_directories(users);
  write(users / "thesis.txt", "years of work");
  const std::string mark = text_of(left / kOwnerMark);
  fs::create_directories(folder / "out.partial-7-3");
  write(folder / "out.partial-7-3" / kOwnerMark, "elsewhere" + mark.substr(mark.find(' ')));
  fs::create_directories(folder / "out.partial-7-4");
  write(folder / "out.partial-7-4" / kOwnerMark,
        "kvsim-builds-here other-host/x" + mark.substr(mark.find(' ', mark.find(' ') + 1)));
  // A folder of this process, which is running.
  const fs::path own = sibling_of(target, "partial");
  fs::create_directories(own);
  REQUIRE(write_owner_mark(own) == 0);

  remove_abandoned(target);
  CHECK_FALSE(fs::exists(left));
  CHECK(text_of(users / "thesis.txt") == "years of work");
  CHECK(text_of(users.string() + "-2") == "a file");
  CHECK(fs::exists(folder / "out.partial-7-3"));
  CHECK(fs::exists(folder / "out.partial-7-4"));
  CHECK(fs::exists(own));

  // The same process id with another start time: that process has ended.
  const std::string text = text_of(own / kOwnerMark);
  write(own / kOwnerMark, text.substr(0, text.rfind(' ')) + " 1\n");
  remove_abandoned(target);
  CHECK_FALSE(fs::exists(own));
}

TEST_CASE("a partial folder is removed with one free file descriptor") {
  const fs::path folder = fresh("descriptors");
  const pid_t child = ::fork();
  if (child == 0) {
    const PartialFolder partial{folder / "out"};
    fs::create_directories(partial.path() / "a/b/c");
    write(partial.path() / "a/b/c/d", "text");
    const int highest = ::dup(0);
    ::close(highest);
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(highest) + 1;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    partial.~PartialFolder();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(fs::is_empty(folder));
}

}  // namespace
}  // namespace kvsim
