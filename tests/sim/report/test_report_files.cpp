#include <fstream>
#include <sstream>

#include "models/units/error.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/run/run_folder.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"
#include "tests/support/permissions.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// An empty private folder under the build tree.
fs::path scratch(const std::string& name) {
  const fs::path path = test::scratch_folder() / ("report_" + name);
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}
std::string read(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
std::string complaint_of(auto&& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}
std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator{folder}, fs::directory_iterator{}));
}

TEST_CASE("a file is replaced atomically and leaves nothing next to it") {
  const fs::path dir = scratch("file");
  write_file_atomically(dir / "a.json", "one");
  write_file_atomically(dir / "a.json", "two");
  CHECK(read(dir / "a.json") == "two");
  CHECK(entries(dir) == 1);
}

TEST_CASE("a path that cannot be written gives one clear message") {
  const fs::path dir = scratch("refused");
  CHECK(complaint_of([&] { write_file_atomically(dir / "no" / "a.json", "x"); }) ==
        (dir / "no" / "a.json").string() + ": cannot be written: No such file or directory");
  CHECK(complaint_of([&] { write_file_atomically(dir, "x"); }) ==
        dir.string() + ": cannot be written: it is a folder");
  write_file_atomically(dir / "file", "x");
  CHECK(complaint_of([&] { AtomicFolder{dir / "file"}; }) ==
        (dir / "file").string() + ": cannot be written: it exists and is not a folder");
  CHECK(complaint_of([&] { AtomicFolder{dir / "file" / "out"}; }).find("cannot be written") !=
        std::string::npos);
  CHECK(complaint_of([&] { AtomicFolder{""}; }).find("cannot be written") != std::string::npos);
  CHECK(complaint_of([&] { AtomicFolder{"/"}; }).find("cannot be written") != std::string::npos);
  CHECK(entries(dir) == 1);
}

TEST_CASE("a folder without write permission is refused without partial output") {
  const fs::path dir = scratch("readonly");
  fs::permissions(dir, fs::perms::owner_read | fs::perms::owner_exec);
  test::under_permissions([&] {
    CHECK(complaint_of([&] { AtomicFolder{dir / "out"}; }) ==
          (dir / "out").string() + ": cannot be written: Permission denied");
    CHECK(complaint_of([&] { write_file_atomically(dir / "a", "x"); }) ==
          (dir / "a").string() + ": cannot be written: Permission denied");
  });
  fs::permissions(dir, fs::perms::owner_all);
  CHECK(entries(dir) == 0);
}

TEST_CASE("a full disk gives a clear message") {
  if (!fs::exists("/dev/full")) {
    fmt::print("KVSIM-SKIPPED: no /dev/full here\n");
    return;
  }
  CHECK(complaint_of([] { write_file_atomically("/dev/full", "x"); }) ==
        "/dev/full: cannot be written: No space left on device");
}

TEST_CASE("a folder is created complete or not at all") {
  const fs::path dir = scratch("folder");
  const fs::path out = dir / "deep" / "er" / "out";
  {
    AtomicFolder building{out};
    building.write("sub/a.txt", "a");
    CHECK_FALSE(fs::exists(out));
  }
  CHECK(entries(dir) == 0);  // neither the partial folder nor its new parents
  {
    AtomicFolder building{out};
    building.write("sub/a.txt", "a");
    building.commit();
  }
  CHECK(read(out / "sub" / "a.txt") == "a");
  CHECK(entries(out.parent_path()) == 1);
}

TEST_CASE("output of kvsim is replaced and other files are refused") {
  const fs::path dir = scratch("replace");
  const auto write = [&](const std::string& name) {
    AtomicFolder building{dir / "out"};
    building.write(name, name);
    building.commit();
  };
  write("old.txt");
  write("new.txt");
  CHECK_FALSE(fs::exists(dir / "out" / "old.txt"));
  CHECK(read(dir / "out" / "new.txt") == "new.txt");
  CHECK(entries(dir) == 1);
  std::ofstream{dir / "out" / "thesis.tex"} << "mine";
  CHECK(complaint_of([&] { write("x"); }) ==
        (dir / "out").string() +
            ": contains files not written by kvsim (thesis.tex); choose another folder, or remove "
            "this "
            "one");
  CHECK(read(dir / "out" / "thesis.tex") == "mine");
  CHECK(complaint_of([&] {
          check_results_folder(dir);
        }).find("contains files not written by kvsim") != std::string::npos);
  fs::create_directories(dir / "empty");
  CHECK_NOTHROW(check_results_folder(dir / "empty"));
  CHECK(fs::exists(dir / "empty"));
}

