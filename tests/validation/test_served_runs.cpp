// Tables of serving runs: accepted and rejected contents, and the mapping of cells and settings.

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "validation/served/served_lengths.hpp"
#include "validation/served/served_mapping.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_tables.hpp"
#include "validation/served/served_text.hpp"

namespace kvsim {
namespace {

using test::rel;

const std::string kHeader =
    "run_id,source,date,gpu,gpu_count,tp,pp,ep_dp,model,weight_dtype,kv_dtype,engine,engine_"
    "version,"
    "engine_options,workload,input_tokens,input_spread,output_tokens,output_spread,arrival,rate_"
    "rps,"
    "concurrency,num_requests,seed,metric,stat,value,unit,not_stated,note\n";

/// A run with all settings stated; `change` replaces columns.
struct Row {
  std::vector<std::pair<std::string, std::string>> cells{
      {"run_id", "r1"},
      {"source", "own/bench a.csv"},
      {"date", "2025-10"},
      {"gpu", "H100-80GB-SXM"},
      {"gpu_count", "1"},
      {"tp", "1"},
      {"pp", "1"},
      {"ep_dp", ""},
      {"model", "meta-llama/Llama-3.1-8B-Instruct"},
      {"weight_dtype", "bf16"},
      {"kv_dtype", "auto"},
      {"engine", "vLLM"},
      {"engine_version", "0.11.0"},
      {"engine_options", "max_num_seqs=64"},
      {"workload", "random"},
      {"input_tokens", "100"},
      {"input_spread", "fixed"},
      {"output_tokens", "20"},
      {"output_spread", "fixed"},
      {"arrival", "concurrency"},
      {"rate_rps", ""},
      {"concurrency", "4"},
      {"num_requests", "16"},
      {"seed", "0"},
      {"metric", "ttft"},
      {"stat", "mean"},
      {"value", "20"},
      {"unit", "ms"},
      {"not_stated", ""},
      {"note", ""}};

