// kvsim explain: terms that sum to their metric, and messages for metrics without terms. The tests
// run the program like a user.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/sim/report/explained.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::complaint;
using test::explain;
using test::kFits;
using test::Outcome;
using test::rel;
using test::run;
using test::run_kvsim;
namespace fs = std::filesystem;
using test::fresh;
using test::has;
using test::write;

TEST_CASE("explain: the terms of every metric sum to it") {
  const fs::path folder = fresh("sums");
  run(folder, kFits);
  const json result = json::parse(std::ifstream{folder / "out/result.json"});
  const json& point = result.at("points").at(0);
  for (const std::string key :
       {"peak_hbm_bytes", "reserved_hbm_bytes", "kv_bytes", "prefill_s", "step_s", "first_step_s",
        "decode_s", "latency_s", "decode_tok_s", "throughput_tok_s", "oom"}) {
    INFO(key);
    const json out = explain(folder, key);
    CHECK(out.at("schema") == "kvsim.explain/1");
    CHECK(out.at("key") == key);
    CHECK(out.at("point") == point.at("label"));
    REQUIRE_FALSE(out.at("terms").empty());
    double sum = 0;
    for (const json& term : out.at("terms")) {
      sum += term.at("value").get<double>();
      CHECK_FALSE(term.at("what").get<std::string>().empty());
      if (!term.at("low").is_null()) {
        CHECK(term.at("low") <= term.at("value"));
        CHECK(term.at("value") <= term.at("high"));
      }
    }
    CHECK(sum == rel(out.at("total").get<double>()));
    if (point.contains(key) && key != "oom") CHECK(out.at("value") == point.at(key));
    if (!out.at("low").is_null()) {
      CHECK(out.at("low") <= out.at("value"));
      CHECK(out.at("value") <= out.at("high"));
      CHECK_FALSE(out.at("interval_basis").is_null());
    }
    const Outcome text = run_kvsim({"explain", "out/result.json", key}, folder);
    CHECK(text.status == 0);
    CHECK(has(text.out, key + " of "));
    CHECK(has(text.out, "100 %"));
  }
  // By hand: 2 x 20 tokens over the whole run; 32 layers x 2 x 2 x 1,020 x 4,096 x 2 B of cache.
  const json rate = explain(folder, "throughput_tok_s");
  CHECK(rate.at("value").get<double>() == rel(40 / point.at("latency_s").get<double>()));
  CHECK(rate.at("terms_of") == "latency_s");
  const json cache = explain(folder, "kv_bytes");
  CHECK(cache.at("value") == 32LL * 2 * 2 * 1020 * 4096 * 2);
  CHECK(cache.at("terms").size() == 1);
  // Times of a calibrated stack have intervals and their basis.
  const json prefill = explain(folder, "prefill_s");
  CHECK_FALSE(prefill.at("low").is_null());
  for (const json& term : prefill.at("terms")) {
    CHECK_FALSE(term.at("basis").is_null());
    CHECK_FALSE(term.at("formula").is_null());
    CHECK_FALSE(term.at("source").is_null());
  }
}

TEST_CASE("explain: points by number or label, and a reason for metrics without terms") {
  const fs::path folder = fresh("points");
  run(folder, R"({"model": "llama-2-7b", "gpu": "RTX-4090", "stack": "hf-sdpa", "dtype": "fp16",
    "prompt_tokens": [1000, 30000], "output_tokens": 5000})");
  CHECK(has(complaint({"explain", "out", "kv_bytes"}, folder), "2 points: --point takes"));
  const json first = explain(folder, "kv_bytes", "0");
  CHECK(explain(folder, "kv_bytes", first.at("point").get<std::string>()) == first);
  CHECK(has(complaint({"explain", "out", "kv_bytes", "--point", "2"}, folder),
            "2 points: --point takes a number from 0 to 1, got 2"));
  CHECK(has(complaint({"explain", "out", "kv_byte", "--point", "0"}, folder),
            "did you mean \"kv_bytes\"?"));
  // The second point runs out of memory in prefill.
  CHECK(has(complaint({"explain", "out", "prefill_s", "--point", "1"}, folder),
            "memory runs out in prefill"));
  CHECK(has(complaint({"explain", "out", "throughput_tok_s", "--point", "1"}, folder),
            "runs out of memory"));
  CHECK(has(complaint({"explain", "out", "reserved_hbm_bytes", "--point", "0"}, folder),
            "allocator was not simulated"));
  CHECK(has(complaint({"explain", "out", "kv_cache_bytes", "--point", "0"}, folder),
            "no paged cache"));
  const json oom = explain(folder, "oom", "1");
  CHECK(oom.at("terms_of") == "usable_hbm_bytes");
  CHECK(oom.at("value") == 30000);
  CHECK(oom.at("low") <= oom.at("value"));
  CHECK(oom.at("notes").dump().find(" B free") != std::string::npos);
}

