// kvsim requests executed as by a user.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/files.hpp"

namespace fs = std::filesystem;
using kvsim::test::Outcome;
using kvsim::test::run_kvsim;

namespace {

using kvsim::test::fresh;
using kvsim::test::has;
using kvsim::test::text_of;
const fs::path kRoot{KVSIM_SOURCE_DIR};

}  // namespace

TEST_CASE("requests info: text and JSON of the samples") {
  const fs::path folder = fresh("info");
  const Outcome text = run_kvsim(
      {"requests", "info", (kRoot / "scenarios/samples/chat-azure.csv").string()}, folder);
  CHECK(text.status == 0);
  CHECK(has(text.out, "azure"));
  CHECK(has(text.out, "2,000"));
  const Outcome out = run_kvsim(
      {"requests", "info", (kRoot / "scenarios/samples/long-mooncake.jsonl").string(), "--json"},
      folder);
  const auto document = nlohmann::json::parse(out.out);
  CHECK(document["schema"] == "kvsim.requests-info/2");
  CHECK(document["requests"] == 600);
  CHECK(document["prefix"]["block_tokens"] == 512);
  const double share = document["prefix"]["reusable_share"];
  CHECK(share > 0.1);
  CHECK(share < 0.6);
  // One user and a span of zero: missing values are null.
  std::ofstream{folder / "one.csv"} << "arrival_s,prompt_tokens,output_tokens\n5,1,0\n";
  const auto one =
      nlohmann::json::parse(run_kvsim({"requests", "info", "one.csv", "--json"}, folder).out);
  CHECK(one["request_s"].is_null());
  CHECK(one["inter_arrival_cv"].is_null());
  CHECK(one["prefix"].is_null());
}

TEST_CASE("the samples are reproduced by the commands of their page") {
  const fs::path folder = fresh("samples");
  fs::create_directories(folder / "scenarios/samples");
  std::istringstream page{text_of(kRoot / "scenarios/samples/README.md")};
  int made = 0;
  std::string line;
  while (std::getline(page, line)) {
    if (!line.starts_with("kvsim requests generate")) continue;
    while (line.ends_with("\\")) {
      std::string more;
      std::getline(page, more);
      line = line.substr(0, line.size() - 1) + more;
    }
    std::istringstream words{line};
    std::vector<std::string> arguments{std::istream_iterator<std::string>{words}, {}};
    arguments.erase(arguments.begin());
    const Outcome out = run_kvsim(arguments, folder);
    CHECK(out.status == 0);
    const std::string name = arguments.at(3);
    CHECK(text_of(folder / name) == text_of(kRoot / name));
    ++made;
  }
  CHECK(made == 4);
}

TEST_CASE("requests convert: layouts, transformations, and losses are reported") {
  const fs::path folder = fresh("convert");
  const std::string sample = (kRoot / "scenarios/samples/long-mooncake.jsonl").string();
  const Outcome out = run_kvsim({"requests", "convert", sample, "t.csv", "--limit", "10",
                                 "--rate-scale", "2", "--spread", "3"},
                                folder);
  CHECK(out.status == 0);
  CHECK(has(out.out, "not in this layout: prefix ids"));
  const std::string text = text_of(folder / "t.csv");
  CHECK(std::count(text.begin(), text.end(), '\n') == 11);
  CHECK(run_kvsim({"requests", "convert", sample, "same.jsonl", "-q"}, folder).out.empty());
  CHECK(text_of(folder / "same.jsonl") == text_of(sample));
}

TEST_CASE("requests generate: a description and options over it") {
  const fs::path folder = fresh("generate");
  std::ofstream{folder / "d.json"}
      << R"({"requests": {"arrivals": {"kind": "fixed", "rate": 2}, "count": 5,
             "prompt_tokens": 9, "output_tokens": 1}})";
  CHECK(
      run_kvsim({"requests", "generate", "d.json", "-o", "a.csv", "--count", "2"}, folder).status ==
      0);
  CHECK(text_of(folder / "a.csv") == "arrival_s,prompt_tokens,output_tokens\n0,9,1\n0.5,9,1\n");
}