  Row& set(const std::string& column, const std::string& value) {
    for (auto& [name, cell] : cells) {
      if (name == column) cell = value;
    }
    return *this;
  }
  [[nodiscard]] std::string line() const {
    std::string out;
    for (const auto& [name, cell] : cells)
      out += fmt::format("{}\"{}\"", out.empty() ? "" : ",", cell);
    return out + "\n";
  }
};

std::vector<ServedRun> runs_of(const std::string& lines) {
  return parse_served_runs(kHeader + lines, "runs.csv");
}
ServedRun run_of(const Row& row) { return runs_of(row.line()).front(); }
MappedRun mapped(const Row& row) { return map_served_run(run_of(row), {}); }

std::string complaint(const std::string& lines) {
  try {
    (void)runs_of(lines);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("rows of a run are one run in base units with all stated settings") {
  Row second;
  second.set("metric", "kv_usage").set("stat", "max").set("value", "50").set("unit", "%");
  Row first;
  first.set("rate_rps", "");
  second.set("rate_rps", "3");
  Row other;
  other.set("run_id", "r2");
  const auto runs = runs_of(first.line() + other.line() + second.line());
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].id == "r1");
  CHECK(runs[0].line == 2);
  REQUIRE(runs[0].metrics.size() == 2);
  CHECK(runs[0].metrics[0].value == rel(0.020));
  CHECK(runs[0].metrics[1].value == rel(0.5));
  CHECK(runs[0].metrics[1].line == 4);
  CHECK(runs[0].rate_rps == "3");
  CHECK(runs[1].id == "r2");
}

TEST_CASE("cells with unknown values become assumptions, and their run is not complete") {
  CHECK(mapped(Row{}).complete);
  for (const auto& [column, cell] :
       {std::pair{"num_requests", "abc"}, std::pair{"num_requests", "-1"},
        std::pair{"num_requests", "2.5"}, std::pair{"gpu_count", "-1"}, std::pair{"ep_dp", "dp=x"},
        std::pair{"ep_dp", "banana=2"}}) {
    INFO(column, " ", cell);
    const MappedRun run = mapped(Row{}.set(column, cell));
    REQUIRE(run.refused.empty());
    const auto& assumed = run.workload.assumed;
    CHECK(std::find(assumed.begin(), assumed.end(),
                    fmt::format("{} \"{}\" is left out", column, cell)) != assumed.end());
    CHECK_FALSE(run.complete);
  }
  const MappedRun other =
      mapped(Row{}.set("arrival", "banana").set("rate_rps", "2").set("concurrency", ""));
  CHECK(other.workload.assumed.back() == "arrivals \"banana\" as Poisson's");
  CHECK_FALSE(other.complete);
  for (const char* layout :
       {"dp=2", "ep=on", "1", "replicas=2", "attention_dp=1 moe_tp=1 moe_ep=1"}) {
    INFO(layout);
    CHECK(mapped(Row{}.set("ep_dp", layout)).workload.assumed.empty());
  }
}

TEST_CASE("MLPerf splits a model over the fewest GPUs that leave room for the cache") {
  Row row;
  row.set("workload", "mlperf-openorca")
      .set("engine", "TensorRT-LLM")
      .set("engine_version", "0.12");
  row.set("gpu", "H100-SXM-80GB").set("gpu_count", "16").set("tp", "").set("ep_dp", "");
  row.set("model", "meta-llama/Llama-2-70b-chat-hf").set("weight_dtype", "fp8");
  const auto tp = [&](const char* dtype) {
    const MappedRun run = mapped(row.set("weight_dtype", dtype));
    REQUIRE(run.refused.empty());
    return run.scenario.at("gpu_count").get<int>();
  };
  CHECK(tp("fp8") == 2);
  CHECK(tp("bf16") == 4);
  CHECK(mapped(row).settings.replicas == 4);
  // Measurements of a service state its layout or use all GPUs.
  row.set("workload", "random 1024/128");
  CHECK(tp("fp8") == 8);
}

TEST_CASE("broken tables are refused at their line and column") {
  CHECK(complaint(Row{}.set("value", "fast").line())
            .starts_with("runs.csv:2: value: expected a number"));
  CHECK(complaint(Row{}.set("value", "nan").line()).starts_with("runs.csv:2: value: "));
  CHECK(complaint(Row{}.set("unit", "furlongs").line())
            .starts_with("runs.csv:2: unit: expected s, ms"));
  CHECK(complaint(Row{}.set("metric", "power").set("unit", "furlongs").line()) == "no error");
  CHECK(complaint(Row{}.set("unit", "tok/s").line()) ==
        "runs.csv:2: unit: expected s, ms or us of ttft, got \"tok/s\"");
  CHECK(complaint(Row{}.set("metric", "output_throughput").set("unit", "s").line())
            .starts_with("runs.csv:2: unit: expected tok/s or req/s of output_throughput"));
  CHECK(complaint(Row{}.set("value", "-1").line()).starts_with("runs.csv:2: value: "));
  CHECK(complaint(Row{}.set("run_id", "").line()).starts_with("runs.csv:2: run_id: "));
  CHECK(complaint(Row{}.set("metric", "").line()).starts_with("runs.csv:2: metric: "));
  CHECK(complaint(Row{}.line() + Row{}.set("model", "other").line())
            .starts_with("runs.csv:3: model: expected \"meta-llama/Llama-3.1-8B-Instruct\", as in "
                         "line 2 of the same run"));
  CHECK(complaint("a,b\n").starts_with("runs.csv:2: expected 30 cells"));
  std::string without = kHeader;
  without.replace(without.find("gpu_count,"), 10, "");
  try {
    (void)parse_served_runs(without, "runs.csv");
    CHECK(false);
  } catch (const InputError& error) {
    CHECK(std::string{error.what()}.starts_with("runs.csv: expected a column \"gpu_count\""));
  }
}

TEST_CASE("cells: options, dates, releases, ranges") {
  const auto options = parse_options("--max-num-seqs=256; enforce-eager;x=a=b;;");
  REQUIRE(options.size() == 3);
  CHECK(options[0].name == "max_num_seqs");
  CHECK(*options[0].number() == 256);
  CHECK(options[1].is_on());
  CHECK(options[2].value == "a=b");
  CHECK_FALSE(EngineOption{"a", "False"}.is_on());

  CHECK(*parse_date("20260213") == rel(26 + 1.5 / 12));
  CHECK(*parse_date("2025-12..2026-02") == rel(25 + 11.5 / 12));
  CHECK(*parse_date("2024") == rel(24.5));
  CHECK(*parse_date("nightly wheel of Nov 2024") == rel(24 + 10.5 / 12));
  CHECK(*parse_date("vllm-openai:latest (May 2025)") == rel(25 + 4.5 / 12));
  CHECK(*parse_date("main of 2025") == rel(25.5));
  CHECK_FALSE(parse_date("latest"));
  CHECK_FALSE(parse_date("May"));

  CHECK(*parse_release("v0.11.0") == std::array<std::int32_t, 3>{0, 11, 0});
  CHECK(*parse_release("0.6.3.post2.dev308+gb489fc3c") == std::array<std::int32_t, 3>{0, 6, 3});
  CHECK(*parse_release("vLLM 0.5.2") == std::array<std::int32_t, 3>{0, 5, 2});
  CHECK_FALSE(parse_release("llm-d-dev:0.0.4 image"));
  CHECK_FALSE(parse_release("nightly container (Feb 2026)"));

  CHECK(parse_range("per request, 190-2019")->high == 2019);
  CHECK(parse_range("uniform 1..8 (ratio 0)")->low == 1);
  CHECK_FALSE(parse_range("fixed"));
  CHECK(*number_behind("attention_dp=2 moe_ep=4", "moe_ep") == 4);
  CHECK_FALSE(number_behind("attention_dp=2", "dp"));
  CHECK(*parse_apart("2P1D") == std::pair{2, 1});
  CHECK_FALSE(parse_apart("2P"));
  CHECK_FALSE(parse_apart("replicas=2"));
  const auto siblings =
      parse_sibling_options("seed;max_num_seqs (128 in siblings);tp (2 GPUs stated)");
  REQUIRE(siblings.size() == 1);
  CHECK(siblings[0].name == "max_num_seqs");
  CHECK(*siblings[0].number() == 128);
}

TEST_CASE("a release of an architecture is its model but a changed shape is not") {
  const std::vector<std::pair<const char*, const char*>> names{
      {"meta-llama/Meta-Llama-3.1-8B-Instruct (FP8)", "llama-3.1-8b"},
      {"Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "qwen3-235b-a22b"},
      {"Qwen/Qwen3-32B-AWQ", "qwen3-32b"},
      {"meta-llama/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b-fp8"},
      {"NousResearch/Hermes-3-Llama-3.1-405B-FP8", "llama-3.1-405b"},
      {"RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b-w8a8"},
      {"RedHatAI/Mistral-Nemo-Instruct-2407-quantized.w8a16", "mistral-nemo-12b"},
      {"deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"}};
  for (const auto& [name, model] : names) {
    const Llm* llm = find_served_llm(name);
    REQUIRE_MESSAGE(llm != nullptr, name);
    CHECK(llm->name == model);
  }
  CHECK(find_served_llm("someone/Unknown-13B") == nullptr);
  CHECK_THROWS_AS((void)find_served_llm("meta-llama/Llama-2-70b-chat-hf (Sparse)"), NotExpressed);
}

TEST_CASE("a run with all settings is a complete scenario") {
  const MappedRun run = mapped(Row{});
  REQUIRE(run.is_expressed());
  CHECK(run.complete);
  CHECK(run.client->name == "vllm bench serve");
  const auto& s = run.scenario;
  CHECK(s.at("model") == "llama-3.1-8b");
  CHECK(s.at("gpu") == "H100-80GB-SXM");
  CHECK(s.at("stack") == "vllm@0.11.0");
  CHECK(s.at("dtype") == "bf16");
  CHECK_FALSE(s.contains("kv_dtype"));
  CHECK(s.at("engine").at("max_num_seqs") == 64);
  CHECK(s.at("requests").at("prompt_tokens") == 100);
  CHECK(s.at("requests").at("output_tokens").at("kind") == "empirical");  // may stop before
  CHECK(s.at("requests").at("count") == 16);
  CHECK(s.at("requests").at("arrivals").at("kind") == "closed");
  CHECK(s.at("requests").at("arrivals").at("users") == 4);
  CHECK(s.at("requests").at("declared_tokens") == "output");

  CHECK_FALSE(mapped(Row{}.set("not_stated", "kv dtype")).complete);
  CHECK(mapped(Row{}.set("not_stated", "seed;H100 form factor")).complete);
  CHECK_FALSE(mapped(Row{}.set("engine_version", "")).complete);
}

TEST_CASE("versions: the nearest known release or the newest of the date") {
  CHECK(mapped(Row{}.set("engine_version", "0.5.4")).scenario.at("stack") == "vllm-v0@0.5.4");
  CHECK(mapped(Row{}.set("engine_version", "v9.1"))
            .scenario.at("stack")
            .get<std::string>()
            .starts_with("vllm@0."));
  const MappedRun by_date =
      mapped(Row{}.set("engine_version", "nightly (Oct)").set("date", "2025-10"));
  CHECK(by_date.scenario.at("stack") == "vllm@0.11.0");
  CHECK(by_date.settings.version == "0.11 (by date)");
  CHECK(mapped(Row{}.set("engine_version", "0.7.3").set("engine_options", "VLLM_USE_V1=1"))
            .scenario.at("stack")
            .get<std::string>()
            .starts_with("vllm@"));
  // The version of TensorRT is not that of TensorRT-LLM.
  const MappedRun trt = mapped(Row{}
                                   .set("engine", "TensorRT-LLM")
                                   .set("engine_options", "")
                                   .set("engine_version", "TensorRT 10.2.0, CUDA 12.4")
                                   .set("date", "2025-07"));
  CHECK(trt.scenario.at("stack") == "trtllm@0.21.0");
}

TEST_CASE("every engine's options of the table name existing scenario keys") {
  // Each option gets a separate run; a wrong key or type would be rejected.
  for (const ServedEngine& engine : served_engines()) {
    std::set<std::string> seen;
    for (const OptionRule& rule : engine.options) {
      for (const std::string& name : rule.names) {
        INFO(engine.name, " ", name);
        CHECK(seen.insert(name).second);
      }
      if (rule.key.empty()) continue;
      const bool is_share = rule.use == OptionUse::kShare || rule.use == OptionUse::kNumber;
      const bool is_switch = rule.use == OptionUse::kSwitch || rule.use == OptionUse::kNot;
      const std::string value = rule.use == OptionUse::kChoice ? rule.words.begin()->first
                                : is_share                     ? "0.8"
                                : is_switch                    ? "true"
                                                               : "64";
      const MappedRun run = mapped(Row{}
                                       .set("engine", engine.name)
                                       .set("engine_version", "")
                                       .set("date", rule.before ? "2024-01" : "2027-01")
                                       .set("engine_options", rule.names.front() + "=" + value));
      INFO(engine.name, " ", rule.names.front(), " ", run.refused);
      REQUIRE(run.is_expressed());
      CHECK(run.scenario.contains(nlohmann::ordered_json::json_pointer{rule.key}));
    }
  }
}

TEST_CASE("inexpressible runs have a reason and options without a key are reported") {
  CHECK(mapped(Row{}.set("gpu", "not stated (Hopper)")).refused == "the GPU is not stated");
  CHECK(mapped(Row{}.set("gpu", "Abacus-9000")).refused.find("data sheet") != std::string::npos);
  const MappedRun short_name = mapped(Row{}.set("gpu", "A100 (memory not stated)"));
  CHECK(short_name.scenario.at("gpu") == "A100-80GB-SXM");
  CHECK_FALSE(short_name.complete);
  CHECK(mapped(Row{}.set("engine", "llama.cpp")).refused == "the engine \"llama.cpp\"");
  CHECK(mapped(Row{}.set("model", "x/y")).refused == "no configuration of the model x/y");
  CHECK(mapped(Row{}.set("kv_dtype", "turboquant")).refused == "the cache's format \"turboquant\"");
  CHECK(mapped(Row{}.set("concurrency", "")).refused.find("closed loop") != std::string::npos);
  CHECK(mapped(Row{}.set("input_tokens", "")).refused == "the lengths of prompts are not stated");
  CHECK(mapped(Row{}.set("engine_options", "max_num_seqs=many")).refused ==
        "the value of the option max_num_seqs");
  CHECK(mapped(Row{}.set("engine_options", "speculative_config.method=mtp"))
            .refused.find("speculative") != std::string::npos);
  const MappedRun odd = mapped(
      Row{}.set("engine_options", "async-scheduling;api-server-count=3;brand-new-flag=3;seed=1"));
  REQUIRE(odd.is_expressed());
  CHECK(odd.settings.ignored == std::vector<std::string>{"async_scheduling", "brand_new_flag"});
  CHECK(odd.scenario.at("engine").at("api_servers") == 3);
}

TEST_CASE(
    "speculation: heads, chains and trees in every engine's spelling, with an assumed acceptance") {
  const auto speculation = [](const char* engine, const char* options) {
    std::string cell;  // with doubled quotes, as in CSV
    for (const char* c = options; *c != '\0'; ++c) cell += *c == '"' ? "\"\"" : std::string{*c};
    const MappedRun run = mapped(Row{}
                                     .set("engine", engine)
                                     .set("engine_version", "")
                                     .set("date", "2026-01")
                                     .set("engine_options", cell));
    INFO(engine, " ", options, " ", run.refused);
    REQUIRE(run.is_expressed());
    CHECK_FALSE(run.complete);  // the acceptance is assumed
    return run.scenario.at("speculation");
  };
  using json = nlohmann::ordered_json;
  const json mtp{{"draft", "mtp"}, {"tokens", 1}, {"acceptance", 0.85}};
  CHECK(speculation("vLLM", R"(speculative-config={"method":"mtp"/"num_speculative_tokens":1})") ==
        mtp);
  CHECK(speculation("vLLM",
                    "speculative-config.method=mtp;"
                    "speculative-config.num_speculative_tokens=1") == mtp);
  CHECK(speculation("TensorRT-LLM",
                    "speculative_config=decoding_type: MTP, num_nextn_predict_layers: 1") == mtp);
  const json third{{"draft", "eagle3"}, {"tokens", 4}, {"acceptance", 0.743}};
  CHECK(speculation("vLLM", "speculative=eagle3 num_speculative_tokens=4") == third);
  CHECK(speculation("SGLang",
                    "speculative-algorithm=EAGLE3;speculative-num-steps=4;"
                    "speculative-eagle-topk=1;speculative-num-draft-tokens=5") == third);
  CHECK(
      speculation("SGLang",
                  "speculative-algorithm=EAGLE3;speculative-draft-model-path=a/b;"
                  "speculative-num-steps=4;speculative-eagle-topk=4;"
                  "speculative-num-draft-tokens=16") ==
      json{{"draft", "eagle3"}, {"tokens", 15}, {"steps", 4}, {"topk", 4}, {"acceptance", 0.743}});
  const auto refused = [](const char* options) {
    return mapped(Row{}.set("engine_options", options)).refused;
  };
  CHECK(refused("speculative_config.method=ngram;num_speculative_tokens=3") ==
        "speculative decoding whose acceptance is not known");
  CHECK(refused("speculative_model=a/b;num_speculative_tokens=3") ==
        "speculative decoding whose acceptance is not known");
  CHECK(refused("speculative_config.method=mtp") ==
        "speculative decoding without a number of tokens");
}

TEST_CASE("one of several equal engines is simulated with its share of the load") {
  // 8 requests per second, round-robin over four engines: 2 per second each, with gaps that are
  // sums of four exponentials and have a standard deviation of half their mean.
  const MappedRun run = mapped(Row{}
                                   .set("gpu_count", "4")
                                   .set("ep_dp", "replicas=4")
                                   .set("arrival", "poisson")
                                   .set("rate_rps", "8")
                                   .set("concurrency", "")
                                   .set("num_requests", "100"));
  REQUIRE(run.is_expressed());
  const auto& arrivals = run.scenario.at("requests").at("arrivals");
  CHECK(arrivals.at("kind") == "gamma");
  CHECK(arrivals.at("rate").get<double>() == rel(2.0));
  CHECK(arrivals.at("cv").get<double>() == rel(0.5));
  CHECK(run.scenario.at("requests").at("count") == 25);
  CHECK(run.workload.scale == 4);
  CHECK_FALSE(run.scenario.contains("cluster"));
  // 6 users of 4 engines: 1.5 per engine, rounded up to 2.
  const MappedRun loop =
      mapped(Row{}.set("gpu_count", "4").set("ep_dp", "dp=4").set("concurrency", "6"));
  CHECK(loop.workload.users == 2);
  CHECK(loop.workload.scale == rel(3.0));
}

TEST_CASE("clients: repeated prompts, a full engine, windows") {
  const MappedRun perf = mapped(Row{}
                                    .set("workload", "inference-perf shared_prefix, 10 groups x 10")
                                    .set("arrival", "constant")
                                    .set("rate_rps", "5")
                                    .set("num_requests", "1000"));
  CHECK(perf.client->name == "inference-perf");
  CHECK(perf.scenario.at("requests").at("distinct_prompts") == 100);
  CHECK(perf.scenario.at("requests").at("arrivals").at("kind") ==
        "poisson");  // its "constant" load

  // Fewer requests than prompts: requests of a group share the prefix, and the name of the set
  // contains no prefix.
  const MappedRun cold =
      mapped(Row{}
                 .set("workload", "inference-perf shared_prefix 45 groups x 10, prefix 8000 + 256")
                 .set("input_tokens", "8256")
                 .set("num_requests", "200"));
  const auto& prefix = cold.scenario.at("requests").at("shared_prefix");
  CHECK(prefix.at("prompts") == 45);
  CHECK(prefix.at("tokens") == 8000);
  CHECK(cold.scenario.at("requests").at("prompt_tokens") == 256);

  const MappedRun full = mapped(Row{}
                                    .set("arrival", "offline")
                                    .set("concurrency", "32")
                                    .set("num_requests", "")
                                    .set("note", "all sent at once; steady-state window"));
  CHECK(full.client->name == "ML.ENERGY");
  CHECK(full.workload.arrivals == ServedArrivals::kAtOnce);
  CHECK(full.scenario.at("engine").at("max_num_seqs") == 32);
  CHECK_FALSE(full.workload.is_whole);

  // Its earlier client reports iterations of the server, and its scripts define the engine they
  // start.
  Row early = Row{}
                  .set("gpu", "A100-SXM4-80G")
                  .set("engine_version", "")
                  .set("workload", "code: EvalPlus-style prompts")
                  .set("output_tokens", "90")
                  .set("output_spread", "model generated")
                  .set("arrival", "offline")
                  .set("concurrency", "64")
                  .set("num_requests", "")
                  .set("note", "steady state; avg below bs = KV or supply limit");
  const MappedRun queued = mapped(early);
  CHECK(queued.client->window == MeasureWindow::kQueued);
  CHECK(queued.client->tpot_of_iterations);
  CHECK(queued.settings.version == "0.5.4 (by client)");
  CHECK(queued.scenario.at("engine").at("max_model_len") == 4096);
  CHECK(queued.scenario.at("engine").at("memory_fraction") == 0.95);
  const auto& requests = queued.scenario.at("requests");
  CHECK(requests.at("count") == 3280);
  CHECK(requests.at("max_output_tokens") == 512);
  CHECK(requests.at("declared_tokens") == 512);
  CHECK(queued.workload.is_whole);
  // Before 0.5.4 the API server was always in the engine's process.
  CHECK(queued.scenario.at("engine").at("step_overhead_per_sequence") ==
        fmt::format("{:g} us", 1e6 * find_stack("vllm-v0@0.5.3").inter_step_per_sequence.count()));
  CHECK_FALSE(queued.scenario.at("engine").contains("step_overhead"));
  // Four GPUs: three times 8 ms in addition to the stack's 1.9 ms.
  early.set("gpu_count", "4").set("tp", "4");
  CHECK(mapped(early).scenario.at("engine").at("step_overhead") == "0.0259 s");
  early.set("gpu_count", "1").set("tp", "1");
  CHECK(mapped(early.set("gpu", "H100-SXM-80G")).workload.count == 1640);
  CHECK(mapped(early.set("num_requests", "700")).workload.count == 700);
  const MappedRun later = mapped(early.set("engine_version", "0.6.3"));
  CHECK(later.settings.version.starts_with("0.6"));
  CHECK_FALSE(later.scenario.at("engine").contains("step_overhead_per_sequence"));

  const MappedRun sglang = mapped(Row{}.set("engine", "SGLang").set("engine_version", "0.5.6"));
  CHECK(sglang.client->name == "SGLang bench_serving");
  // A source whose pages state their command; its guidellm runs are marked.
  const auto of_gpustack = [](const std::string& note) {
    return mapped(Row{}
                      .set("engine", "SGLang")
                      .set("engine_version", "0.5.6")
                      .set("source", "gpustack/gpustack docs/performance-lab/qwen3/h100.md@1234")
                      .set("note", note))
        .client->name;
  };
  CHECK(of_gpustack("3. Parallelism in SGLang / TP2") == "vllm bench serve, chat");
  CHECK(of_gpustack("by guidellm") == "GuideLLM");
}

TEST_CASE("clients: outputs of one length vary where requests may stop") {
  const auto output = [](const Row& row) {
    return mapped(row).scenario.at("requests").at("output_tokens");
  };
  Row genai;
  genai.set("note", "GenAI-Perf").set("output_tokens", "200");
  CHECK(output(genai) == 200);  // ignore_eos
  // The engine's usual client counts as known unless the table states that the client is unknown.
  Row usual;
  usual.set("engine", "SGLang").set("engine_version", "0.5.6").set("output_tokens", "200");
  CHECK(output(usual) == 200);
  CHECK(output(usual.set("not_stated", "client tool")).at("kind") == "empirical");
  CHECK(output(Row{}.set("output_spread", "fixed (ignore_eos)")) == 20);
  CHECK(output(Row{}.set("output_spread", "fixed (all requests equal)")) == 20);
  // Rates of tokens and requests whose ratio is the requested number: no request stopped.
  const auto with_rates = [&](const std::string& tokens) {
    const auto line = [](const char* metric, const char* unit, const std::string& value) {
      Row row;
      row.set("metric", metric).set("stat", "total").set("unit", unit).set("value", value);
      return row.line();
    };
    const ServedRun run = runs_of(line("output_throughput", "tok/s", tokens) +
                                  line("request_throughput", "req/s", "2.5"))
                              .front();
    return map_served_run(run, {}).scenario.at("requests").at("output_tokens");
  };
  CHECK(with_rates("50") == 20);
  CHECK(with_rates("48").at("kind") == "empirical");
  // In an open loop, no users are synchronised.
  CHECK(output(Row{}.set("arrival", "poisson").set("rate_rps", "2").set("concurrency", "")) == 20);
  const auto varied = output(Row{}.set("output_tokens", "900"));
  double mean = 0, all = 0;
  for (std::size_t i = 0; i < varied.at("values").size(); ++i) {
    mean += varied.at("values")[i].get<double>() * varied.at("weights")[i].get<double>();
    all += varied.at("weights")[i].get<double>();
  }
  CHECK(all == rel(1.0));
  CHECK(mean == rel(900.0));
  CHECK(varied.at("values").back() == 1000);
}

TEST_CASE("a client in the engine's process has no API server before it") {
  const MappedRun run = mapped(Row{}.set("workload", "mlperf-openorca"));
  CHECK(run.client->in_process);
  CHECK(run.scenario.at("engine").at("front_end_token") == "0 s");
  CHECK_FALSE(mapped(Row{}).scenario.at("engine").contains("front_end_token"));
  // Requests stream, except in offline runs.
  const auto hands_over = [](const char* arrival) {
    const MappedRun of = mapped(Row{}
                                    .set("workload", "mlperf-openorca")
                                    .set("arrival", arrival)
                                    .set("rate_rps", "2")
                                    .set("concurrency", ""));
    return !of.scenario.at("engine").contains("front_end_sequence");
  };
  CHECK(hands_over("poisson"));
  CHECK_FALSE(hands_over("offline"));
}

TEST_CASE("a client's engine options apply if a run does not state them") {
  const auto trtllm = [](const char* options) {
    return mapped(Row{}
                      .set("workload", "mlperf-openorca")
                      .set("engine", "TensorRT-LLM")
                      .set("engine_version", "0.12")
                      .set("engine_options", options));
  };
  const MappedRun unstated = trtllm("max_num_tokens=4096");
  CHECK(unstated.scenario.at("scheduler").at("policy") == "max-utilization");
  CHECK(unstated.scenario.at("engine").at("memory_fraction") == 0.95);
  CHECK(std::any_of(unstated.settings.assumed.begin(), unstated.settings.assumed.end(),
                    [](const std::string& text) {
                      return text == "batch_scheduler_policy max_util, the client's default";
                    }));
  // An option by any of its names.
  const MappedRun stated =
      trtllm("capacity_scheduler_policy=no_evict;kvcache_free_gpu_mem_frac=0.8");
  CHECK(stated.scenario.at("scheduler").at("policy") == "guaranteed-no-evict");
  CHECK(stated.scenario.at("engine").at("memory_fraction") == 0.8);
  // Runs of another engine do not set them.
  CHECK_FALSE(mapped(Row{}.set("workload", "mlperf-openorca")).scenario.contains("scheduler"));
  // An option of the engine with a key in scenarios.
  Row states;
  states.set("model", "nvidia/NVIDIA-Nemotron-Nano-9B-v2")
      .set("engine_options", "max_num_seqs=64;mamba-ssm-cache-dtype=float32");
  CHECK(mapped(states).scenario.at("engine").at("state_dtype") == "fp32");
  states.set("engine_options", "max_num_seqs=64;mamba-ssm-cache-dtype=auto");
  CHECK_FALSE(mapped(states).scenario.at("engine").contains("state_dtype"));
}

TEST_CASE("a client's options may depend on the run") {
  Row row = Row{}
                .set("gpu_count", "2")
                .set("engine", "tensorrt-llm")
                .set("engine_version", "1.0.0rc3")
                .set("engine_options", "")
                .set("ep_dp", "attention_dp=2 moe_tp=1 moe_ep=1")
                .set("input_tokens", "1024")
                .set("output_tokens", "128")
                .set("output_spread", "fixed")
                .set("arrival", "concurrency")
                .set("concurrency", "15")
                .set("num_requests", "")
                .set("not_stated", "number of requests;client tool;engine options")
                .set("note", "per-GPU batch column 8");
  const MappedRun run = mapped(row);
  CHECK(run.client->name == "aiconfigurator");
  CHECK(run.scenario.at("engine").at("max_num_seqs") == 8);
  CHECK(run.scenario.at("engine").at("prefill_chunk") == 8 + 1024 + 500);
  CHECK(run.scenario.at("engine").at("memory_fraction") == 0.8);
  // The client is identified by its words: its requests do not stop early.
  CHECK(run.scenario.at("requests").at("output_tokens") == 128);
  // An option that needs an unstated value is left out.
  row.set("input_tokens", "p50 150").set("input_spread", "p90 300");
  const MappedRun spread = mapped(row);
  REQUIRE(spread.is_expressed());
  CHECK(spread.scenario.at("engine").at("max_num_seqs") == 8);
  CHECK_FALSE(spread.scenario.at("engine").contains("prefill_chunk"));

  const std::map<std::string, std::int64_t> words{{"users", 8}, {"prompt", 100}};
  CHECK(cell_sum("users+prompt+1500", words) == 1608);
  CHECK(cell_sum("users", words) == 8);
  CHECK_FALSE(cell_sum("users+output", words));
  CHECK_FALSE(cell_sum("users++1", words));
  CHECK_FALSE(cell_sum("", words));
}

TEST_CASE("outputs of a set keep a stated mean below the cap, and equal the cap if the mean does") {
  const std::vector<std::int32_t> outputs{10, 50, 100, 400};
  // Without a cap the factor is that of the means: 70 / 140.
  CHECK(output_factor(outputs, 70, 0) == doctest::Approx(0.5));
  // 200 at the cap, and (10 + 50 + 100) x 1.25 = 200: 400 / 4.
  CHECK(output_factor(outputs, 100, 200) == doctest::Approx(1.25));
  CHECK(output_factor(outputs, 128, 128) * 10 >= 128);
  CHECK(output_factor(outputs, 129, 128) * 10 >= 128);
}

TEST_CASE("options without effect before a release are reported as ignored") {
  Row row;
  row.set("engine_options", "async_scheduling=true");
  CHECK(mapped(row.set("engine_version", "0.14.0")).scenario.at("engine").at("async_scheduling"));
  const MappedRun early = mapped(row.set("engine_version", "0.11.0"));
  CHECK_FALSE(early.scenario.contains("engine"));
  CHECK(early.settings.ignored == std::vector<std::string>{"async_scheduling"});
}

TEST_CASE("clients: requests sampled with top-k or top-p") {
  const auto cuts = [](const Row& row) {
    const MappedRun run = mapped(row);
    const auto engine = run.scenario.find("engine");
    return engine != run.scenario.end() && engine->contains("cutoff_sampling");
  };
  CHECK_FALSE(cuts(Row{}));  // temperature 0
  CHECK(cuts(Row{}.set("engine_version", "0.15.0")));
  CHECK(cuts(Row{}.set("workload", "inference-perf")));
  CHECK_FALSE(cuts(Row{}.set("workload", "inference-perf").set("engine_version", "0.7.3")));
  CHECK_FALSE(cuts(Row{}.set("workload", "inference-perf").set("model", "openai/gpt-oss-20b")));
  CHECK(cuts(Row{}.set("note", "steady-state window").set("arrival", "offline")));
}

TEST_CASE("experts distributed over an engine's GPUs share its attention") {
  const MappedRun run = mapped(
      Row{}.set("model", "Qwen/Qwen3-30B-A3B").set("gpu_count", "4").set("ep_dp", "ep=4 dp=1"));
  REQUIRE(run.is_expressed());
  CHECK(run.scenario.at("gpu_count") == 4);
  CHECK(run.scenario.at("engine").at("expert_parallel") == 4);
  // Only 16 GPUs are stated: two replicas with the number of GPUs connected by NVLink.
  const MappedRun wide = mapped(Row{}.set("gpu_count", "16").set("tp", ""));
  CHECK(wide.scenario.at("gpu_count") == 8);
  CHECK(wide.settings.replicas == 2);
}

TEST_CASE("engines that only prefill, and data-parallel attention") {
  const MappedRun apart = mapped(Row{}
                                     .set("gpu_count", "3")
                                     .set("ep_dp", "2P1D")
                                     .set("arrival", "constant")
                                     .set("rate_rps", "2")
                                     .set("concurrency", ""));
  REQUIRE(apart.is_expressed());
  CHECK(apart.scenario.at("cluster").at("replicas") == 1);
  CHECK(apart.scenario.at("cluster").at("prefill_replicas") == 2);
  CHECK(apart.scenario.at("requests").at("arrivals").at("rate") == 2);
  const MappedRun attention = mapped(Row{}
                                         .set("model", "deepseek-ai/DeepSeek-R1")
                                         .set("gpu_count", "8")
                                         .set("tp", "8")
                                         .set("engine", "SGLang")
                                         .set("engine_version", "0.5.6")
                                         .set("engine_options", "enable-dp-attention;dp-size=4")
                                         .set("weight_dtype", "fp8"));
  REQUIRE(attention.is_expressed());
  CHECK(attention.scenario.at("gpu_count") == 2);
  CHECK(attention.scenario.at("cluster").at("replicas") == 4);
  CHECK(attention.scenario.at("engine").at("expert_parallel") == 8);
}

TEST_CASE("a client with a fixed duration, and increasing rates up to saturation") {
  const MappedRun timed = mapped(Row{}
                                     .set("workload", "GuideLLM synthetic, 360 s per point")
                                     .set("arrival", "constant")
                                     .set("rate_rps", "2")
                                     .set("num_requests", ""));
  REQUIRE(timed.is_expressed());
  CHECK(timed.scenario.at("requests").at("count") == 720);
  CHECK(timed.workload.until->count() == rel(360.0));
  const MappedRun ladder = mapped(Row{}
                                      .set("arrival", "poisson")
                                      .set("rate_rps", "ladder to saturation")
                                      .set("metric", "saturation_rate")
                                      .set("stat", "max")
                                      .set("unit", "req/s"));
  REQUIRE(ladder.is_expressed());
  CHECK(ladder.workload.is_ladder);
  CHECK(ladder.workload.arrivals == ServedArrivals::kAtOnce);
}

TEST_CASE("a run's log replaces lengths and arrivals") {
  const std::filesystem::path& folder = test::scratch_folder();
  std::ofstream{folder / "r1.csv"} << "arrival_s,input_tokens,output_tokens,ttft_s,e2e_s\n"
                                      "0.0,10,3,0.1,0.2\n0.5,20,4,,\n";
  const MappedRun run = map_served_run(run_of(Row{}), {.requests = folder, .lengths = {}});
  REQUIRE(run.is_expressed());
  CHECK(run.workload.has_log);
  CHECK(run.scenario.at("requests").at("file").get<std::string>().ends_with("r1.csv"));
  CHECK_FALSE(run.scenario.at("requests").contains("arrivals"));
}

}  // namespace
}  // namespace kvsim