TEST_CASE("explain: the pool of a paged stack is the remainder of the start") {
  // CUDA graphs are subtracted under TensorRT-LLM and some releases of vLLM.
  for (const std::string stack :
       {"vllm", "vllm@0.19", "vllm@0.20", "vllm@0.28", "trtllm", "sglang", "lmdeploy"}) {
    INFO(stack);
    const fs::path folder = fresh("pool");
    run(folder, R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": ")" + stack +
                    R"(", "batch": 4, "prompt_tokens": 1000, "output_tokens": 20})");
    const json pool = explain(folder, "kv_cache_bytes");
    double sum = 0;
    bool graphs = false;
    for (const json& term : pool.at("terms")) {
      sum += term.at("value").get<double>();
      graphs = graphs || term.at("what") == "CUDA graphs";
    }
    CHECK(sum == pool.at("value").get<double>());
    CHECK(graphs == (stack == "vllm" || stack == "vllm@0.20" || stack == "trtllm"));
  }
}

TEST_CASE("explain: entries that a replay's methods hold and the reason") {
  const fs::path folder = fresh("replay");
  const std::string trace =
      std::string{KVSIM_SOURCE_DIR} + "/traces/samples/books-treasure-512.safetensors";
  const Outcome ran =
      run_kvsim({"replay", "-t", trace, "-m", "full,streaming-llm,h2o,snapkv,zeromerge", "-b",
                 "0.2", "-o", "out", "--no-figures", "-q"},
                folder);
  REQUIRE_MESSAGE(ran.status == 0, ran.err);
  const json result = json::parse(std::ifstream{folder / "out/result.json"});
  const auto& methods = result.at("methods");
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const json& method = methods.at(m);
    INFO(method.at("name"));
    for (const std::string key : {"bytes_held_final", "entries_held_final", "rel_error_mean"}) {
      INFO(key);
      const json out = explain(folder, key, std::to_string(m));
      double sum = 0;
      for (const json& term : out.at("terms")) {
        sum += term.at("value").get<double>();
        CHECK(term.at("value").get<double>() >= 0);
      }
      CHECK(sum == rel(method.at(key).get<double>()).epsilon(1e-9));
    }
    // The listed entries of every head are the entries that it holds.
    std::int64_t listed = 0;
    for (const json& layer : method.at("layers")) {
      std::int64_t of_layer = 0;
      for (const json& head : method.at("per_head")) {
        if (head.at("layer") != layer.at("layer")) continue;
        const Outcome one =
            run_kvsim({"explain", "out", "kept", "-p", std::to_string(m), "--layer",
                       head.at("layer").dump(), "--head", head.at("head").dump(), "--json"},
                      folder);
        REQUIRE_MESSAGE(one.status == 0, one.err);
        const json kept = json::parse(one.out);
        CHECK(kept.at("value") == head.at("entries_final"));
        of_layer += kept.at("value").get<std::int64_t>();
        break;  // one head per layer, since each starts the program
      }
      listed += of_layer;
    }
    CHECK(listed > 0);
    const std::string law =
        explain(folder, "bytes_held_final", std::to_string(m)).at("notes").dump();
    if (method.at("closed_form_bytes_final") == method.at("bytes_held_final")) {
      CHECK(has(law, "the same"));
    }
  }
  const auto roles = [&](std::size_t m) {
    std::map<std::string, std::int64_t> out;
    for (const json& row : methods.at(m).at("kept_by_role")) {
      out[row.at("role")] += row.at("entries").get<std::int64_t>();
    }
    return out;
  };
  // The full cache holds all entries; StreamingLLM its sinks (4 per head) and the newest; H2O heavy
  // hitters.
  CHECK(roles(0).size() == 1);
  CHECK(roles(0).contains("whole"));
  const std::int64_t heads = static_cast<std::int64_t>(methods.at(1).at("per_head").size());
  CHECK(roles(1).at("sink") == 4 * heads);
  CHECK(roles(1).size() == 2);
  CHECK(roles(1).contains("recent"));
  CHECK(roles(2).contains("score"));
  CHECK(roles(2).contains("recent"));
  CHECK(roles(3).contains("decoded"));
  CHECK(roles(3).contains("score"));
  CHECK(roles(4).contains("merged"));
  // SnapKV by hand: entries added after the prompt are decode steps times heads.
  CHECK(roles(3).at("decoded") == methods.at(3).at("steps").get<std::int64_t>() * heads);
  const Outcome by_label = run_kvsim({"explain", "out", "kept", "-p", "h2o 0.2"}, folder);
  CHECK(by_label.status == 0);
  CHECK(has(by_label.out, "rank 1 of"));
  CHECK(has(complaint({"explain", "out", "kept"}, folder), "5 methods: --point takes"));
  CHECK(has(complaint({"explain", "out", "kept", "-p", "0", "--layer", "99"}, folder),
            "contains no layer 99"));
  CHECK(has(complaint({"explain", "out", "peak_hbm_bytes"}, folder), "a replay explains"));
  CHECK(has(complaint({"explain", "out", "bytes_held_final", "-p", "0", "--layer", "1"}, folder),
            "--layer and --head apply to"));
  fs::remove(folder / "out/replay_kept.csv");
  CHECK(has(complaint({"explain", "out", "kept", "-p", "0"}, folder), "replay -o"));
}

