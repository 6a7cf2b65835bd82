// kvsim replay: options that have no effect are refused.

#include <filesystem>
#include <string>
#include <vector>

#include "tests/sim/cli/program.hpp"
#include "tests/sim/report/explained.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::complaint;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using Words = std::vector<std::string>;

const fs::path kRoot{KVSIM_SOURCE_DIR};

TEST_CASE("replay: options without an effect are refused") {
  const fs::path folder = fresh("replay-options");
  test::write(folder / "tasks.jsonl", "{\"tokens\": [1, 2, 3], \"answer\": [4]}\n");
  const Words loop{"replay",    "--closed-loop", (kRoot / "traces/samples/retrieval-1m").string(),
                   "--prompts", "tasks.jsonl",   "-m",
                   "full"};
  REQUIRE(run_kvsim(loop, folder).status == 0);
  for (const Words& more : std::vector<Words>{{"--no-figures"},
                                              {"--no-report"},
                                              {"--formats", "svg"},
                                              {"--per-step"},
                                              {"--per-step", "--json"},
                                              {"-o", "out"}}) {
    CAPTURE(more.front());
    Words words = loop;
    words.insert(words.end(), more.begin(), more.end());
    CHECK(has(complaint(words, folder), more.front() + " does not go with --closed-loop"));
  }
  const std::string trace = (kRoot / "traces/samples/books-treasure-512.safetensors").string();
  for (const std::string option : {"--per-step", "--per-head"}) {
    CHECK(has(complaint({"replay", "-t", trace, "-m", "full", option}, folder),
              option + ": expected --json, or a results folder (-o DIR), got none"));
  }
}

}  // namespace
}  // namespace kvsim