TEST_CASE("errors exit with 2, name the place, and write nothing") {
  const fs::path folder = fresh("mistakes");
  std::ofstream{folder / "bad.csv"}
      << "arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,x,1\n2,2,2\n";
  const auto complaint = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "requests");
    const Outcome out = run_kvsim(words, folder);
    CHECK(out.status == 2);
    CHECK(out.out.empty());
    return out.err;
  };
  CHECK(has(complaint({"info", "bad.csv"}),
            "bad.csv:3: prompt_tokens: expected an integer in [1, 16777216], got \"x\""));
  CHECK(has(complaint({"info", "none.csv"}), "none.csv: cannot be read"));
  CHECK(has(complaint({"info", "bad.csv", "--format", "azuer"}), "did you mean \"azure\"?"));
  CHECK(has(complaint({"info", "bad.csv", "--skip-bad", "-1"}), "/skip_bad"));
  CHECK(has(complaint({"convert", "bad.csv", "out.csv", "--skip-bad", "1", "--layout", "vidur"}),
            "plain, azure or mooncake"));
  CHECK(has(complaint({"generate", "--count", "5"}), "-o FILE"));
  CHECK(has(complaint({"generate", "-o", "out.csv", "--arrivals", "poisson:rate"}), "KEY=VALUE"));
  CHECK_FALSE(fs::exists(folder / "out.csv"));
  const Outcome skipped =
      run_kvsim({"requests", "info", "bad.csv", "--skip-bad", "1", "--json"}, folder);
  CHECK(nlohmann::json::parse(skipped.out)["skipped"] == 1);
}

TEST_CASE("run, plan and sweep take --skip-bad for the scenario's key") {
  const fs::path folder = fresh("skip_bad");
  std::ofstream{folder / "bad.csv"}
      << "arrival_s,prompt_tokens,output_tokens\n0,100,4\n1,x,1\n2,200,2\n";
  std::ofstream{folder / "good.csv"} << "arrival_s,prompt_tokens,output_tokens\n0,100,4\n";
  const auto scenario = [&](const std::string& name, const std::string& requests) {
    std::ofstream{folder / name} << R"({"kind": "serve", "model": "llama-3.1-8b",
      "gpu": "H100-80GB-SXM", "stack": "vllm")" +
                                        requests + "}";
  };
  scenario("s.json", R"(, "requests": {"file": "bad.csv"})");
  scenario("two.json", R"(, "requests": [{"file": "bad.csv"}, {"file": "good.csv"}])");
  scenario("drawn.json", R"(, "requests": {"arrivals": {"kind": "fixed", "rate": 1}, "count": 2,
      "prompt_tokens": 9, "output_tokens": 1})");
  const auto complaint = [&](const std::vector<std::string>& words) {
    const Outcome out = run_kvsim(words, folder);
    CHECK(out.status == 2);
    CHECK(out.out.empty());
    return out.err;
  };
  const auto points = [&](const std::vector<std::string>& words) {
    const Outcome out = run_kvsim(words, folder);
    REQUIRE_MESSAGE(out.status == 0, out.err);
    return nlohmann::json::parse(out.out).at("points");
  };
  // More bad records than allowed end the run; otherwise the other records are used.
  CHECK(has(complaint({"run", "s.json", "--json"}), "bad.csv:3: prompt_tokens"));
  CHECK(has(complaint({"run", "s.json", "--json", "--skip-bad", "0"}), "bad.csv:3: prompt_tokens"));
  const auto ran = points({"run", "s.json", "--json", "--skip-bad", "1"});
  CHECK(ran.at(0).at("requests") == 2);
  CHECK(has(ran.at(0).at("notes").dump(), "1 bad records were skipped"));
  CHECK(ran == points({"run", "s.json", "--json", "--set", "/requests/skip_bad=1"}));
  // The option is applied after --set, overrides it, and applies to every file of a list.
  CHECK(ran ==
        points({"run", "s.json", "--json", "--skip-bad", "1", "--set", "/requests/skip_bad=0"}));
  CHECK(points({"run", "two.json", "--json", "--skip-bad", "1"}).size() == 2);
  CHECK(
      points({"sweep", "s.json", "--vary", "/gpu_count=1,2", "--json", "--skip-bad", "1"}).size() ==
      2);
  const std::vector<std::string> plan{"plan",
                                      "s.json",
                                      "--json",
                                      "--set",
                                      R"(/plan={"questions": ["highest_rate"]})",
                                      "--set",
                                      R"(/slo={"ttft": "2 s"})"};
  CHECK(has(complaint(plan), "bad.csv:3: prompt_tokens"));
  std::vector<std::string> skipping = plan;
  skipping.insert(skipping.end(), {"--skip-bad", "1"});
  const Outcome planned = run_kvsim(skipping, folder);
  CHECK_MESSAGE(planned.status == 0, planned.err);
  // Without a request file, the option does not apply.
  CHECK(has(complaint({"run", "drawn.json", "--skip-bad", "1"}),
            "--skip-bad: expected a scenario with a file of requests (/requests/file), got "
            "drawn.json, which has none"));
  CHECK(has(complaint({"run", "--model", "llama-2-7b", "--gpu", "A40", "--skip-bad", "1"}),
            "got options, which has none"));
  CHECK(has(complaint({"run", "s.json", "--skip-bad", "-1"}), "--skip-bad"));
  CHECK(has(complaint({"sweep", "--trace", "t.safetensors", "--skip-bad", "1"}),
            "sweep: --skip-bad applies to scenarios"));
  CHECK(has(run_kvsim({"help", "run"}, folder).out, "--skip-bad N"));
}

