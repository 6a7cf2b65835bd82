// Scenarios of kind "serve": their keys, refused values, and the resulting points.

#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/fields/schema.hpp"
#include "sim/scenario/points/measured_points.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/json_schema.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

std::string slug_of(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return text;
}

fs::path write(const std::string& name, std::string_view text) {
  // Test cases may run simultaneously.
  const std::string own = slug_of(doctest::getContextOptions()->currentTest->m_name);
  const fs::path folder = test::scratch_folder() / "serve-scenario" / own;
  fs::create_directories((folder / name).parent_path());
  std::ofstream{folder / name} << text;
  return folder / name;
}

constexpr std::string_view kRequests =
    R"("requests": {"arrivals": {"kind": "poisson", "rate": 2}, "count": 20, "prompt_tokens": 100,
    "output_tokens": 10})";

/// A service with additional members: `extra` starts with a comma or is empty.
std::string service(std::string_view extra, std::string_view requests = kRequests) {
  return fmt::format(R"({{"kind": "serve", "model": "llama-2-7b", "gpu": "A100-80GB-SXM",
    "stack": "vllm", {}{}}})",
                     requests, extra);
}

Scenario read(const std::string& text) { return read_scenario(write("s.json", text), {}); }

std::string complaint_of(const std::string& text) {
  try {
    (void)read(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST_CASE("a service of one point with the defaults of the scheduler's engine") {
  const Scenario scenario = read(service(""));
  CHECK(scenario.kind == "serve");
  REQUIRE(scenario.points.size() == 1);
  const ScenarioPoint& point = scenario.points[0];
  REQUIRE(point.serve.has_value());
  const ServeSpec& spec = *point.serve;
  CHECK(spec.llm->name == "llama-2-7b");
  CHECK(spec.stack->name == "vllm");
  CHECK(spec.method.name == "full");
  CHECK(spec.requests->requests.size() == 20);
  CHECK(spec.scheduler.name.empty());
  CHECK_FALSE(spec.scheduler.max_num_seqs.has_value());
  CHECK(spec.slo.empty());
  CHECK(spec.cluster.replicas == 1);
  CHECK(spec.speculation.draft == nullptr);
  CHECK(point.keys.at("workload") == "generated");
  CHECK(point.keys.at("rate") == 2);
  CHECK_FALSE(point.keys.contains("batch"));
  // Notes of a workload are printed once, by its service.
  const Scenario cut =
      read(service("", R"("requests": {"arrivals": {"kind": "poisson", "rate": 2}, "count": 20,
      "prompt_tokens": 100, "output_tokens": 10, "max_prompt_tokens": 50})"));
  CHECK(cut.points[0].serve->requests->notes.size() == 1);
  CHECK(cut.points[0].notes.empty());
}

TEST_CASE("the keys of a service reach its spec") {
  const Scenario scenario = read(service(R"(, "seed": 7, "pipeline_parallel": 2, "gpu_count": 2,
    "scheduler": {"name": "vllm-v0", "order": "shortest-declared", "max_num_batched_tokens": 4096,
      "max_num_seqs": 64, "long_prefill_token_threshold": 512, "chunked_prefill": true,
      "prefix_caching": false, "watermark": 0.02, "swap": true,
      "policy": "lpm", "conservativeness": 0.5},
    "slo": {"ttft": "500 ms", "tpot": "50 ms", "e2e": "1 min"},
    "cluster": {"replicas": 3, "router": "least-loaded", "prefill_replicas": 1,
      "prefix_margin": 5, "link": "50 GB/s", "link_latency": "5 us",
      "compress_before_transfer": false},
    "speculation": {"draft": "llama-3.2-1b", "tokens": 3, "acceptance": 0.6},
    "host_memory": "64 GiB",
    "nvme": {"capacity": "2 TB", "read": "7 GB/s", "write": "5 GB/s"},
    "offload": {"to": "nvme", "prefetch": false, "reuse": 0.25},
    "tier_codec": "kvtc",
    "engine": {"max_model_len": "workload", "expert_parallel": 2, "expert_imbalance": 1.5,
      "expert_link": "50 GB/s", "expert_link_latency": "4 us", "kv_blocks": "per-head",
      "compaction": "lazy"})"));
  const ServeSpec& spec = *scenario.points.at(0).serve;
  CHECK(spec.seed == 7);
  CHECK(spec.tensor_parallel == 2);
  CHECK(spec.pipeline_parallel == 2);
  CHECK(spec.scheduler.name == "vllm-v0");
  CHECK(spec.scheduler.order == QueueOrder::kShortestDeclared);
  CHECK(spec.scheduler.max_num_batched_tokens == 4096);
  CHECK(spec.scheduler.max_num_seqs == 64);
  CHECK(spec.scheduler.long_prefill_token_threshold == 512);
  CHECK(spec.scheduler.chunked_prefill == true);
  CHECK(spec.scheduler.prefix_caching == false);
  CHECK(spec.scheduler.watermark == 0.02);
  CHECK(spec.scheduler.swap == true);
  CHECK(spec.scheduler.policy == "lpm");
  CHECK(spec.scheduler.conservativeness == 0.5);
  CHECK(spec.slo.ttft == Seconds{0.5});
  CHECK(spec.slo.tpot->count() == test::rel(0.05));
  CHECK(spec.slo.e2e == Seconds{60.0});
  CHECK(spec.cluster.replicas == 3);
  CHECK(spec.cluster.router == RouterPolicy::kLeastLoaded);
  CHECK(spec.cluster.prefill_replicas == 1);
  CHECK(spec.cluster.link.count() == 50e9);
  CHECK_FALSE(spec.cluster.compress_before_transfer);
  CHECK(spec.speculation.draft->name == "llama-3.2-1b");
  CHECK(spec.speculation.tokens == 3);
  CHECK(spec.speculation.acceptance == 0.6);
  CHECK(spec.host_memory == Bytes{64LL << 30});
  CHECK(spec.cluster.prefix_margin == 5);
  CHECK(spec.cluster.link_latency.count() == test::rel(5e-6));
  CHECK(spec.nvme.capacity == Bytes{2'000'000'000'000});
  CHECK(spec.nvme.read.count() == 7e9);
  CHECK(spec.nvme.write.count() == 5e9);
  CHECK(spec.options.longest_request);
  CHECK_FALSE(spec.options.max_model_len);
  CHECK(spec.options.expert_parallel == 2);
  CHECK(spec.options.expert_imbalance == 1.5);
  CHECK(spec.options.expert_link->count() == 50e9);
  CHECK(spec.options.expert_link_latency->count() == test::rel(4e-6));
  CHECK(spec.options.per_head_blocks == true);
  CHECK(spec.options.lazy_compaction == true);
  CHECK(spec.offload.to == OffloadTier::kNvme);
  CHECK_FALSE(spec.offload.prefetch);
  CHECK(spec.offload.reuse == 0.25);
  CHECK(spec.tier_codec == "kvtc");
  // One setting with two names: the start-up is profiled with the scheduler's limits.
  CHECK(spec.options.max_num_seqs == 64);
  CHECK(spec.options.prefill_chunk == 4096);
}

TEST_CASE("engine settings apply to a scheduler that does not set them") {
  const Scenario scenario = read(service(R"(, "engine": {"max_num_seqs": 32})"));
  CHECK(scenario.points.at(0).serve->scheduler.max_num_seqs == 32);
}

TEST_CASE("both names of a setting give the same service and different values are refused") {
  std::vector<std::string> aliases;
  for (const ScenarioKey& key : scenario_object("scheduler").keys) {
    if (key.alias_of.empty()) continue;
    aliases.emplace_back(key.name);
    INFO(key.name << " is " << key.alias_of);
    REQUIRE(key.alias_of.starts_with("/engine/"));
    const std::string engine_key{key.alias_of.substr(std::string_view{"/engine/"}.size())};
    const auto with = [&](int scheduler, int engine) {
      std::string extra;
      if (scheduler > 0)
        extra += fmt::format(R"(, "scheduler": {{"{}": {}}})", key.name, scheduler);
      if (engine > 0) extra += fmt::format(R"(, "engine": {{"{}": {}}})", engine_key, engine);
      // More than 16 simultaneous requests of more than 16 tokens.
      return service(extra, R"("requests": {"arrivals": {"kind": "poisson", "rate": 200},
        "count": 60, "prompt_tokens": 100, "output_tokens": 40})");
    };
    const auto metrics = [&](const std::string& text) {
      const Scenario scenario = read(text);
      const ServeSpec& spec = *scenario.points.at(0).serve;
      return service_metrics_json(run_serve(spec), std::nullopt).dump();
    };
    const std::string by_scheduler = metrics(with(16, 0));
    CHECK(by_scheduler == metrics(with(0, 16)));
    CHECK(by_scheduler == metrics(with(16, 16)));
    CHECK(by_scheduler != metrics(with(0, 0)));
    const std::string refusal = complaint_of(with(16, 17));
    CHECK(refusal.find(fmt::format("/scheduler/{}: 16, and {} is 17: they are one setting",
                                   key.name, key.alias_of)) != std::string::npos);
  }
  CHECK(aliases == std::vector<std::string>{"max_num_batched_tokens", "max_num_seqs"});
}

TEST_CASE("lists make points: loads, schedulers, replicas, methods, and workloads are shared") {
  const Scenario scenario = read(service(
      R"(, "scheduler": ["vllm-v1", {"name": "vllm-v1", "max_num_seqs": [16, 32]}],
      "cluster": {"replicas": [1, 2]}, "method": ["full", "streaming-llm"])",
      R"("requests": {"arrivals": {"kind": "poisson", "rate": [1, 2]}, "count": 20,
      "prompt_tokens": 100, "output_tokens": 10})"));
  REQUIRE(scenario.points.size() == 2 * 3 * 2 * 2);
  std::set<const RequestTrace*> traces;
  std::set<std::string> labels;
  for (const ScenarioPoint& point : scenario.points) {
    traces.insert(point.serve->requests.get());
    labels.insert(point.label);
  }
  CHECK(traces.size() == 2);
  CHECK(labels.size() == scenario.points.size());
  // The method varies fastest, then the workload.
  CHECK(scenario.points[0].method.name == "full");
  CHECK(scenario.points[1].method.name == "streaming-llm");
  CHECK(scenario.points[0].keys.at("rate") == 1);
  CHECK(scenario.points[2].keys.at("rate") == 2);
  CHECK(scenario.points.back().keys.at("replicas") == 2);
  CHECK(scenario.points.back().keys.at("max_num_seqs") == 32);
}

TEST_CASE("a file of requests is relative to the scenario that names it") {
  (void)write("three.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,6\n2,30,7\n");
  (void)write("base.json", service("", R"("requests": {"file": "three.csv"})"));
  const fs::path deep = write("deep/top.json", R"({"extends": "../base.json"})");
  const Scenario scenario = read_scenario(deep, {{"/requests/rate_scale", "[1, 2]"}});
  REQUIRE(scenario.points.size() == 2);
  CHECK(scenario.points[0].serve->requests->requests.size() == 3);
  CHECK(scenario.points[0].spec.prompt_tokens == 30);
  CHECK(scenario.points[0].spec.output_tokens == 7);
  CHECK(scenario.points[1].serve->requests->requests[2].arrival.count() == 1'000'000'000'000);
}

TEST_CASE("every bad key of a service is one line with place and reason") {
  struct Case {
    std::string extra, where, what;
  };
  const std::vector<Case> cases{
      {R"(, "batch": 4)", "/batch", "needs \"kind\": \"static\""},
      {R"(, "prompt_tokens": 4)", "/prompt_tokens", "needs \"kind\": \"static\""},
      {R"(, "memory": {"allocator": "simulate"})", "/memory/allocator",
       "keeps the caches of a service"},
      {R"(, "memory": {"allocator": "simulation"})", "/memory/allocator", "analytic"},
      {R"(, "memory": {"alloc_conf": "expandable_segments:True"})", "/memory/alloc_conf",
       "needs \"allocator\""},
      {R"(, "memory": {"allocator": "simulate", "alloc_conf": "max_split:1"})",
       "/memory/alloc_conf", "max_split"},
      {R"(, "scheduler": "vllm-v2")", "/scheduler", "vllm-v1"},
      {R"(, "scheduler": {"nam": "vllm-v1"})", "/scheduler/nam", "did you mean \"name\""},
      {R"(, "scheduler": {"order": "lifo"})", "/scheduler/order", "fcfs"},
      {R"(, "scheduler": {"max_num_seqs": 0})", "/scheduler/max_num_seqs", "got 0"},
      {R"(, "scheduler": {"max_num_seqs": [1, 0]})", "/scheduler/max_num_seqs/1", "got 0"},
      {R"(, "scheduler": {"max_num_batched_tokens": 1.5})", "/scheduler/max_num_batched_tokens",
       "1.5"},
      {R"(, "scheduler": {"chunked_prefill": "yes"})", "/scheduler/chunked_prefill", "yes"},
      {R"(, "scheduler": {"watermark": 1})", "/scheduler/watermark", "0.99"},
      {R"(, "scheduler": {"max_num_seqs": 8}, "engine": {"max_num_seqs": 9})",
       "/scheduler/max_num_seqs", "they are one setting"},
      {R"(, "scheduler": [])", "/scheduler", "at least one"},
      {R"(, "slo": {"ttft": 2})", "/slo/ttft", "2"},
      {R"(, "slo": {"ttft": "0 s"})", "/slo/ttft", "above 0"},
      {R"(, "slo": {"itl": "1 s"})", "/slo/itl", "unknown key"},
      {R"(, "cluster": {"replicas": 0})", "/cluster/replicas", "got 0"},
      {R"(, "cluster": {"router": "random"})", "/cluster/router", "round-robin"},
      {R"(, "cluster": {"link": "50 GB"})", "/cluster/link", "50 GB"},
      {R"(, "cluster": {"prefill_replicas": -1})", "/cluster/prefill_replicas", "-1"},
      {R"(, "pipeline_parallel": 33)", "/pipeline_parallel", "at most the 32 layers"},
      {R"(, "speculation": {"draft": "llama-9"})", "/speculation/draft", "llama"},
      {R"(, "speculation": {"tokens": 3})", "/speculation", "\"draft\" is missing"},
      {R"(, "speculation": {"draft": "llama-3.2-1b", "acceptance": 2})", "/speculation/acceptance",
       "got 2"},
      {R"(, "host_memory": 5)", "/host_memory", "5"},
      {R"(, "offload": {"prefetch": true})", "/offload/to", "missing"},
      {R"(, "offload": {"to": "disk"})", "/offload/to", "nvme"},
      {R"(, "offload": {"to": "host", "reuse": 2})", "/offload/reuse", "got 2"},
      {R"(, "engine": {"kv_blocks": "heads"})", "/engine/kv_blocks", "per-head"},
      {R"(, "engine": {"compaction": "never"})", "/engine/compaction", "lazy"},
      {R"(, "engine": {"expert_link": "0 GB/s"})", "/engine/expert_link", "above 0"}};
  for (const Case& c : cases) {
    const std::string said = complaint_of(service(c.extra));
    INFO(c.extra, ": ", said);
    CHECK(said.find(": " + c.where + ":") != std::string::npos);
    CHECK(said.find(c.what) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
  }
  CHECK(complaint_of(service("", R"("seed": 1)")).find("\"requests\" is missing") !=
        std::string::npos);
  CHECK(complaint_of(service("", R"("requests": {"file": "none.csv"})")).find("none.csv") !=
        std::string::npos);
  CHECK(complaint_of(service("", R"("requests": {"arrivals": {"kind": "poisson", "rate": [2, 0]},
      "count": 2, "prompt_tokens": 1, "output_tokens": 1})"))
            .find("/requests/arrivals/rate") != std::string::npos);
}

TEST_CASE("a service in static batches has its allocations simulated with the given settings") {
  const auto served = [](std::string_view stack, std::string_view memory) {
    return fmt::format(R"({{"kind": "serve", "model": "llama-2-7b", "gpu": "A100-80GB-SXM",
        "stack": "{}", {}, "memory": {}}})",
                       stack, kRequests, memory);
  };
  constexpr std::string_view kSimulate =
      R"({"allocator": "simulate", "alloc_conf": "max_split_size_mb:64"})";
  const Scenario scenario = read(served("hf-sdpa", kSimulate));
  REQUIRE(scenario.points.at(0).serve->allocator.has_value());
  CHECK(scenario.points[0].serve->allocator->max_split_size == 64_MiB);
  CHECK(!read(served("hf-sdpa", R"({"allocator": "analytic"})")).points[0].serve->allocator);
  CHECK(complaint_of(served("ideal", kSimulate)).find("does not use PyTorch's caching") !=
        std::string::npos);
  for (const char* stack : {"vllm", "vllm-v0", "sglang", "trtllm", "lmdeploy"}) {
    CHECK(complaint_of(served(stack, kSimulate)).find("in one pool") != std::string::npos);
  }
}