/// Width of the widest line in characters; lines are UTF-8.
std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0, now = 0;
  for (const char c : text) {
    if (c == '\n') {
      now = 0;
    } else if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) {
      widest = std::max(widest, ++now);
    }
  }
  return widest;
}

/// Plans `plan` (JSON) into `folder`/out and reads plan.json.
json planned(const fs::path& folder, std::string_view plan) {
  write(folder / "p.json", plan);
  const Outcome outcome = run_kvsim({"plan", "p.json", "-o", "out", "--no-figures", "-q"}, folder);
  REQUIRE_MESSAGE((outcome.status == 0 || outcome.status == 1), outcome.err);
  return json::parse(std::ifstream{folder / "out/plan.json"});
}
double sum_of(const json& explained) {
  double sum = 0;
  for (const json& term : explained.at("terms")) sum += term.at("value").get<double>();
  return sum;
}
std::string notes_of(const json& explained) {
  std::string all;
  for (const json& note : explained.at("notes")) all += note.get<std::string>() + "\n";
  return all;
}

TEST_CASE("explain: a plan's answer lists every byte of its run and the next size fails") {
  const std::string model = R"({"model": "llama-3.1-8b", "gpu": "A100-40GB-SXM", )";
  for (const char* stack : {"hf-sdpa", "vllm"}) {
    const fs::path folder = fresh(std::string{"plan_"} + stack);
    const json plan = planned(folder, model + R"("stack": ")" + stack + R"(",
      "prompt_tokens": 4096, "output_tokens": 64, "method": ["full", {"name": "snapkv", "budget": 0.2}],
      "plan": {"questions": ["longest_context", "largest_batch"]}})");
    for (const json& answer : plan.at("answers")) {
      const std::string question = answer.at("question");
      for (const json& candidate : answer.at("candidates")) {
        const std::string label = candidate.at("label");
        INFO(stack, " ", question, " ", label);
        const json out = explain(folder, question, label);
        CHECK(out.at("value") == candidate.at("answer"));
        CHECK(out.at("terms_of") == "usable_hbm_bytes");
        CHECK(sum_of(out) == rel(candidate.at("usable_hbm_bytes").get<double>()));
        for (const json& term : out.at("terms")) CHECK(term.at("value") >= 0);
        CHECK(out.at("terms").back().at("what") == "free");
        // A separate run at the answer has the same peak, term by term.
        const json& at = candidate.at("at_answer");
        write(folder / "s.json",
              model + R"("stack": ")" + stack + R"(", "batch": )" + at.at("batch").dump() +
                  R"(, "prompt_tokens": )" + at.at("prompt_tokens").dump() +
                  R"(, "output_tokens": 64,
                                     "method": )" +
                  (candidate.at("method") == "full" ? std::string{"\"full\"}"}
                                                    : R"({"name": "snapkv", "budget": 0.2}})"));
        const Outcome ran = run_kvsim({"run", "s.json", "--json"}, folder);
        REQUIRE_MESSAGE(ran.status == 0, ran.err);
        const json point = json::parse(ran.out).at("points").at(0);
        CHECK(point.at("peak_hbm_bytes") == candidate.at("peak_hbm_bytes"));
        CHECK(point.at("peak_terms") == at.at("peak_terms"));
        // The next size is one larger, and its shortage is stated.
        const json& next = candidate.at("runs_out");
        const char* grows = question == "largest_batch" ? "batch" : "prompt_tokens";
        CHECK(next.at(grows) == at.at(grows).get<std::int64_t>() + 1);
        const std::string notes = notes_of(out);
        CHECK(has(notes, "does not fit: " + next.at("constraint").get<std::string>()));
        CHECK(has(notes, next.at("text").get<std::string>()));
        CHECK(has(notes, "its peak is in " + at.at("peak_phase").get<std::string>()));
        const Outcome text = run_kvsim({"explain", "out", question, "-p", label}, folder);
        CHECK(widest_line(text.out) <= 80);
        CHECK(has(text.out, "usable_hbm_bytes"));
      }
      // With a single answer, the best may be omitted.
      CHECK(explain(folder, question).at("point") == answer.at("best"));
    }
    CHECK(has(complaint({"explain", "out", "highest_rate"}, folder),
              "this plan has no question highest_rate; it has longest_context, largest_batch"));
    CHECK(has(complaint({"explain", "out", "peak_hbm_bytes"}, folder), "a plan explains"));
    CHECK(has(complaint({"explain", "out", "largest_batch", "-p", "snapvk"}, folder), "candidate"));
    CHECK(has(complaint({"explain", "out", "largest_batch", "--layer", "1"}, folder), "--layer"));
  }
}

