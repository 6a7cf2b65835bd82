// kvsim replay: options that have no effect, and errors that are no numbers.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

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

/// Multiplies the values of an fp32 trace by `factor`, in place.
void scale_values(const fs::path& file, float factor) {
  std::string bytes = test::text_of(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  for (const auto& [name, tensor] : header.items()) {
    if (!name.ends_with(".v")) continue;
    const auto& offsets = tensor.at("data_offsets");
    for (auto at = offsets[0].get<std::size_t>(); at < offsets[1].get<std::size_t>();
         at += sizeof(float)) {
      char* const place = bytes.data() + sizeof length + length + at;
      float value = 0;
      std::memcpy(&value, place, sizeof value);
      value *= factor;
      std::memcpy(place, &value, sizeof value);
    }
  }
  test::write(file, bytes);
}

TEST_CASE("explain: errors that are no numbers have their reason") {
  const fs::path folder = fresh("out-of-range");
  REQUIRE(run_kvsim({"trace", "generate", "t.safetensors", "--layers", "1", "--heads", "1",
                     "--kv-heads", "1", "--head-dim", "16", "--tokens", "32", "--dtype", "fp32"},
                    folder)
              .status == 0);
  scale_values(folder / "t.safetensors", 1e5F);  // fp16 ends at 65,504
  const Outcome ran = run_kvsim({"replay", "-t", "t.safetensors", "-m", "snapkv+store=fp16", "-b",
                                 "0.5", "-o", "out", "--no-figures"},
                                folder);
  REQUIRE_MESSAGE(ran.status == 0, ran.err);
  REQUIRE(has(ran.out, "its errors are no numbers"));
  const std::string said = complaint({"explain", "out", "rel_error_mean"}, folder);
  CHECK(has(said,
            "there is no rel_error_mean: its errors are no numbers: values of its store are out of "
            "the range of their format"));
}

}  // namespace
}  // namespace kvsim