TEST_CASE("a static scenario refuses keys that only services have") {
  for (const char* key :
       {R"("slo": {"ttft": "1 s"})", R"("scheduler": "vllm-v1")", R"("cluster": {"replicas": 2})",
        R"("pipeline_parallel": 2)", R"("offload": {"to": "host"})",
        R"("engine": {"compaction": "lazy"})", R"("engine": {"kv_blocks": "per-head"})",
        R"("engine": {"api_servers": 2})", R"("engine": {"front_end_token": "1 us"})"}) {
    const std::string said =
        complaint_of(fmt::format(R"({{"model": "llama-2-7b", "gpu": "H200", "prompt_tokens": 10,
                        "output_tokens": 1, {}}})",
                                 key));
    INFO(said);
    CHECK(said.find("needs \"kind\": \"serve\", and this scenario is \"static\"") !=
          std::string::npos);
  }
}

TEST_CASE("a static batch respects the engine's settings") {
  const auto said = [](std::string_view sizes, std::string_view engine) {
    return complaint_of(fmt::format(
        R"({{"model": "llama-2-7b", "gpu": "H200", "stack": "vllm", {}, "engine": {}}})", sizes,
        engine));
  };
  const char* const sizes = R"("batch": [4, 9], "prompt_tokens": 1000, "output_tokens": 24)";
  const std::string many = said(sizes, R"({"max_num_seqs": 8})");
  CHECK(many.find("/batch/1: a batch of 9 sequences exceeds max_num_seqs 8") != std::string::npos);
  CHECK(said(sizes, R"({"max_num_seqs": 9, "max_model_len": 1024})") == "no complaint");
  const std::string long_ones = said(sizes, R"({"max_model_len": 1023})");
  CHECK_MESSAGE(long_ones.find("/prompt_tokens: 1,000 prompt and 24 output tokens exceed "
                               "max_model_len 1,023") != std::string::npos,
                long_ones);
}

