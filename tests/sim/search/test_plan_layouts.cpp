// Layouts searched by a plan: the engine's rules, the exhaustive search, contradictory keys.

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/plan/layout_candidate.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/scenario/points/layouts.hpp"
#include "tests/sim/search/plan_files.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::has;
using test::serve_plan;

using Sizes = std::tuple<int, int, int, int, int, int>;  // the last: prefill engines

std::set<Sizes> found(const char* model, const LayoutSearch& search, bool has_pipelines = true) {
  std::set<Sizes> out;
  std::int32_t gpus = 0;
  for (const Layout& one : layouts_of(find_llm(model), find_gpu("H100-80GB-SXM"),
                                      find_stack("vllm"), search, has_pipelines)) {
    CHECK(out.emplace(one.tensor_parallel, one.context_parallel, one.pipeline_parallel,
                      one.expert_parallel, one.replicas, one.prefill_replicas)
              .second);  // each once
    const std::int32_t own =
        one.tensor_parallel * one.pipeline_parallel * (one.replicas + one.prefill_replicas);
    CHECK(own >= gpus);  // in order
    gpus = own;
  }
  return out;
}

TEST_CASE("layouts are all products of parallelisms that divide the model") {
  struct Model {
    const char* name;
    std::set<int> tensor;  // divisors of heads, whole or copied KV heads; at most 8
    int kv_heads, experts;
  };
  for (const auto& [name, tensor, kv_heads, experts] :
       {Model{"llama-3.1-8b", {1, 2, 4, 8}, 8, 0}, Model{"mixtral-8x7b", {1, 2, 4, 8}, 8, 8},
        Model{"qwen3-30b-a3b", {1, 2, 4, 8}, 4, 128}}) {
    for (const int gpus : {1, 2, 3, 8}) {
      for (const bool disaggregated : {false, true}) {
        INFO(name, " on ", gpus, " ", disaggregated);
        std::set<Sizes> expected;
        for (int tp = 1; tp <= gpus; ++tp) {
          for (int pp = 1; pp <= gpus; ++pp) {
            for (int ep = 1; ep <= gpus; ++ep) {
              for (int engines = 1; engines <= gpus; ++engines) {
                for (int prefill = 0; prefill <= gpus; ++prefill) {
                  if (tensor.count(tp) == 0 || tp * pp * (engines + prefill) > gpus) continue;
                  const bool is_split = prefill > 0;
                  const bool is_shared = !is_split && engines > 1;  // data-parallel attention
                  if ((is_split || is_shared) && pp > 1) continue;
                  if (is_split && (!disaggregated || std::gcd(engines, prefill) > 1)) continue;
                  if (is_shared ? experts < ep || ep != tp * engines
                                : ep != 1 && (ep != tp || experts < ep)) {
                    continue;
                  }
                  // Only over GPUs that would otherwise hold the same heads.
                  for (int dcp = 1; dcp <= std::max(1, tp / kv_heads); dcp *= 2) {
                    expected.emplace(tp, dcp, pp, ep, engines, prefill);
                  }
                }
              }
            }
          }
        }
        CHECK(found(name, {.gpus = gpus, .disaggregated = disaggregated}) == expected);
      }
    }
  }
  for (const auto& [tp, dcp, pp, ep, engines, prefill] :
       found("llama-3.1-8b", {.gpus = 8}, false)) {
    CHECK(pp == 1);
  }
  // Tensor parallelism is limited to a node.
  for (const auto& [tp, dcp, pp, ep, engines, prefill] : found("llama-3.1-70b", {.gpus = 16})) {
    CHECK(tp <= 8);
  }
}

