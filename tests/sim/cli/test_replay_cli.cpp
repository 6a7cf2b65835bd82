// kvsim replay: options without effect, errors that are not numbers, and compared replays.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
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
    CHECK(has(complaint(words, folder), more.front() + " cannot be combined with --closed-loop"));
  }
  const std::string trace = (kRoot / "traces/samples/books-treasure-512.safetensors").string();
  for (const std::string option : {"--no-figures", "--no-report"}) {
    for (const Words& more : std::vector<Words>{{option}, {option, "--json"}}) {
      Words words{"replay", "-t", trace, "-m", "full"};
      words.insert(words.end(), more.begin(), more.end());
      CHECK(has(complaint(words, folder), option + ": expected a results folder (-o DIR)"));
    }
  }
  for (const std::string option : {"--per-step", "--per-head"}) {
    CHECK(has(complaint({"replay", "-t", trace, "-m", "full", option}, folder),
              option + ": expected --json, or a results folder (-o DIR), got none"));
  }
}

/// Multiplies the tensors `kind` ("k", "v") of an fp32 trace by `factor`, in place.
void scale(const fs::path& file, const std::string& kind, float factor) {
  std::string bytes = test::text_of(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  for (const auto& [name, tensor] : header.items()) {
    if (!name.ends_with("." + kind)) continue;
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

TEST_CASE("explain: errors that are not numbers have a reason") {
  const fs::path folder = fresh("out-of-range");
  REQUIRE(run_kvsim({"trace", "generate", "t.safetensors", "--layers", "1", "--heads", "1",
                     "--kv-heads", "1", "--head-dim", "16", "--tokens", "32", "--dtype", "fp32"},
                    folder)
              .status == 0);
  scale(folder / "t.safetensors", "v", 1e5F);  // the fp16 maximum is 65,504
  const Outcome ran = run_kvsim({"replay", "-t", "t.safetensors", "-m", "snapkv+store=fp16", "-b",
                                 "0.5", "-o", "out", "--no-figures"},
                                folder);
  REQUIRE_MESSAGE(ran.status == 0, ran.err);
  REQUIRE(has(ran.out, "its errors are no"));
  const std::string said = complaint({"explain", "out", "rel_error_mean"}, folder);
  CHECK(
      has(said,
          "there is no rel_error_mean: its errors are not numbers: values of its store are out of "
          "the range of their format"));
}

TEST_CASE("replay: non-finite values are not printed as numbers, and errors name their method") {
  const fs::path folder = fresh("no-numbers");
  const auto generate = [&](const std::string& name) {
    REQUIRE(run_kvsim({"trace", "generate", name, "--layers", "4", "--heads", "2", "--kv-heads",
                       "2", "--head-dim", "32", "--tokens", "160", "--dtype", "fp32"},
                      folder)
                .status == 0);
  };
  const auto replay = [&](const std::string& trace, const std::string& methods) {
    return run_kvsim(
        {"replay", "-t", trace, "-m", methods, "--layers", "2", "-o", "out", "--no-figures"},
        folder);
  };
  // Values beyond fp16, and values whose code scales underflow.
  for (const float factor : {1e5F, 1e-42F}) {
    INFO(factor);
    generate("v.safetensors");
    scale(folder / "v.safetensors", "v", factor);
    const Outcome ran = replay("v.safetensors", "full+store=fp16,rtn,cachegen,h2o");
    CHECK_MESSAGE(ran.status == 0, ran.err);
    CHECK_FALSE(has(ran.out, "nan"));
    CHECK_FALSE(has(test::text_of(folder / "out" / "replay_methods.csv"), "nan"));
  }
  generate("k.safetensors");
  scale(folder / "k.safetensors", "k", 5e4F);
  const Outcome refused = replay("k.safetensors", "h2o,full+store=fp16");
  CHECK(refused.status == 2);
  CHECK(has(refused.err, "kvsim: method \"full+store=fp16\": layer "));
  CHECK(has(refused.err, "beyond the range of its format"));
}

TEST_CASE("replay: a method of the whole catalogue is skipped if its store overflows") {
  const fs::path folder = fresh("overflow");
  REQUIRE(run_kvsim({"trace", "generate", "k.safetensors", "--layers", "2", "--heads", "2",
                     "--kv-heads", "2", "--head-dim", "32", "--tokens", "160", "--dtype", "fp32"},
                    folder)
              .status == 0);
  scale(folder / "k.safetensors", "k", 7e4F);
  const auto replay = [&](const std::string& methods, const std::string& threads) {
    return run_kvsim(
        {"replay", "-t", "k.safetensors", "-m", methods, "-b", "0.5", "--json", "-j", threads},
        folder);
  };
  const Outcome one = replay("kvarn-k4v2", "1");
  CHECK(one.status == 2);
  CHECK(has(one.err, "method \"kvarn-k4v2\": layer 0: "));
  const Outcome all = replay("all", "1");
  REQUIRE_MESSAGE(all.status == 0, all.err);
  CHECK(replay("all", "3").out == all.out);
  const auto document = nlohmann::json::parse(all.out);
  std::map<std::string, std::string> skipped;
  for (const auto& method : document.at("skipped")) {
    skipped[method.at("name")] = method.at("reason");
  }
  CHECK(one.err == "kvsim: " + skipped["kvarn-k4v2"] + "\n");
  // The results of the other methods equal those of a replay without it.
  std::size_t compared = 0;
  for (const auto& method : document.at("methods")) {
    CHECK(method.at("name") != "kvarn-k4v2");
    if (method.at("name") != "h2o" && method.at("name") != "snapkv") continue;
    const Outcome alone = replay(method.at("name"), "1");
    auto same = nlohmann::json::parse(alone.out).at("methods").at(0);
    for (const char* of_others : {"oracle_error_ratio", "oracle_mass_gap"}) {
      same[of_others] = method.at(of_others);
    }
    CHECK(same == method);
    ++compared;
  }
  CHECK(compared == 2);
  // Combinations of a sweep are skipped in the same way.
  const Outcome sweep = run_kvsim({"sweep", "-t", "k.safetensors", "-m", "snapkv,kvarn-k4v2", "-b",
                                   "0.5", "--vary", "window=8,16", "--json"},
                                  folder);
  CHECK_MESSAGE(sweep.status == 0, sweep.err);
  CHECK(has(sweep.out, "method \\\"kvarn-k4v2\\\": layer 0: "));
}

TEST_CASE("replay: a scenario samples layers, heads and steps as the options do") {
  const fs::path folder = fresh("sampled");
  REQUIRE(run_kvsim({"trace", "generate", "t.safetensors", "--layers", "8", "--heads", "4",
                     "--kv-heads", "2", "--head-dim", "16", "--tokens", "200"},
                    folder)
              .status == 0);
  test::write(folder / "s.json", R"({"seed": 3, "replay": {"trace": "t.safetensors", "layers": 4,
      "heads": 1, "steps": 12, "methods": ["full", {"name": "h2o", "budget": 0.2}]}})");
  const auto replayed = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"-o", "out", "-q", "--no-figures"});
    const Outcome ran = run_kvsim(words, folder);
    REQUIRE_MESSAGE(ran.status == 0, ran.err);
    auto document = nlohmann::json::parse(test::text_of(folder / "out" / "result.json"));
    fs::remove_all(folder / "out");
    if (document.contains("replay")) document = document.at("replay");
    for (auto& method : document.at("methods")) {
      for (const char* detail : {"per_head", "per_step", "per_step_layers"}) method.erase(detail);
    }
    return document;
  };
  const auto by_options = [&](const std::string& layers, const std::string& steps) {
    return replayed({"replay", "-t", "t.safetensors", "-m", "full,h2o", "-b", "0.2", "--seed", "3",
                     "--layers", layers, "--heads", "1", "--steps", steps});
  };
  const auto sampled = replayed({"run", "s.json"});
  CHECK(sampled.at("sample").at("layers").size() == 4);
  CHECK(sampled.at("methods").at(1).contains("standard_errors"));
  CHECK(sampled.at("methods") == by_options("4", "12").at("methods"));
  // Command-line values override values in the file.
  CHECK(replayed({"run", "s.json", "--set", "/replay/layers=5", "--set", "/replay/steps=20"})
            .at("methods") == by_options("5", "20").at("methods"));
  const auto complaint = [&](const std::string& set) {
    const Outcome ran = run_kvsim({"run", "s.json", "--set", set}, folder);
    CHECK(ran.status == 2);
    return ran.err;
  };
  CHECK(has(complaint("/replay/steps=0"),
            "/replay/steps: expected an integer in [1, 1000000], got 0"));
  CHECK(has(complaint("/replay/heads=1.5"),
            "/replay/heads: expected an integer in [1, 1000000], got 1.5"));
  CHECK(has(complaint("/replay/layers=9"), "a sample of layers: expected at most 8, got 9"));
  CHECK(has(complaint("/replay/steps=1000"), "a sample of decode steps: expected at most "));
}