TEST_CASE("requests: sessions of agents are drawn, written, and their reuse printed") {
  const fs::path folder = fresh("agents");
  const Outcome made = run_kvsim(
      {"requests", "generate", "-o", "drawn", "--agents", "sessions=3", "--seed", "2"}, folder);
  CHECK(made.status == 0);
  CHECK(has(made.out, "3 sessions"));
  std::vector<std::string> info{"requests", "info", "--json", "--capacity-blocks", "16,100000000"};
  for (const auto& entry : fs::directory_iterator{folder / "drawn"}) {
    if (entry.path().extension() == ".json")
      info.push_back("drawn/" + entry.path().filename().string());
  }
  REQUIRE(info.size() == 8);
  const auto document = nlohmann::json::parse(run_kvsim(info, folder).out);
  CHECK(document["sessions"] == 3);
  const auto& reuse = document["reuse"];
  CHECK(reuse["schedules"]["together"]["lru"] == reuse["lru"]);
  REQUIRE(reuse["lru"].size() == 2);
  CHECK(reuse["lru"][0]["hit_blocks"] <= reuse["lru"][1]["hit_blocks"]);
  CHECK(reuse["lru"][1]["hit_blocks"] == reuse["unbounded"]["hit_blocks"]);
  CHECK(reuse["unbounded"]["distinct_blocks"] == reuse["distinct_blocks"]);
  std::int64_t hits = 0;
  std::int64_t tokens = 0;
  for (const auto& session : document["per_session"]) {
    hits += session["hit_blocks"].get<std::int64_t>();
    tokens += session["input_tokens"].get<std::int64_t>();
  }
  CHECK(hits == reuse["unbounded"]["hit_blocks"]);
  CHECK(tokens == document["input_tokens"]);
  // The folder has the same content, and the text has the same capacities.
  CHECK(nlohmann::json::parse(
            run_kvsim({"requests", "info", "--json", "drawn"}, folder).out)["input_tokens"] ==
        tokens);
  const Outcome text =
      run_kvsim({"requests", "info", "drawn", "--capacity-blocks", "4096"}, folder);
  CHECK(has(text.out, "4,096"));
  CHECK(has(text.out, "staggered"));
  for (const std::string bad : {"0", "x", "4096,-1", ""}) {
    const Outcome refused =
        run_kvsim({"requests", "info", "drawn", "--capacity-blocks", bad}, folder);
    CHECK(refused.status == 2);
    CHECK(has(refused.err, "--capacity-blocks"));
  }
  const Outcome none =
      run_kvsim({"requests", "info", (kRoot / "scenarios/samples/chat-azure.csv").string(),
                 "--capacity-blocks", "4096"},
                folder);
  CHECK(none.status == 2);
}

TEST_CASE("trace convert: names given twice are refused, and a cut prompt is noted") {
  const fs::path folder = fresh("convert");
  const std::string trace = (kRoot / "traces/samples/answers-896.safetensors").string();
  for (const auto& [option, name] :
       {std::pair{"--metadata", "prompt_len"}, std::pair{"--name", "q"}}) {
    const Outcome twice =
        run_kvsim({"trace", "convert", trace, "x", option, std::string{name} + "=800", option,
                   std::string{name} + "=810"},
                  folder);
    CHECK(twice.status == 2);
    CHECK(has(twice.err, std::string{option} + " " + name + " is given twice"));
  }
  CHECK_FALSE(fs::exists(folder / "x"));
  const Outcome cut = run_kvsim({"trace", "convert", trace, "x", "--tokens", "500"}, folder);
  CHECK(cut.status == 0);
  CHECK(
      has(cut.err, "kvsim: note: the prompt of 829 tokens is cut to 499, with 1 token left to decode"));
  CHECK(run_kvsim({"trace", "convert", trace, "x", "--tokens", "500", "-q"}, folder).err.empty());
}