TEST_CASE("a layout is named by its parallelisms") {
  CHECK(layout_words({.tensor_parallel = 4}) == "TP 4");
  CHECK(layout_words({.tensor_parallel = 8, .context_parallel = 4, .expert_parallel = 8}) ==
        "TP 8, DCP 4, EP 8");
  CHECK(layout_words({.tensor_parallel = 2, .prefill_context = 4, .expert_parallel = 8}) ==
        "TP 2, PCP 4, EP 8");
  CHECK(layout_words({.tensor_parallel = 4, .pipeline_parallel = 2}) == "TP 4, PP 2");
  CHECK(layout_words({.tensor_parallel = 2, .expert_parallel = 8, .replicas = 4}) ==
        "TP 2, DP 4, EP 8");
  CHECK(layout_words({.tensor_parallel = 2, .replicas = 3, .prefill_replicas = 1}) == "TP 2, 1P3D");
}

constexpr const char* kMinGpusQuestion = R"("questions": "fewest_gpus", "most_gpus": 8)";

TEST_CASE("a search of layouts gives the same answers as a plan per layout") {
  struct Model {
    const char* keys;
    std::vector<std::pair<const char*, const char*>> alone;  // layout, keys
  };
  const std::vector<Model> models{
      {R"(, "model": "llama-3.1-8b", "gpu": "A100-40GB-SXM")",
       {{"TP 1", ""},
        {"TP 1, PP 2", R"(, "pipeline_parallel": 2)"},
        {"TP 2", R"(, "gpu_count": 2)"}}},
      {R"(, "model": "qwen3-30b-a3b", "gpu": "H100-80GB-SXM")",
       {{"TP 1", ""},
        {"TP 1, PP 2", R"(, "pipeline_parallel": 2)"},
        {"TP 1, DP 2, EP 2", R"(, "cluster": {"replicas": 2}, "engine": {"expert_parallel": 2})"},
        {"TP 2", R"(, "gpu_count": 2)"},
        {"TP 2, EP 2", R"(, "gpu_count": 2, "engine": {"expert_parallel": 2})"}}},
      {R"(, "model": "deepseek-v2-lite", "gpu": "A100-40GB-SXM")",
       {{"TP 1", ""},
        {"TP 1, PP 2", R"(, "pipeline_parallel": 2)"},
        {"TP 1, PCP 2", R"(, "engine": {"prefill_context_parallel": 2})"},
        {"TP 1, PCP 2, EP 2",
         R"(, "engine": {"prefill_context_parallel": 2, "expert_parallel": 2})"},
        {"TP 1, DP 2, EP 2", R"(, "cluster": {"replicas": 2}, "engine": {"expert_parallel": 2})"},
        {"TP 2", R"(, "gpu_count": 2)"},
        {"TP 2, DCP 2", R"(, "gpu_count": 2, "engine": {"decode_context_parallel": 2})"},
        {"TP 2, EP 2", R"(, "gpu_count": 2, "engine": {"expert_parallel": 2})"},
        {"TP 2, DCP 2, EP 2",
         R"(, "gpu_count": 2, "engine": {"decode_context_parallel": 2, "expert_parallel": 2})"}}}};
  for (const Model& model : models) {
    INFO(model.keys);
    const std::string wanted = fmt::format("{}, \"layouts\": 2", kMinGpusQuestion);
    const PlanResult all = run_plan(serve_plan(model.keys, wanted), {.threads = 2, .prune = false});
    REQUIRE(all.groups.size() == 1);
    REQUIRE(all.candidates.size() == model.alone.size());
    double min = 1e9;
    for (const auto& [layout, keys] : model.alone) {
      INFO(layout);
      const auto at = std::find_if(all.candidates.begin(), all.candidates.end(),
                                   [&](const PlanCandidate& one) { return one.layout == layout; });
      REQUIRE(at != all.candidates.end());
      CHECK(at->label == layout);
      const PlanResult alone =
          run_plan(serve_plan(std::string{model.keys} + keys, kMinGpusQuestion), {.threads = 1});
      const PlanCandidate& one = alone.candidates.at(0);
      CHECK(at->answer == one.answer);
      CHECK(at->replicas == one.replicas);
      CHECK(at->range.safe == one.range.safe);
      CHECK(at->range.optimistic == one.range.optimistic);
      if (one.answer) CHECK(at->points.back().cost == one.points.back().cost);
      if (one.answer) min = std::min(min, *one.answer);
    }
    REQUIRE(all.groups[0].best);
    CHECK(all.candidates[*all.groups[0].best].answer == min);
    // Threads do not change an answer.
    const Scenario scenario = serve_plan(model.keys, wanted);
    CHECK(plan_csv(run_plan(scenario, {.threads = 1, .prune = false})) == plan_csv(all));
  }
}