/// A replay's document with these methods.
void write_replay(const fs::path& file, const std::string& methods) {
  test::write(file, R"({"schema": "kvsim.replay/1", "kvsim": {"version": "1"}, "methods": [)" +
                        methods + "]}");
}
/// The comparison of two results.
nlohmann::json compared(const fs::path& folder, const std::string& a, const std::string& b) {
  const Outcome ran = run_kvsim({"compare", a, b, "--json"}, folder);
  REQUIRE_MESSAGE(ran.status == 0, ran.err);
  return nlohmann::json::parse(ran.out).at("comparisons").at(0);
}

TEST_CASE("compare: methods of replays match although their parameters differ") {
  const fs::path folder = fresh("compare-replays");
  const std::string h2o =
      R"({"name": "h2o", "budget": 0.2, "trace": "t", "params": {"budget": 165}, "steps": 4})";
  const std::string full =
      R"({"name": "full", "budget": null, "trace": "t", "params": {}, "steps": 4})";
  write_replay(folder / "a.json", h2o + "," + full);
  // Other parameters for the same budget.
  write_replay(
      folder / "params.json",
      R"({"name": "h2o", "budget": 0.2, "trace": "t", "params": {"budget": 166, "sinks": 4},
                   "steps": 5},)" +
          full);
  nlohmann::json one = compared(folder, "a.json", "params.json");
  CHECK(one.at("points") == 2);
  CHECK(one.at("only_before").empty());
  CHECK(one.at("only_after").empty());
  CHECK(one.at("changed").at(0).at("point") == "h2o budget 0.2");
  CHECK(one.at("changed").at(0).at("figures").at(0).at("figure") == "steps");
  CHECK(one.at("notes").dump().find(
            "h2o budget 0.2: params.budget 165 and 166, params.sinks none and 4") !=
        std::string::npos);
  // A different budget: points are matched by name.
  write_replay(
      folder / "budget.json",
      R"({"name": "h2o", "budget": 0.3, "trace": "t", "params": {"budget": 247}},)" + full);
  one = compared(folder, "a.json", "budget.json");
  CHECK(one.at("points") == 2);
  CHECK(one.at("notes").dump().find("budget 0.2 and 0.3") != std::string::npos);
  CHECK(one.at("notes").dump().find("params.budget 165 and 247") != std::string::npos);
  // Two points with the same name: the match of a third point is ambiguous.
  write_replay(folder / "two.json",
               R"({"name": "h2o", "budget": 0.3, "trace": "t", "params": {"budget": 247}},
                  {"name": "h2o", "budget": 0.4, "trace": "t", "params": {"budget": 330}},)" +
                   full);
  for (const auto& [a, b] : {std::pair{"a.json", "two.json"}, {"two.json", "a.json"}}) {
    one = compared(folder, a, b);
    CHECK(one.at("points") == 1);
    CHECK(one.at("only_before").size() + one.at("only_after").size() == 3);
  }
  // If one point has an exact match, the other point of that name is not matched with a third.
  write_replay(folder / "kept.json",
               h2o + R"(,{"name": "h2o", "budget": 0.4, "trace": "t", "params": {"budget": 330}})");
  one = compared(folder, "two.json", "kept.json");
  CHECK(one.at("points") == 1);
  CHECK(one.at("only_after") ==
        nlohmann::json::parse(R"(["h2o budget 0.2 params {\"budget\":165}"])"));
}

TEST_CASE("compare: replays of one trace with other splits and budgets have their points in both") {
  const fs::path folder = fresh("compare-splits");
  const std::string trace = (kRoot / "traces/samples/answers-896.safetensors").string();
  const auto replay = [&](const std::string& split, const std::string& budget,
                          const std::string& out) {
    const Outcome ran = run_kvsim({"replay", "-t", trace, "-m", "snapkv,h2o,streaming-llm", "-b",
                                   budget, "--split", split, "-o", out, "--no-figures", "-q"},
                                  folder);
    REQUIRE_MESSAGE(ran.status == 0, ran.err);
  };
  replay("question-agnostic", "0.2", "before");
  replay("question-aware", "0.2", "after");
  replay("question-aware", "0.25", "more");
  for (const auto& [a, b] : {std::pair{"before", "after"}, {"after", "more"}}) {
    const nlohmann::json both = compared(folder, a, b);
    CHECK(both.at("points") == 3);
    CHECK(both.at("only_before").empty());
    CHECK(both.at("only_after").empty());
    CHECK(both.at("changed").size() == 3);
    CHECK(both.at("notes").dump().find("params.budget") != std::string::npos);
  }
}

}  // namespace
}  // namespace kvsim
