// kvsim explain: terms that sum to their figure, and what is said where there are none. Through the
// program, as users meet it.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/sim/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::Outcome;
using test::rel;
using test::run_kvsim;
namespace fs = std::filesystem;
using test::fresh;
using test::has;
using test::write;

/// Runs `scenario` (JSON) into `folder`/out.
void run(const fs::path& folder, std::string_view scenario) {
  write(folder / "s.json", scenario);
  const Outcome outcome = run_kvsim({"run", "s.json", "-o", "out", "--no-figures", "-q"}, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
}
json explain(const fs::path& folder, const std::string& key, const std::string& point = "") {
  std::vector<std::string> words{"explain", "out", key, "--json"};
  if (!point.empty()) words.insert(words.end(), {"--point", point});
  const Outcome outcome = run_kvsim(words, folder);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return json::parse(outcome.out);
}
std::string complaint(const std::vector<std::string>& words, const fs::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  return outcome.err;
}

constexpr std::string_view kFits = R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM",
  "stack": "hf-sdpa", "dtype": "fp16", "batch": 2, "prompt_tokens": 1000, "output_tokens": 20,
  "memory": {"allocator": "simulate"}})";

TEST_CASE("explain: the terms of every figure sum to it") {
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
  // Times of a calibrated stack have intervals, and say what they rest on.
  const json prefill = explain(folder, "prefill_s");
  CHECK_FALSE(prefill.at("low").is_null());
  for (const json& term : prefill.at("terms")) {
    CHECK_FALSE(term.at("basis").is_null());
    CHECK_FALSE(term.at("formula").is_null());
    CHECK_FALSE(term.at("source").is_null());
  }
}

TEST_CASE("explain: points by number or label, what has no terms says why") {
  const fs::path folder = fresh("points");
  run(folder, R"({"model": "llama-2-7b", "gpu": "RTX-4090", "stack": "hf-sdpa", "dtype": "fp16",
    "prompt_tokens": [1000, 30000], "output_tokens": 5000})");
  CHECK(has(complaint({"explain", "out", "kv_bytes"}, folder), "2 points: --point takes"));
  const json first = explain(folder, "kv_bytes", "0");
  CHECK(explain(folder, "kv_bytes", first.at("point").get<std::string>()) == first);
  CHECK(has(complaint({"explain", "out", "kv_bytes", "--point", "2"}, folder), "point \"2\""));
  CHECK(has(complaint({"explain", "out", "kv_byte", "--point", "0"}, folder),
            "did you mean \"kv_bytes\"?"));
  // The second runs out of memory in prefill.
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

TEST_CASE("explain: the pool of a paged stack is what the start leaves") {
  const fs::path folder = fresh("pool");
  run(folder, R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm",
    "batch": 4, "prompt_tokens": 1000, "output_tokens": 20})");
  const json pool = explain(folder, "kv_cache_bytes");
  double sum = 0;
  for (const json& term : pool.at("terms")) sum += term.at("value").get<double>();
  CHECK(sum == pool.at("value").get<double>());
}

TEST_CASE("explain: a service's capacity, peak and mean iteration, and no figure of a static run") {
  const fs::path folder = fresh("service");
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm", "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 40,
    "prompt_tokens": 500, "output_tokens": 20}})");
  for (const std::string key : {"kv_cache_bytes", "peak_hbm_bytes", "iteration_s"}) {
    INFO(key);
    const json out = explain(folder, key);
    double sum = 0;
    for (const json& term : out.at("terms")) sum += term.at("value").get<double>();
    CHECK(sum == doctest::Approx(out.at("value").get<double>()).epsilon(1e-8));
  }
  const json result = json::parse(std::ifstream{folder / "out/result.json"});
  CHECK(explain(folder, "kv_capacity_tokens").at("value") ==
        result.at("points").at(0).at("kv_capacity_tokens"));
  CHECK(has(complaint({"explain", "out", "prefill_s"}, folder), "a service explains"));
}

/// Sum of a table's shares.
double shares_of(const json& table) {
  double sum = 0;
  for (const json& row : table.at("rows")) sum += row.at("share").get<double>();
  return sum;
}