/// Services of several models, formats and bounds, with the layouts of `gpus` GPUs. They include
/// short answers dominated by the delay of the first token, requests without answers, undivided
/// prompts, drafts, and API servers that are slower than their engines.
std::vector<Scenario> searches(int gpus) {
  std::vector<Scenario> out;
  for (const char* keys :
       {R"(, "model": "llama-3.1-8b", "gpu": ["A100-40GB-SXM", "H100-80GB-SXM"])",
        R"(, "model": "llama-3.1-70b", "gpu": "H100-80GB-SXM", "dtype": ["bf16", "fp8-tensor"])",
        R"(, "model": "qwen3-30b-a3b", "gpu": "H200-141GB-SXM", "stack": ["vllm", "sglang"],
            "cluster": {"link": "50 GB/s"})",
        R"(, "model": "llama-3.1-8b", "gpu": ["H100-80GB-SXM", "L40S"], "stack": ["vllm", "trtllm"],
            "slo": {"e2e": "4 s"}, "method": ["full", {"name": "snapkv", "budget": 0.5}],
            "requests": {"arrivals": {"kind": "poisson", "rate": 12}, "count": 100,
                         "prompt_tokens": {"kind": "uniform", "min": 10, "max": 3000},
                         "output_tokens": {"kind": "uniform", "min": 1, "max": 6}})",
        R"(, "model": "llama-3.1-8b", "gpu": ["H100-80GB-SXM", "A100-80GB-SXM"],
            "scheduler": {"chunked_prefill": false}, "slo": {"ttft": "3 s", "e2e": "6 s"},
            "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 100,
                         "prompt_tokens": {"kind": "uniform", "min": 100, "max": 12000},
                         "output_tokens": {"kind": "uniform", "min": 0, "max": 3}})",
        R"(, "model": "llama-3.1-70b", "gpu": ["H100-80GB-SXM", "H200-141GB-SXM"],
            "speculation": {"draft": "llama-3.2-1b", "tokens": 3, "acceptance": 0.6})",
        R"(, "model": "llama-3.1-8b", "gpu": ["H100-80GB-SXM", "A100-80GB-SXM"],
            "engine": {"front_end_request": "40 ms", "front_end_token": "2 ms"},
            "requests": {"arrivals": {"kind": "poisson", "rate": 8}, "count": 100,
                         "prompt_tokens": 200, "output_tokens": 30})"}) {
    out.push_back(serve_plan(
        keys, fmt::format(R"("questions": "fewest_gpus", "most_gpus": 32, "layouts": {})", gpus)));
  }
  return out;
}

