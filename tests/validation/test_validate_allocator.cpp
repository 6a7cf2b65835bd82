// kvsim validate allocator and the snapshot converter, run like a user would.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::Outcome;
using test::run_kvsim;
using test::text_of;

std::string write(const fs::path& file, std::string_view text) {
  std::ofstream{file, std::ios::binary} << text;
  return file.string();
}

/// Exit status of Python running `script` of the source tree in `folder`, its errors in err.txt;
/// nullopt, and the test reported as skipped, without Python.
std::optional<int> python(const std::string& script, const std::string& arguments,
                          const fs::path& folder) {
  const std::string program = KVSIM_PYTHON;
  if (program.empty()) {
    fmt::print("KVSIM-SKIPPED: no Python was found when this was configured\n");
    return std::nullopt;
  }
  const std::string command = fmt::format("cd '{}' && '{}' '{}/{}' {} 2> err.txt", folder.string(),
                                          program, KVSIM_SOURCE_DIR, script, arguments);
  const int status = std::system(command.c_str());  // NOLINT: a fixed command
  return status / 256;
}

TEST_CASE("a snapshot solved by hand is converted and predicted to the byte") {
  const fs::path folder = fresh("snapshot");
  const auto made = python("tests/validation/make_snapshot.py", ".", folder);
  if (!made) return;
  REQUIRE(*made == 0);
  // 100 MiB, and 22 MiB at the end of the two segments: 200 MiB do not fit.
  const std::string size = "--device-bytes 104857600";
  REQUIRE(*python("validation/snapshot_to_trace.py", "whole.pickle -o whole.jsonl " + size,
                  folder) == 0);
  const Outcome whole =
      run_kvsim({"validate", "allocator", "whole.jsonl", "--json", "--tolerance", "0"}, folder);
  CHECK(whole.status == 0);
  const json document = json::parse(whole.out);
  CHECK(document["schema"] == "kvsim.validate-allocator/1");
  CHECK(document["allocations"] == 5);
  CHECK(document["frees"] == 2);
  CHECK(document["refusals"]["recorded"] == 1);
  CHECK(document["refusals"]["at_the_same_event"] == 1);
  CHECK(document["segment_allocs"]["recorded"] == 3);
  CHECK(document["segment_allocs"]["predicted"] == 3);
  CHECK(document["segment_frees"]["predicted"] == 1);
  for (const json& quantity : document["quantities"]) {
    CHECK(quantity["compared"] == quantity["exact"]);
    CHECK(quantity["compared"].get<int>() >= 8);
  }
  CHECK(document["quantities"][0]["recorded_peak"] == 52 << 20);
  CHECK(document["quantities"][0]["predicted_final"] == 22 << 20);
  // 1,024 B, 12 MiB, and 2 MiB in a block of 3 MiB, which is not split because exactly 1 MiB
  // remains.
  CHECK(document["final"]["allocated_bytes"] == 1024 + (15 << 20));

  // The same, recorded from its fifth event: earlier allocations are listed first.
  REQUIRE(*python("validation/snapshot_to_trace.py", "late.pickle -o late.jsonl " + size, folder) ==
          0);
  const Outcome late =
      run_kvsim({"validate", "allocator", "late.jsonl", "--json", "--tolerance", "0"}, folder);
  CHECK(late.status == 0);
  const json from_late = json::parse(late.out);
  CHECK(from_late["final"]["reserved_bytes"] == 22 << 20);
  CHECK(from_late["notes"].size() == 1);

  // With other settings the allocator behaves differently: the tolerance is exceeded.
  const Outcome other = run_kvsim({"validate", "allocator", "whole.jsonl", "--tolerance", "0.01",
                                   "--alloc-conf", "expandable_segments:True"},
                                  folder);
  CHECK(other.status == 1);
  CHECK(other.out.find("reserved") != std::string::npos);
}

TEST_CASE("pickles that are not snapshots are refused without running the code they name") {
  const fs::path folder = fresh("broken");
  const auto made = python("tests/validation/make_snapshot.py", ".", folder);
  if (!made) return;
  REQUIRE(*made == 0);
  const auto refused = [&](const std::string& file, std::string_view why) {
    INFO(file);
    CHECK(*python("validation/snapshot_to_trace.py", file + " -o out.jsonl", folder) == 2);
    const std::string err = text_of(folder / "err.txt");
    INFO(err);
    CHECK(err.find(why) != std::string::npos);
    CHECK(!fs::exists(folder / "out.jsonl"));
  };
  refused("evil.pickle", "system");
  CHECK(!fs::exists(folder / "evil-was-here"));
  refused("cut.pickle", "not a pickle");
  refused("list.pickle", "device_traces");
  refused("unknown.pickle", "unknown action 'teleport'");
  refused("absent.pickle", "No such file");
}

TEST_CASE("errors in the command line or the trace are reported with exit status 2") {
  const fs::path folder = fresh("input");
  write(folder / "t.jsonl",
        "{\"format\": \"kvsim.allocator-trace/1\", \"device_bytes\": 1073741824}\n"
        "{\"op\": \"alloc\", \"id\": 1, \"size\": 100, \"reserved\": 2097152}\n");
  CHECK(run_kvsim({"validate", "allocator", "t.jsonl"}, folder).status == 0);
  const auto complaint = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"validate", "allocator"});
    const Outcome outcome = run_kvsim(words, folder);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  CHECK(complaint({}).find("an allocation trace") != std::string::npos);
  CHECK(complaint({"absent.jsonl"}).find("absent.jsonl") != std::string::npos);
  CHECK(complaint({"t.jsonl", "--device-bytes", "80 Gigs"}).find("80 GiB") != std::string::npos);
  CHECK(complaint({"t.jsonl", "--alloc-conf", "max_split_size:3"})
            .find("did you mean \"max_split_size_mb\"") != std::string::npos);
  CHECK(complaint({"t.jsonl", "--outside-bytes", "2 GiB"}).find("taken outside") !=
        std::string::npos);
  write(folder / "bad.jsonl",
        "{\"format\": \"kvsim.allocator-trace/1\"}\n{\"op\": \"free\", \"id\": 1}\n");
  CHECK(complaint({"bad.jsonl"}).find("bad.jsonl:2: /id") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