/// A service of 200 requests that come at once, with what bounds it.
json bound_of(const std::string& name, const std::string& more) {
  const fs::path folder = fresh(name);
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm", "requests": {"arrivals": {"kind": "fixed", "rate": 1000}, "count": 200,
    "prompt_tokens": 600, "output_tokens": 60})" +
                  more + "}");
  const json out = explain(folder, "bound");
  const json point = json::parse(std::ifstream{folder / "out/result.json"}).at("points").at(0);
  // Phases sum to the makespan, and are those of the result.
  double sum = 0;
  for (const json& term : out.at("terms")) sum += term.at("value").get<double>();
  CHECK(sum == rel(point.at("makespan_s").get<double>()).epsilon(1e-8));
  double phases = 0;
  for (const auto& phase : point.at("phases").items()) phases += phase.value().get<double>();
  CHECK(phases == rel(1.0).epsilon(1e-9));
  CHECK(point.at("phases").at("idle").get<double>() ==
        doctest::Approx(1 - point.at("busy").get<double>()));
  // The resource that binds is marked, and it alone.
  REQUIRE(out.at("tables").size() == 3);
  int binding = 0;
  for (const json& row : out.at("tables").at(0).at("rows")) {
    binding += row.at("what").get<std::string>().ends_with("(binds)") ? 1 : 0;
    if (!row.at("share").is_null()) CHECK(row.at("share").get<double>() <= 1 + 1e-9);
  }
  CHECK(binding == 1);
  // Families are a mean iteration, whole.
  CHECK(shares_of(out.at("tables").at(1)) == rel(1.0).epsilon(1e-9));
  const Outcome text = run_kvsim({"explain", "out", "bound"}, folder);
  CHECK(has(text.out, "what moves it"));
  return {{"explained", out}, {"point", point}};
}

TEST_CASE("explain: what bounds a service, its phases, resources and what moves it") {
  const json few = bound_of("few", R"(, "scheduler": {"name": "vllm-v1", "max_num_seqs": 4})");
  CHECK(few.at("point").at("bound") == "max_num_seqs");
  CHECK(few.at("point").at("resources").at("max_num_seqs") == 4);
  CHECK(few.at("point").at("resources").at("most_running") == 4);
  CHECK(few.at("point").at("resources").at("seqs_full") > 0.9);
  const json small =
      bound_of("small", R"(, "memory": {"hbm": "24 GiB"}, "engine": {"max_model_len": 2048})");
  CHECK(small.at("point").at("bound") == "kv_capacity");
  // Where the cache binds, what makes it larger stands first.
  const json& first = small.at("explained").at("tables").at(2).at("rows").at(0);
  CHECK(has(first.at("text").get<std::string>(), "more cache"));
  // A budget of 16 tokens is always spent while prompts wait; four sequences do not fill 8,192.
  const json tight =
      bound_of("tight", R"(, "scheduler": {"name": "vllm-v1", "max_num_batched_tokens": 16})");
  CHECK(tight.at("point").at("resources").at("tokens_full") > 0.9);
  CHECK(few.at("point").at("resources").at("tokens_full") <
        tight.at("point").at("resources").at("tokens_full"));
}

TEST_CASE("explain: what a replay's methods hold, and why") {
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
    // Every head's entries, one by one, are those that it holds.
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
        break;  // one head of a layer: each is a start of the program
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
  // The full cache holds all; StreamingLLM its sinks (4 a head) and the last; H2O heavy hitters.
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
  // By hand of SnapKV: what came after the prompt is decode steps times heads.
  CHECK(roles(3).at("decoded") == methods.at(3).at("steps").get<std::int64_t>() * heads);
  const Outcome by_label = run_kvsim({"explain", "out", "kept", "-p", "h2o 0.2"}, folder);
  CHECK(by_label.status == 0);
  CHECK(has(by_label.out, "rank 1 of"));
  CHECK(has(complaint({"explain", "out", "kept"}, folder), "5 methods: --point takes"));
  CHECK(has(complaint({"explain", "out", "kept", "-p", "0", "--layer", "99"}, folder),
            "there is no layer 99"));
  CHECK(has(complaint({"explain", "out", "peak_hbm_bytes"}, folder), "a replay explains"));
  CHECK(has(complaint({"explain", "out", "bytes_held_final", "-p", "0", "--layer", "1"}, folder),
            "--layer and --head are of"));
  fs::remove(folder / "out/replay_kept.csv");
  CHECK(has(complaint({"explain", "out", "kept", "-p", "0"}, folder), "replay -o"));
}

TEST_CASE("explain: other documents, and those that were changed, are refused with their place") {
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
  CHECK(has(changed([](json& r) { r["schema"] = "kvsim.plan/1"; }), "c.json: /schema"));
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

}  // namespace
}  // namespace kvsim