TEST_CASE("bounds of layouts are below the memory and time of every layout") {
  std::size_t sharp = 0, sharp_first = 0, sharp_token = 0, answers = 0;
  for (const Scenario& scenario : searches(4)) {
    const PlanCandidates inputs = plan_candidates(scenario, std::nullopt);
    const PlanResult all = run_plan(scenario, {.threads = 2, .prune = false});
    for (std::size_t c = 0; c < all.candidates.size(); ++c) {
      const PlanCandidate& one = all.candidates[c];
      INFO(all.groups[one.group].of, ": ", one.label);
      if (!one.answer) continue;
      ++answers;
      const LayoutBound bound = LayoutCandidate{inputs.inputs[c]}.bound();
      CHECK(bound.gpus <= *one.answer);
      CHECK(bound.copy_cost * static_cast<double>(one.replicas) <= one.points.back().cost);
      const OperatingPoint& point = one.points.back();
      CHECK(bound.ttft_s <= point.ttft_s);
      CHECK(bound.tpot_s <= point.tpot_s);
      CHECK(bound.latency_s <= point.latency_s);
      sharp_first += bound.ttft_s * 3 > point.ttft_s ? 1U : 0U;
      sharp_token += bound.tpot_s * 3 > point.tpot_s ? 1U : 0U;
      sharp += bound.latency_s * 3 > point.latency_s ? 1U : 0U;
    }
  }
  CHECK(answers > 10);
  // Bounds of zero would not prune any layout.
  CHECK(sharp * 2 > answers);
  CHECK(sharp_first * 2 > answers);
  CHECK(sharp_token * 3 > answers);  // lower for short answers
}

TEST_CASE("pruning by bounds changes neither the best layout nor the front") {
  const auto front_of = [](const PlanResult& plan) {
    std::set<std::tuple<std::size_t, double, double, double, double, std::string>> out;
    for (const PlanCandidate& one : plan.candidates) {
      for (const OperatingPoint& point : one.points) {
        if (!point.on_front) continue;
        out.emplace(one.group, point.cost, point.ttft_s, point.tpot_s, point.latency_s, one.label);
      }
    }
    return out;
  };
  std::size_t pruned = 0;
  for (const Scenario& scenario : searches(8)) {
    const PlanResult all = run_plan(scenario, {.threads = 2, .prune = false});
    const PlanResult some = run_plan(scenario, {.threads = 2});
    CHECK(front_of(some) == front_of(all));
    REQUIRE(some.groups.size() == all.groups.size());
    for (std::size_t g = 0; g < all.groups.size(); ++g) {
      CHECK(some.groups[g].best == all.groups[g].best);
    }
    for (std::size_t c = 0; c < all.candidates.size(); ++c) {
      const PlanCandidate& one = some.candidates[c];
      INFO(one.label, " ", one.pruned);
      if (!one.pruned.empty()) {
        ++pruned;
        CHECK_FALSE(one.answer);
      } else {
        CHECK(one.answer == all.candidates[c].answer);
        CHECK(one.impossible.has_value() == all.candidates[c].impossible.has_value());
      }
    }
    CHECK(plan_csv(run_plan(scenario, {.threads = 1})) == plan_csv(some));
  }
  CHECK(pruned > 0);
}

TEST_CASE("bars are named by layouts, and of many candidates those are drawn that tables list") {
  const auto bars_of = [](const Scenario& scenario) {
    const PlanResult plan = run_plan(scenario, {.threads = 2, .prune = false});
    const FigureSet figures = plan_figures(plan);
    std::multiset<std::string> out;
    for (const nlohmann::ordered_json& bar : figures.figures.at(0).chart.at("bars")) {
      if (!bar.value("heading", false)) out.insert(bar.at("label"));
    }
    return std::pair{out, listed_candidates(plan, plan.groups.at(0)).size()};
  };
  constexpr const char* kTwo = R"("questions": "fewest_gpus", "most_gpus": 8, "layouts": 2)";
  const auto [few, listed] =
      bars_of(serve_plan(R"(, "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM")", kTwo));
  CHECK(few == std::multiset<std::string>{"TP 1", "TP 1, PP 2", "TP 2"});
  CHECK(listed == 3);
  const auto [many, shown] =
      bars_of(serve_plan(R"(, "model": "llama-3.1-8b", "gpu": ["H100-80GB-SXM", "H200-141GB-SXM"],
                     "method": ["full", {"name": "snapkv", "budget": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}])",
                         kTwo));
  CHECK(many.size() == 10);
  CHECK(shown == 10);
}