TEST_CASE("a file created during the run is not lost") {
  const fs::path dir = scratch("late");
  AtomicFolder building{dir / "out"};
  building.write("a", "a");
  fs::create_directories(dir / "out");
  std::ofstream{dir / "out" / "b"} << "mine";
  CHECK(complaint_of([&] { building.commit(); }).find("not written by kvsim") != std::string::npos);
  CHECK(read(dir / "out" / "b") == "mine");
}

TEST_CASE("files of a folder are replaced together and other files remain") {
  const fs::path dir = scratch("set");
  {
    AtomicFiles files{dir / "deep" / "er"};
    files.write("a", "a");
  }
  CHECK(entries(dir) == 0);  // neither partial files nor their new folders
  fs::create_directories(dir / "out");
  for (const char* name : {"a", "b", "mine"}) write_file_atomically(dir / "out" / name, "old");
  {
    AtomicFiles files{dir / "out"};
    files.write("a", "new");
    files.write("b", "new");
    CHECK(read(dir / "out" / "a") == "old");
    files.commit();
  }
  CHECK(read(dir / "out" / "a") == "new");
  CHECK(read(dir / "out" / "b") == "new");
  CHECK(read(dir / "out" / "mine") == "old");
  CHECK(entries(dir / "out") == 3);
  {
    AtomicFiles files{dir / "out"};
    files.write("a", "newer");
    fs::create_directories(dir / "out" / "c");
    CHECK(complaint_of([&] { files.write("c", "newer"); }) ==
          (dir / "out" / "c").string() + ": cannot be written: it is a folder");
  }
  CHECK(read(dir / "out" / "a") == "new");
  CHECK(complaint_of([&] { AtomicFiles{dir / "out" / "a"}; }) ==
        (dir / "out" / "a").string() + ": cannot be written: it exists and is not a folder");
  CHECK(complaint_of([&] { AtomicFiles{dir / "out" / "a" / "b"}; }).find("cannot be written") !=
        std::string::npos);
}

TEST_CASE("a results folder holds result.json and the tables with the same bytes each time") {
  const fs::path dir = scratch("results");
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const FolderOptions plain{.figures = false, .gnuplot = {}};
  (void)write_run_results(report, run_document(report), dir / "a", plain);
  (void)write_run_results(report, run_document(report), dir / "b", plain);
  for (const char* name :
       {"result.json", "points.csv", "timeline.csv", "owners.csv", "time_terms.csv", "layers.csv",
        "replay_steps.csv", "replay_layers.csv"}) {
    INFO(name);
    CHECK(read(dir / "a" / name) == read(dir / "b" / name));
    CHECK(read(dir / "a" / name).size() > 20);
  }
  CHECK(read(dir / "a" / "result.json").find(dir.string()) == std::string::npos);
  CHECK_FALSE(fs::exists(dir / "a" / "figures"));
}

TEST_CASE("without gnuplot there are data, scripts and a note, and no failure") {
  const fs::path dir = scratch("nognuplot");
  const Scenario scenario = test::sample_scenario();
  FolderOptions options;
  options.gnuplot.program = "no-such-gnuplot";
  const RunReport report = test::sample_report(scenario);
  const ResultsFolder written =
      write_run_results(report, run_document(report), dir / "out", options);
  CHECK(written.figures.empty());
  REQUIRE(written.notes.size() == 1);
  CHECK(written.notes[0].starts_with("no-such-gnuplot was not found"));
  CHECK(read(dir / "out" / "result.json").find("no-such-gnuplot was not found") !=
        std::string::npos);
  CHECK(fs::exists(dir / "out" / "figures" / "memory_vs_length.gp"));
  CHECK(fs::exists(dir / "out" / "figures" / "memory_vs_length.csv"));
}

}  // namespace
}  // namespace kvsim