TEST_CASE("quality: groups, predictions and the answer, in text and JSON") {
  const fs::path folder = fresh("quality");
  const std::string table = (kRoot / "scenarios/samples/quality-made.csv").string();
  const auto document = nlohmann::json::parse(run_kvsim({"quality", table, "--json"}, folder).out);
  CHECK(document["schema"] == "kvsim.quality/1");
  CHECK(document["rows"] == 192);
  CHECK(document["groups"].size() == 192);
  for (const auto& group : document["groups"]) {
    CHECK(group["sources"].size() == 1);  // every number has a source
    CHECK(group["predicted"]["models"] == 5);
  }
  const Outcome text = run_kvsim({"quality", table, "--max-loss", "5%"}, folder);
  CHECK(text.status == 0);
  CHECK(has(text.out, "measured"));
  CHECK(has(text.out, "made"));
  const Outcome other =
      run_kvsim({"quality", table, "--model", "another", "--max-loss", "0.2"}, folder);
  CHECK(has(other.out, "predicted from other models"));
  const std::string trace = (kRoot / "traces/samples/answers-896.safetensors").string();
  const std::string partly = (folder / "partly.csv").string();
  std::ofstream{partly} << "model,task,method,score,score_full\nm,t,a,1,2\nm,t,b,1,\nm,t,c,1,0\n"
                           "m,t,d,1,0\n";
  const Outcome unused = run_kvsim({"quality", partly}, folder);
  CHECK(has(unused.out,
            "rows that are not used: 1 without a full score, 2 with a full score of 0 or less"));
  CHECK(has(unused.out, "a source without a name; m"));
  std::ofstream{folder / "zero.csv"} << "model,task,method,score,score_full\nm,t,a,1,0\n";
  CHECK(has(run_kvsim({"quality", "zero.csv"}, folder).out,
            "largest saving: unknown: no row has a full score above 0"));
  std::ofstream{folder / "full.csv"} << "model,task,method,score,score_full\nm,t,full,1,1\n";
  CHECK(has(run_kvsim({"quality", "full.csv"}, folder).out,
            "largest saving: unknown: all rows are of full caches"));
  // Counting a file twice would narrow the errors by sqrt(2).
  fs::create_symlink(partly, folder / "linked.csv");
  for (const std::string again : {"partly.csv", "./partly.csv", "linked.csv"}) {
    const Outcome twice = run_kvsim({"quality", "partly.csv", again}, folder);
    CHECK(twice.status == 2);
    CHECK(has(twice.err, again + " is given twice"));
  }
  const Outcome traces =
      run_kvsim({"replay", "-t", trace, "-t", trace, "-m", "snapkv", "-b", "0.5"}, folder);
  CHECK(traces.status == 2);
  CHECK(has(traces.err, "-t " + trace + " is given twice"));
  // The share for a budget in entries: 166 of 829 tokens.
  const Outcome replay =
      run_kvsim({"replay", "-t", trace, "-m", "snapkv", "-b", "166", "--json"}, folder);
  std::ofstream{folder / "replay.json"} << replay.out;
  const auto ranked = nlohmann::json::parse(
      run_kvsim({"quality", table, "--replay", "replay.json", "--json"}, folder).out)["replay"];
  CHECK(ranked["methods"][0]["budget"] == doctest::Approx(166.0 / 829.0));
  CHECK(ranked["methods"][0]["budget_entries"] == 166);
  CHECK(ranked["methods"][0]["reason"].is_null());
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"quality", table, "--max-loss", "150%"},
                                             {"quality", table, "--method", "windov"},
                                             {"quality", table, "--task", "mode"},
                                             {"quality", "absent.csv"}}) {
    const Outcome refused = run_kvsim(words, folder);
    INFO(refused.err);
    CHECK(refused.status == 2);
  }
}
