// Kernels in a separate process: a failure of one does not affect the others.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "validation/device/apart.hpp"
#include "validation/device/counters.hpp"
#include "validation/device/kernels_apart.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using kernels::KernelResult;
using std::chrono::milliseconds;
using test::fresh;

TEST_CASE("apart: lines of any length arrive complete and in order") {
  std::vector<std::string> heard;
  const ChildEnd end = run_apart(
      [](const auto& say) {
        for (int i = 0; i < 200; ++i) say(std::string(static_cast<std::size_t>(i * 997), 'x'));
      },
      [&](std::string_view line) { heard.emplace_back(line); }, milliseconds{20'000});
  CHECK(end.why.empty());
  REQUIRE(heard.size() == 200);
  for (std::size_t i = 0; i < heard.size(); ++i) CHECK(heard[i].size() == i * 997);
}

TEST_CASE("apart: a child that fails, crashes or hangs is reported and its output kept") {
  const auto run = [](const std::function<void()>& last) {
    std::string heard;
    const ChildEnd end = run_apart(
        [&](const auto& say) {
          say("one");
          last();
        },
        [&](std::string_view line) { heard += line; }, milliseconds{300});
    CHECK(heard == "one");
    return end;
  };
  CHECK(run([] {}).why.empty());
  CHECK(run([] { throw std::runtime_error{"planted"}; }).why == "exit status 1");
  const ChildEnd killed = run([] { (void)raise(SIGKILL); });
  CHECK(killed.why.find("signal 9") == 0);
  CHECK_FALSE(killed.interrupted);
  CHECK(run([] { (void)raise(SIGTERM); }).interrupted);
  CHECK(run([] {
          std::this_thread::sleep_for(std::chrono::seconds{30});
        }).why.find("nothing heard for 0.3 s") == 0);
}

TEST_CASE("apart: a program's output, its status, and its limit") {
  const fs::path out = fresh("program") / "out.txt";
  CHECK(run_program({"/bin/sh", "-c", "echo heard"}, out, milliseconds{20'000}).why.empty());
  std::ifstream file{out};
  std::string word;
  file >> word;
  CHECK(word == "heard");
  CHECK(run_program({"/bin/sh", "-c", "exit 3"}, out, milliseconds{20'000}).why == "exit status 3");
  CHECK(run_program({"/no/such/program"}, out, milliseconds{20'000}).why == "exit status 127");
  CHECK(run_program({"/bin/sh", "-c", "sleep 30"}, out, milliseconds{200}).why ==
        "stopped after 0.2 s");
}

KernelResult result_of(const std::string& name) {
  KernelResult r;
  r.name = name;
  r.shape = "one \"quoted\", shape";
  r.dtype = "bf16";
  r.family = "method";
  r.error = 0.1;
  r.allowed = 0.25;
  r.model = {Bytes{123'456'789'012}, Bytes{5}, 6, 2};
  r.timing = kernels::KernelTiming{.median_us = 1.0 / 3.0, .spread = 0.01, .samples = 25};
  return r;
}

TEST_CASE("kernels apart: results arrive unchanged") {
  const auto run = [](const std::string& name) {
    KernelResult first = result_of(name);
    first.counted = first.model;
    KernelResult second = result_of(name);
    second.pass = false;
    second.error = std::numeric_limits<double>::quiet_NaN();
    second.problem = "it is wrong";
    second.timing.reset();
    KernelResult third = result_of(name);
    third.skipped = "no library";
    third.compared = false;
    return std::vector{first, second, third};
  };
  const auto results = run_kernels_apart({"a", "b"}, {.run = run, .fault = [] { return ""; }});
  REQUIRE(results.size() == 6);
  const KernelResult& one = results[3];
  CHECK(one.name == "b");
  CHECK(one.shape == result_of("b").shape);
  CHECK(one.error == 0.1);
  CHECK(one.model == result_of("b").model);
  REQUIRE(one.counted);
  CHECK(*one.counted == one.model);
  REQUIRE(one.timing);
  CHECK(one.timing->median_us == 1.0 / 3.0);
  CHECK(one.timing->samples == 25);
  CHECK_FALSE(results[4].pass);
  CHECK(std::isnan(results[4].error));
  CHECK(results[4].problem == "it is wrong");
  CHECK_FALSE(results[4].timing);
  CHECK(results[5].skipped == "no library");
  CHECK_FALSE(results[5].compared);
  CHECK(one.compared);
}

TEST_CASE(
    "kernels apart: a kernel that crashes, hangs or breaks the device loses only its results") {
  const std::vector<std::string> names{"good",   "crashes",    "also good", "hangs",
                                       "breaks", "still good", "throws",    "last"};
  bool broken = false;  // in each child
  const auto run = [&](const std::string& name) {
    if (name == "crashes") (void)raise(SIGKILL);
    if (name == "hangs") std::this_thread::sleep_for(std::chrono::seconds{30});
    if (name == "throws") throw std::runtime_error{"planted"};
    KernelResult r = result_of(name);
    if (name == "breaks") broken = true;
    if (broken) {
      r.pass = false;
      r.problem = "cudaErrorIllegalAddress";
    }
    return std::vector{r};
  };
  const auto results = run_kernels_apart(
      names, {.run = run,
              .fault = [&] { return std::string{broken ? "cudaErrorIllegalAddress" : ""}; },
              .patience = milliseconds{300}});
  REQUIRE(results.size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO(names[i], ": ", results[i].problem);
    CHECK(results[i].name == names[i]);
    const bool good = names[i].find("good") != std::string::npos || names[i] == "last";
    CHECK(results[i].pass == good);
  }
  CHECK(results[1].problem.find("signal 9") != std::string::npos);
  CHECK(results[3].problem.find("nothing heard") != std::string::npos);
  CHECK(results[4].problem == "cudaErrorIllegalAddress");
  CHECK(results[6].problem.find("exit status 1") != std::string::npos);
}

TEST_CASE("kernels apart: cases without time left are skipped and earlier results kept") {
  const auto results = run_kernels_apart(
      {"first", "slow", "third"}, {.run =
                                       [](const std::string& name) {
                                         if (name == "slow") {
                                           std::this_thread::sleep_for(std::chrono::seconds{30});
                                         }
                                         return std::vector{result_of(name)};
                                       },
                                   .fault = [] { return ""; },
                                   .limit = milliseconds{400}});
  REQUIRE(results.size() == 3);
  CHECK(results[0].skipped.empty());
  for (const std::size_t i : {1U, 2U}) {
    CHECK(results[i].pass);
    CHECK(results[i].skipped == "no time was left");
  }
}

TEST_CASE("kernels apart: an interrupt ends all of it") {
  const auto results =
      run_kernels_apart({"first", "second", "third"}, {.run =
                                                           [](const std::string& name) {
                                                             if (name == "second")
                                                               (void)raise(SIGINT);
                                                             return std::vector{result_of(name)};
                                                           },
                                                       .fault = [] { return ""; }});
  REQUIRE(results.size() == 3);
  CHECK(results[0].pass);
  CHECK(results[1].problem.find("not run") == 0);
  CHECK(results[2].problem.find("not run") == 0);
}

TEST_CASE("kernels apart: devices as reported by the child") {
  const auto list = [] {
    return DeviceList{.devices = {{.name = "NVIDIA Made Up",
                                   .pci_bus_id = "0000:17:00.0",
                                   .compute_major = 9,
                                   .compute_minor = 0,
                                   .sms = 132,
                                   .total_memory = Bytes{80},
                                   .free_memory = Bytes{79},
                                   .l2 = Bytes{50}}},
                      .driver = "13.0",
                      .problem = {}};
  };
  const DeviceList there = list_devices_apart(list);
  REQUIRE(there.devices.size() == 1);
  CHECK(there.driver == "13.0");
  CHECK(there.devices[0].name == "NVIDIA Made Up");
  CHECK(there.devices[0].pci_bus_id == "0000:17:00.0");
  CHECK(there.devices[0].sms == 132);
  CHECK(there.devices[0].l2 == Bytes{50});
  const DeviceList none = list_devices_apart([]() -> DeviceList {
    (void)raise(SIGKILL);
    return {};
  });
  CHECK(none.devices.empty());
  CHECK(none.problem.find("signal 9") != std::string::npos);
}

/// Puts an executable script `name` first in PATH during its lifetime.
class InPath {
 public:
  InPath(const fs::path& folder, const std::string& name, const std::string& script)
      : before_{std::getenv("PATH")} {
    std::ofstream{folder / name} << "#!/bin/sh\n" << script;
    fs::permissions(folder / name, fs::perms::owner_all);
    (void)setenv("PATH", (folder.string() + ":" + before_).c_str(), 1);
  }
  ~InPath() { (void)setenv("PATH", before_.c_str(), 1); }
  InPath(const InPath&) = delete;
  InPath& operator=(const InPath&) = delete;

 private:
  std::string before_;
};

TEST_CASE("profiler: the program runs under it or the reason is reported") {
  const fs::path folder = fresh("profiler");
  {
    // Writes its arguments to the log file, then runs the program.
    const InPath ncu{folder, "ncu",
                     "while [ \"$1\" != --log-file ]; do words=\"$words $1\"; shift; done\n"
                     "echo \"$words\" >\"$2\"\nshift 2\nexec \"$@\"\n"};
    const ProfilerRun run = run_profiler({"/bin/sh", "-c", "echo under it"}, milliseconds{20'000});
    CHECK(run.problem.empty());
    CHECK(run.output == "under it\n");
    CHECK(run.csv.find("dram__bytes_read.sum,dram__bytes_write.sum") != std::string::npos);
    CHECK(run.csv.find("--profile-from-start off") != std::string::npos);
    CHECK(run_profiler({"/bin/sh", "-c", "exit 2"}, milliseconds{20'000}).problem ==
          "ncu ended with exit status 2");
  }
  {
    const InPath ncu{folder, "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - no permission'\n"};
    CHECK(run_profiler({"/bin/true"}, milliseconds{20'000}).problem ==
          "counters not permitted: ERR_NVGPUCTRPERM");
  }
  CHECK(find_program("ncu", {folder / "nowhere"}).empty());
  CHECK(find_program("ncu", {folder / "nowhere", folder}) == folder / "ncu");
}

}  // namespace
}  // namespace kvsim