TEST_CASE("explain: shortages of an impossible plan, and places of changed documents") {
  const fs::path folder = fresh("plan_impossible");
  const json plan = planned(folder, R"({"model": "llama-3.1-8b", "gpu": "A100-40GB-SXM",
    "stack": "vllm", "memory": {"hbm": "12 GiB"}, "prompt_tokens": 4096, "output_tokens": 64,
    "plan": {"questions": "largest_batch"}})");
  const json out = explain(folder, "largest_batch", "0");
  CHECK(out.at("value").is_null());
  CHECK(out.at("terms").empty());
  CHECK(has(notes_of(out), "impossible: weights: "));
  const json& knobs = plan.at("answers").at(0).at("candidates").at(0).at("impossible").at("knobs");
  REQUIRE(out.at("tables").size() == 1);
  CHECK(out.at("tables").at(0).at("rows").size() == knobs.size());
  const Outcome text = run_kvsim({"explain", "out", "largest_batch", "-p", "0"}, folder);
  CHECK(text.out.find("100 %") == std::string::npos);
  CHECK(widest_line(text.out) <= 80);
  run(folder, kFits);
  CHECK(has(complaint({"explain", "out", "longest_context"}, folder),
            "is a question for kvsim plan"));

  const fs::path changed = fresh("plan_changed");
  json good = planned(changed, R"({"model": "llama-3.1-8b", "gpu": "A100-40GB-SXM", "stack": "vllm",
    "prompt_tokens": 4096, "output_tokens": 64, "plan": {"questions": "largest_batch"}})");
  const auto said = [&](const auto& change) {
    json copy = good;
    change(copy.at("answers").at(0).at("candidates").at(0));
    write(changed / "c.json", copy.dump());
    return complaint({"explain", "c.json", "largest_batch"}, changed);
  };
  CHECK(has(said([](json& c) { c.at("at_answer").at("peak_terms").at(0)["bytes"] = 1; }),
            "/at_answer/peak_terms: terms that sum to"));
  CHECK(has(said([](json& c) { c.erase("at_answer"); }), "no run at the answer"));
  CHECK(has(said([](json& c) { c["answer"] = nullptr; }), "neither an answer nor"));
}

