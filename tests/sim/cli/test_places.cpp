// Unreadable or unwritable paths are user errors: exit 2, the path and the reason.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/sim/cli/program.hpp"
#include "tests/support/files.hpp"
#include "tests/support/permissions.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::text_of;
using test::Words;

const fs::path kRoot{KVSIM_SOURCE_DIR};
const std::string kTimings = (kRoot / "tests/documents/fixtures/timings").string();

std::string complaint(const Words& words, const fs::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  INFO(words.front(), ": ", outcome.err);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  return outcome.err;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{folder}) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("a link that points to itself is reported with its reason by every reader") {
  const fs::path folder = fresh("loop");
  fs::create_symlink("loop", folder / "loop");
  const std::string reason = "Too many levels of symbolic links";
  const Words reads[] = {{"requests", "info", "loop"},
                         {"validate", "measured", "loop"},
                         {"validate", "measured", "loop/deeper"},
                         {"validate", "measured", kTimings, "--calibration", "loop"},
                         {"validate", "measured", kTimings, "-o", "loop"},
                         {"calibrate", "--measured", "loop", "-o", "out"},
                         {"calibrate", "--measured", kTimings, "-o", "loop"},
                         {"plot", "loop", "-o", "out"},
                         {"run", "loop"}};
  for (const Words& words : reads) {
    const std::string message = complaint(words, folder);
    CHECK(has(message, "kvsim: loop"));
    CHECK(has(message, reason));
  }
  CHECK(names_in(folder) == std::vector<std::string>{"loop"});
}

TEST_CASE("folders without read permission are refused with their reason") {
  const fs::path folder = fresh("unlisted");
  fs::create_directories(folder / "closed/figures");
  fs::permissions(folder / "closed/figures", fs::perms::none);
  test::under_permissions([&] {
    CHECK(has(complaint({"plot", "closed", "-o", "out"}, folder),
              "figures: cannot be read: Permission"));
    CHECK(has(complaint({"validate", "measured", "closed/figures"}, folder), "Permission denied"));
  });
  fs::permissions(folder / "closed/figures", fs::perms::owner_all);
}

TEST_CASE("calibrate: its folder is checked before the fit and changes atomically") {
  const fs::path folder = fresh("calibrations");
  test::write(folder / "file", "mine");
  CHECK(has(complaint({"calibrate", "--measured", kTimings, "-o", "file"}, folder),
            "file: cannot be written: it exists and is not a folder"));
  CHECK(text_of(folder / "file") == "mine");
  const Words fit{"calibrate", "--measured", kTimings, "-o", "new/deep", "--date", "2026-01-01"};
  CHECK(run_kvsim(fit, folder).status == 0);
  const std::vector<std::string> made = names_in(folder / "new/deep");
  REQUIRE_FALSE(made.empty());
  for (const std::string& name : made) CHECK(name.ends_with(".json"));
  // Other files stay, and previous output is replaced.
  const std::string first = text_of(folder / "new/deep" / made.front());
  test::write(folder / "new/deep" / made.front(), "old");
  test::write(folder / "new/deep/zz-other.json", "other");
  CHECK(run_kvsim(fit, folder).status == 0);
  CHECK(text_of(folder / "new/deep" / made.front()) == first);
  CHECK(text_of(folder / "new/deep/zz-other.json") == "other");
  CHECK(names_in(folder / "new/deep").size() == made.size() + 1);
}

}  // namespace
}  // namespace kvsim