TEST_CASE("the schema and the reader accept and refuse the same services") {
  const test::JsonSchema schema(scenario_schema());
  const auto agree = [&](std::string_view more, bool good) {
    const std::string text = service(more);
    INFO(text);
    CHECK((complaint_of(text) == "no complaint") == good);
    CHECK(schema.accepts(nlohmann::json::parse(text)) == good);
  };
  for (const char* key : {"scheduler", "slo", "cluster", "pipeline_parallel", "speculation",
                          "host_memory", "engine", "memory"}) {
    agree(fmt::format(R"(, "{}": null)", key), true);
  }
  agree(R"(, "scheduler": ["vllm-v1", {"name": null, "swap": false}])", true);
  agree(R"(, "scheduler": {"max_num_seqs": [1, 2], "watermark": 0})", true);
  agree(R"(, "scheduler": {"max_num_seqs": [null]})", false);
  agree(R"(, "scheduler": {"max_num_seqs": []})", false);
  agree(R"(, "scheduler": true)", false);
  agree(R"(, "slo": {"ttft": null, "tpot": "5 ms"})", true);
  agree(R"(, "slo": {"tpot": ["5 ms"]})", false);
  agree(R"(, "cluster": [{"replicas": 1}, {"replicas": 2}])", true);
  agree(R"(, "cluster": {"link": "1 GB"})", false);
  agree(R"(, "speculation": {"draft": "llama-3.2-1b"})", true);
  agree(R"(, "speculation": {"draft": "mtp"})", true);
  agree(R"(, "speculation": {})", false);
  agree(R"(, "host_memory": "1 GiB")", true);
  agree(R"(, "nvme": {"capacity": "1 TB", "read": "7 GB/s", "write": "5 GB/s"})", true);
  agree(R"(, "nvme": {"capacity": "1 TB", "read": "7 GB/s"})", false);
  agree(R"(, "nvme": null)", true);
  agree(R"(, "cluster": {"prefix_margin": [0, 32], "link_latency": "0 s"})", true);
  agree(R"(, "cluster": {"prefix_margin": -1})", false);
  agree(R"(, "engine": {"max_model_len": "workload"})", true);
  agree(R"(, "engine": {"max_model_len": "model"})", false);
  agree(R"(, "engine": {"expert_parallel": 8, "expert_imbalance": 1.2})", true);
  agree(R"(, "engine": {"expert_parallel": 0})", false);
  agree(R"(, "engine": {"decode_context_parallel": 2})", true);
  agree(R"(, "engine": {"decode_context_parallel": 0})", false);
  agree(R"(, "engine": {"prefill_context_parallel": 4})", true);
  agree(R"(, "engine": {"prefill_context_parallel": 1.5})", false);
  agree(R"(, "engine": {"decode_context_parallel": "2"})", false);
  agree(R"(, "engine": {"expert_link": "50 GB/s", "expert_link_latency": null})", true);
  agree(R"(, "engine": {"expert_link": 50})", false);
  agree(R"(, "engine": {"kv_blocks": "per-head", "compaction": null})", true);
  agree(R"(, "engine": {"kv_blocks": true})", false);
  agree(R"(, "offload": {"to": "host", "prefetch": false, "reuse": 0.5})", true);
  agree(R"(, "offload": {"to": "nvme", "reuse": 2})", false);
  agree(R"(, "offload": {})", false);
  agree(R"(, "offload": null)", true);
  agree(R"(, "tier_codec": "nvfp4")", true);
  agree(R"(, "tier_codec": "none")", false);
  agree(R"(, "tier_codec": ["nvfp4"])", false);
  agree(R"(, "figures": ["ttft_cdf", "goodput"])", true);
}

}  // namespace
}  // namespace kvsim