TEST_CASE("explain: the rate of a plan's service and the bound closest to its limit") {
  const fs::path folder = fresh("plan_service");
  const json plan = planned(folder, R"({"kind": "serve", "model": "llama-3.1-8b",
    "gpu": "H100-80GB-SXM", "stack": "vllm",
    "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 60, "prompt_tokens": 2000,
                 "output_tokens": 100},
    "slo": {"ttft": "2 s", "tpot": "50 ms"},
    "plan": {"questions": ["highest_rate", "fewest_gpus"], "rate_step": 0.2}})");
  const json& candidate = plan.at("answers").at(0).at("candidates").at(0);
  const json out = explain(folder, "highest_rate");
  CHECK(out.at("value").get<double>() == rel(candidate.at("answer").get<double>()));
  // One more step of the search.
  CHECK(candidate.at("next").get<double>() == rel(1.2 * candidate.at("answer").get<double>()));
  REQUIRE(candidate.at("bounds").size() == 2);  // no bound on whole requests
  double max = 0;
  std::string tightest;
  for (const json& bound : candidate.at("bounds")) {
    const double share = bound.at("share");
    CHECK(share > 0);
    CHECK(share <= 1);
    if (share > max) tightest = bound.at("bound");
    max = std::max(max, share);
  }
  CHECK(has(notes_of(out), "nearest to its bound at the answer is " + tightest));
  REQUIRE(out.at("tables").size() == 1);
  CHECK(out.at("tables").at(0).at("rows").size() == 2);
  const json fewest = explain(folder, "fewest_gpus");
  CHECK(fewest.at("unit") == "GPUs");
  for (const char* key : {"highest_rate", "fewest_gpus"}) {
    const Outcome text = run_kvsim({"explain", "out", key}, folder);
    CHECK(text.status == 0);
    CHECK(widest_line(text.out) <= 80);
  }
}

TEST_CASE("explain: other documents and changed ones are refused with their place") {
  const fs::path folder = fresh("broken");
  run(folder, kFits);
  CHECK(has(complaint({"explain", "nowhere", "kv_bytes"}, folder), "nowhere"));
  CHECK(has(complaint({"explain", ".", "kv_bytes"}, folder), "no result.json"));
  CHECK(has(complaint({"explain", "s.json", "kv_bytes"}, folder), "schema"));
  CHECK(has(complaint({"explain", "out"}, folder), "explain: expected"));
  json result = json::parse(std::ifstream{folder / "out/result.json"});
  const auto changed = [&](const auto& change) {
    json copy = result;
    change(copy);
    write(folder / "c.json", copy.dump());
    return complaint({"explain", "c.json", "peak_hbm_bytes"}, folder);
  };
  CHECK(has(changed([](json& r) { r["schema"] = "kvsim.sweep/1"; }), "c.json: /schema"));
  CHECK(has(changed([](json& r) { r["points"][0]["peak_terms"][0]["bytes"] = 1; }),
            "/points/0/peak_terms: terms that sum to"));
  CHECK(has(changed([](json& r) { r["points"][0].erase("peak_terms"); }), "peak_terms"));
  CHECK(has(changed([](json& r) { r["points"] = json::array(); }), "without points"));
  json copy = result;
  copy["points"][0]["time_terms"] = json::array();
  write(folder / "c.json", copy.dump());
  const std::string again = complaint({"explain", "c.json", "prefill_s"}, folder);
  CHECK(has(again, "/points/0/time_terms: no time terms"));
  CHECK(has(again, "run the scenario again"));
}

TEST_CASE("explain: the tokens of a pool name the groups of layers that share it") {
  // Gemma-3-1B: 22 layers with a window of 512 and 4 with full attention; groups of 4, of which two
  // window groups have three layers.
  const fs::path folder = fresh("groups");
  run(folder, R"({"kind": "serve", "model": "gemma-3-1b", "gpu": "L4",
                  "stack": {"name": "vllm", "version": "0.25"}, "dtype": "bf16",
                  "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 10,
                               "prompt_tokens": 500, "output_tokens": 20},
                  "engine": {"max_model_len": 8192}})");
  const json point = json::parse(std::ifstream{folder / "out/result.json"}).at("points").at(0);
  const json& start = point.at("startup");
  REQUIRE(start.at("groups").size() == 7);
  CHECK(start.at("request_blocks") == 6 * ((511 + 2048) / 16 + 1 + 1) + 512);
  CHECK(start.at("tokens") == start.at("blocks").get<std::int64_t>() * 8192 /
                                  start.at("request_blocks").get<std::int64_t>());
  CHECK(start.at("blocks").get<std::int64_t>() * start.at("block_bytes").get<std::int64_t>() <=
        start.at("kv_cache_bytes").get<std::int64_t>());
  const json out = explain(folder, "kv_capacity_tokens");
  CHECK(out.at("value") == start.at("tokens"));
  CHECK(out.at("low") <= out.at("value"));
  CHECK(out.at("value") <= out.at("high"));
  std::string notes;
  for (const json& note : out.at("notes")) notes += note.get<std::string>() + "\n";
  CHECK(has(notes, "group of 4 full layers: blocks of 16 tokens, 512 of them per request"));
  CHECK(has(notes, "group of 3 window layers and 1 empty"));
}

}  // namespace
}  // namespace kvsim