TEST_CASE("ranges are those of the layouts that tables list") {
  const auto plan_at = [](double confidence) {
    Scenario scenario = searches(8).front();
    scenario.plan->confidence = confidence;
    return run_plan(scenario, {.threads = 2, .prune = false});
  };
  const PlanResult plain = plan_at(0), safe = plan_at(0.9);
  REQUIRE(plain.candidates.size() == safe.candidates.size());
  std::size_t answers = 0, without_range = 0;
  for (const PlanResult* plan : {&plain, &safe}) {
    for (const PlanGroup& group : plan->groups) {
      const std::vector<std::size_t> listed = listed_candidates(*plan, group);
      for (const std::size_t c : group.candidates) {
        const PlanCandidate& one = plan->candidates[c];
        INFO(group.of, ": ", one.label);
        if (!one.answer) continue;
        ++answers;
        const bool is_listed = std::find(listed.begin(), listed.end(), c) != listed.end();
        without_range += is_listed ? 0U : 1U;
        CHECK(one.range.is_known == is_listed);
        CHECK((plan == &plain ? one.range.predicted : one.range.safe) == one.answer);
        // With a confidence, every candidate has the prediction in addition to the safe answer.
        CHECK(one.range.predicted == plain.candidates[c].range.predicted);
      }
    }
  }
  CHECK(answers > 20);
  CHECK(without_range > 0);
}

TEST_CASE("a prediction is within its range even if a larger cache makes requests slower") {
  // Prompts of 128K: an engine whose cache holds one more simultaneously misses the TPOT bound.
  const PlanResult plan =
      run_plan(serve_plan(R"(, "model": "llama-3.1-70b", "gpu": "H100-80GB-SXM", "gpu_count": 4,
        "requests": {"arrivals": {"kind": "poisson", "rate": 0.1}, "count": 60,
                     "prompt_tokens": 128000, "output_tokens": 500})",
                          R"("questions": "fewest_gpus")", R"("ttft": "60 s", "tpot": "100 ms")"),
               {.threads = 2});
  const PlanCandidate& one = plan.candidates.at(0);
  REQUIRE(one.answer);
  REQUIRE(one.range.is_known);
  CHECK(one.range.predicted == one.answer);
  REQUIRE(one.range.optimistic);
  CHECK(*one.range.optimistic <= *one.answer);
  REQUIRE(one.range.safe);
  CHECK(*one.range.safe >= *one.answer);
}

TEST_CASE("layouts without a safe answer have a prediction") {
  // Weights fit; non-PyTorch memory at its high end leaves no cache.
  constexpr const char* kSmall =
      R"(, "model": "qwen3-32b", "gpu": "H100-80GB-SXM", "memory": {"hbm": "68 GiB"},
         "requests": {"arrivals": {"kind": "poisson", "rate": 0.1}, "count": 50,
                      "prompt_tokens": 500, "output_tokens": 50})";
  constexpr const char* kBounds = R"("ttft": "5 s", "tpot": "200 ms")";
  const std::string question = R"("questions": "fewest_gpus", "confidence": 0.9)";
  const PlanResult alone = run_plan(serve_plan(kSmall, question, kBounds), {.threads = 1});
  const PlanResult searched =
      run_plan(serve_plan(kSmall, question + R"(, "layouts": 1)", kBounds), {.threads = 1});
  REQUIRE(searched.candidates.size() == 1);
  const PlanCandidate& one = searched.candidates[0];
  const PlanCandidate& other = alone.candidates.at(0);
  CHECK_FALSE(one.answer);
  CHECK_FALSE(one.range.safe);
  CHECK(one.range.predicted == 1.0);
  CHECK(one.range.predicted == other.range.predicted);
  CHECK(one.range.optimistic == other.range.optimistic);
  CHECK(plan_range(one) == "1 to more than 64");
  CHECK(plan_range(one) == plan_range(other));
  REQUIRE(one.impossible);
  REQUIRE(other.impossible);
  CHECK(one.impossible->constraint == other.impossible->constraint);
}

TEST_CASE("a layout that an engine refuses is not an answer, and the reason is reported") {
  // Only vLLM groups layers that keep different rows.
  const PlanResult plan =
      run_plan(serve_plan(R"(, "model": "gemma-2-9b", "gpu": "H100-80GB-SXM", "stack": "sglang")",
                          fmt::format("{}, \"layouts\": 2", kMinGpusQuestion)),
               {.threads = 1});
  REQUIRE(plan.candidates.size() == 3);
  CHECK(plan.candidates[0].answer);
  CHECK(plan.candidates[1].layout == "TP 1, PP 2");
  REQUIRE(plan.candidates[1].impossible);
  CHECK(plan.candidates[1].impossible->constraint == "layout");
  CHECK(has(plan.candidates[1].impossible->text, "groups of layers are modelled only for vLLM"));
  CHECK(plan.candidates[2].answer);
}

TEST_CASE("pipelines and clusters of one workload compete in one table") {
  const PlanResult plan = run_plan(
      serve_plan(R"(, "pipeline_parallel": [1, 2], "cluster": [{"replicas": 1}, {"replicas": 2}])",
                 kMinGpusQuestion),
      {.threads = 2});
  REQUIRE(plan.groups.size() == 1);
  std::vector<std::string> labels;
  for (const PlanCandidate& one : plan.candidates) labels.push_back(one.label);
  CHECK(labels == std::vector<std::string>{"TP 1", "TP 1, DP 2", "TP 1, PP 2", "TP 1, PP 2, DP 2"});
}

TEST_CASE("keys that a search of layouts sets or requires are checked") {
  const auto refused = [](const char* more, const char* plan) -> std::string {
    try {
      (void)serve_plan(more, plan);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string layouts = fmt::format("{}, \"layouts\": 4", kMinGpusQuestion);
  CHECK(refused("", layouts.c_str()).empty());
  for (const auto& [more, place] :
       {std::pair{R"(, "gpu_count": 2)", "/gpu_count"},
        std::pair{R"(, "pipeline_parallel": [1, 2])", "/pipeline_parallel"},
        std::pair{R"(, "engine": {"expert_parallel": 2})", "/engine/expert_parallel"},
        std::pair{R"(, "engine": {"decode_context_parallel": 2})",
                  "/engine/decode_context_parallel"},
        std::pair{R"(, "engine": {"prefill_context_parallel": 2})",
                  "/engine/prefill_context_parallel"},
        std::pair{R"(, "cluster": {"replicas": 2})", "/cluster/replicas"},
        std::pair{R"(, "cluster": [{}, {"prefill_replicas": 1}])",
                  "/cluster/1/prefill_replicas"}}) {
    INFO(more);
    const std::string why = refused(more, layouts.c_str());
    CHECK(has(why, fmt::format("{}: expected none with /plan/layouts, which searches it", place)));
  }
  const std::string split = layouts + R"(, "disaggregated": true)";
  CHECK(has(refused("", split.c_str()), "expected the link of an engine to the others"));
  CHECK(refused(R"(, "cluster": {"link": "50 GB/s"})", split.c_str()).empty());
  const std::string alone = fmt::format(R"({}, "disaggregated": true)", kMinGpusQuestion);
  CHECK(has(refused("", alone.c_str()), "/plan/disaggregated: expected \"layouts\" with it"));
  CHECK(has(refused("", fmt::format("{}, \"layouts\": 0", kMinGpusQuestion).c_str()),
            "/plan/layouts"));
  CHECK_THROWS_WITH_AS(
      (void)test::static_plan("", R"("questions": "longest_context", "layouts": 2)"),
      doctest::Contains("/plan/layouts: applies only to services"), InputError);
}

}  // namespace
}  // namespace kvsim
