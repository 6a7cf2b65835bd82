// Laws of static runs, and runs compared with a reference that allocates tensor by tensor.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/batch/replay_allocations.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

Llm windowed_llm() {
  Llm llm = small_llm();
  llm.layers[1].attention.window = 100;
  llm.layers[3].mlp.n_experts = 4;
  llm.layers[3].mlp.top_k = 2;
  return llm;
}

/// Keys and values stored per query head, as in released H2O and SnapKV.
class QueryHeadMethod : public FullMethod {
 public:
  [[nodiscard]] std::int32_t stored_heads(const LayerShape& shape) const override {
    return shape.n_heads;
  }
};

std::vector<std::shared_ptr<const Method>> methods() {
  return {std::make_shared<FullMethod>(), std::make_shared<PromptFractionMethod>(0.3),
          std::make_shared<BoundedMethod>(
              BoundedOptions{.budget = 120, .needs = eager_sums_with_retry(), .side_per_entry = 8}),
          std::make_shared<BoundedMethod>(BoundedOptions{.budget = 150,
                                                         .compaction = Compaction::kGather,
                                                         .prefill_peak = PrefillPeak::kAllLayers,
                                                         .side_per_entry = 4,
                                                         .budget_step = 13}),
          std::make_shared<BoundedMethod>(
              BoundedOptions{.budget = 230, .compaction = Compaction::kSwap, .budget_step = 7})};
}

struct Case {
  Llm llm = windowed_llm();
  Gpu gpu = a800();
  Stack stack;
  StaticSpec spec;
  Case(const Stack& s, std::shared_ptr<const Method> method, std::int64_t batch = 3,
       std::int64_t prompt = 200, std::int64_t output = 90)
      : stack{s} {
    spec = {.llm = &llm,
            .gpu = &gpu,
            .stack = &stack,
            .method = std::move(method),
            .batch = batch,
            .prompt_tokens = prompt,
            .output_tokens = output};
  }
  Case(const Case&) = delete;  // the spec points into it
  Case& operator=(const Case&) = delete;
  [[nodiscard]] CostInput input() const {
    return {.llm = &llm,
            .method = spec.method.get(),
            .stack = &stack,
            .batch = spec.batch,
            .allocated = spec.prompt_tokens + spec.output_tokens};
  }
};

Stack with_static_cache() {
  Stack stack = find_stack("ideal");
  stack.name = "static";
  stack.growth = CacheGrowth::kStatic;
  return stack;
}

std::vector<Stack> stacks() {
  std::vector<Stack> all = builtin_stacks();
  all.push_back(with_static_cache());
  return all;
}

/// Stacks whose cache grows inside the graphs, as in the reference.
std::vector<Stack> growing_stacks() {
  std::vector<Stack> all = builtin_stacks();
  std::erase_if(all, [](const Stack& s) {
    return s.growth != CacheGrowth::kExact && s.growth != CacheGrowth::kConcatLayer;
  });
  return all;
}

Bytes sum_of(const Owners& owners) {
  Bytes sum;
  for (const auto& [name, n] : owners) sum += n;
  return sum;
}

/// Repeats the whole run and allocates every tensor in an Hbm in sequence.
struct ReferenceRun {
  Bytes peak;
  std::optional<std::int64_t> oom_step;
  std::string oom_what;
};
ReferenceRun reference_run(const StaticSpec& spec) {
  const CostInput in{.llm = spec.llm,
                     .method = spec.method.get(),
                     .stack = spec.stack,
                     .weight_dtype = spec.weight_dtype,
                     .kv_dtype = spec.kv_dtype,
                     .batch = spec.batch};
  const std::int64_t s = spec.prompt_tokens;
  const std::int32_t layers = spec.llm->n_layers();
  ReferenceRun out;
  Hbm hbm{spec.gpu->hbm_usable};
  std::vector<Hbm::Id> cache(static_cast<std::size_t>(layers), -1);
  std::int64_t step = 0;
  const auto run = [&](const OpGraph& graph) {
    const auto refused = replay_allocations(hbm, graph);
    if (refused) {
      out.oom_step = step;
      out.oom_what = refused->what;
    }
    return !refused;
  };
  const auto swap_cache = [&](std::int32_t l, std::int64_t entries) {
    Hbm::Id& id = cache[static_cast<std::size_t>(l)];
    if (id >= 0) hbm.release(id);
    id = -1;
    if (entries > 0) id = hbm.allocate("kv_cache", layer_cache(in, l, entries).total()).value();
  };
  const auto run_by_hand = [&] {
    if (!hbm.allocate("context", spec.stack->context)) return false;
    if (!hbm.allocate("weights", weight_bytes(*spec.llm, spec.weight_dtype))) return false;
    if (!run(embed_tokens(in, s))) return false;
    std::vector<Hbm::Id> residents;
    const std::vector<Tensor> all = resident_tensors(in, s);
    for (std::int32_t l = 0; l < layers; ++l) {
      for (const Tensor& t : all) {
        if (l != (t.owner == Owner::kMask ? 0 : 1)) continue;
        residents.push_back(hbm.allocate("resident", t.bytes).value());
      }
      const std::int64_t kept = held_entries(in, l, s, s);
      if (!run(prefill_layer(in, l, {.prompt = s, .kept = kept, .score_rows = s}))) return false;
      swap_cache(l, spec.method->prefill_peak() == PrefillPeak::kPerLayer ? kept : s);
    }
    if (!run(output_logits(in, s))) return false;
    for (const Hbm::Id id : residents) hbm.release(id);
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::int64_t kept = held_entries(in, l, s, s);
      if (spec.method->prefill_peak() == PrefillPeak::kPerLayer || kept == s) continue;
      swap_cache(l, 0);
      if (!run(compress_layer(in, l, s, kept))) return false;
      swap_cache(l, kept);
    }
    for (const Tensor& t : resident_tensors(in, 1)) (void)hbm.allocate("resident", t.bytes);
    for (step = 1; step <= spec.output_tokens; ++step) {
      for (std::int32_t l = 0; l < layers; ++l) {
        const DecodeState m =
            decode_moment(in, l, s, s + step, held_entries(in, l, s, s + step - 1));
        swap_cache(l, 0);
        if (!run(decode_layer(in, l, m))) return false;
        swap_cache(l, m.after);
      }
      if (!run(output_logits(in, 1))) return false;
    }
    return true;
  };
  (void)run_by_hand();
  out.peak = hbm.peak();
  return out;
}

TEST_CASE("the run equals its reference for caches stored apart from projections") {
  for (const Stack& stack : growing_stacks()) {
    Case c{stack, std::make_shared<QueryHeadMethod>()};
    CHECK(run_static(c.spec).peak_hbm == reference_run(c.spec).peak);
    CHECK(run_static(c.spec).kv_bytes == Bytes{3 * (3 * 290 + 100) * 4 * 128 * 2});
    c.spec.kv_dtype = Dtype::kFp8E4m3;
    c.spec.method = std::make_shared<FullMethod>();
    CHECK(run_static(c.spec).peak_hbm == reference_run(c.spec).peak);
  }
}

TEST_CASE("the run equals its reference tensor by tensor and runs out at the same step") {
  for (const Stack& stack : growing_stacks()) {
    for (const auto& method : methods()) {
      Case c{stack, method};
      const StaticResult whole = run_static(c.spec);
      REQUIRE_FALSE(whole.oom);
      INFO(stack.name, " ", method->name());
      CHECK(whole.peak_hbm == reference_run(c.spec).peak);
      // Memory is reduced to a size smaller than the weights.
      for (const double share : {0.9999, 0.999, 0.99, 0.97, 0.9, 0.8}) {
        c.gpu.hbm_usable =
            Bytes{static_cast<std::int64_t>(
                share * static_cast<double>((whole.peak_hbm - stack.context).count()))} +
            stack.context;
        if (method->needs().retries_smaller_chunks) continue;  // the reference does not retry
        const StaticResult r = run_static(c.spec);
        const ReferenceRun reference = reference_run(c.spec);
        REQUIRE(r.oom);
        if (r.oom->phase == "load") continue;
        REQUIRE(reference.oom_step);
        CHECK(r.oom->step == *reference.oom_step);
        CHECK(r.oom->what.starts_with(reference.oom_what));
        CHECK(r.oom->requested > r.oom->free);
        CHECK(sum_of(r.oom->owners) + r.oom->free == r.usable_hbm);
        CHECK(r.peak_hbm <= r.usable_hbm);
      }
    }
  }
}

TEST_CASE("peak >= held >= weights + cache and owners sum to the peak") {
  for (const Stack& stack : stacks()) {
    for (const auto& method : methods()) {
      const Case c{stack, method};
      const StaticResult r = run_static(c.spec);
      INFO(stack.name, " ", method->name());
      REQUIRE_FALSE(r.oom);
      const Bytes weights = weight_bytes(c.llm, c.spec.weight_dtype);
      for (const StaticSample& s : r.timeline) {
        CHECK(s.peak >= s.held);
        CHECK(s.held >= weights + s.kv);
        CHECK(s.peak <= r.peak_hbm);
        CHECK(s.tokens == c.spec.prompt_tokens + s.step);
      }
      CHECK(sum_of(r.peak_owners) == r.peak_hbm);
      CHECK(r.peak_hbm == std::max(r.prefill_peak, r.decode_peak));
      CHECK(r.peak_phase == (r.prefill_peak >= r.decode_peak ? "prefill" : "decode"));
      Bytes kv;
      for (const Bytes n : r.kv_bytes_per_layer) kv += n;
      CHECK(kv == r.kv_bytes);
      CHECK(r.timeline.back().kv == r.kv_bytes);
      CHECK(r.calibration.find("uncalibrated") != std::string::npos);
    }
  }
}

TEST_CASE("times are the sum over every step's graph") {
  for (const Stack& stack : stacks()) {
    for (const auto& method : methods()) {
      const Case c{stack, method};
      const StaticResult r = run_static(c.spec);
      const Roofline roofline{c.gpu, c.stack, {}};
      CostInput in = c.input();
      const auto masks = masked(method);
      if (stack.masks_evicted) in.method = masks.get();
      double decode = 0, flops = 0, bytes = 0;
      for (std::int64_t n = 1; n <= c.spec.output_tokens; ++n) {
        const StepCost cost = evaluate(decode_step(in, 200, 200 + n), roofline);
        decode += cost.time.count();
        flops += cost.flops;
        bytes += cost.bytes;
      }
      const StepCost prefill = evaluate(prefill_step(in, 200, {200}), roofline);
      INFO(stack.name, " ", method->name());
      CHECK(r.decode_time->count() == rel(decode));
      CHECK(r.prefill_time->count() == rel(prefill.time.count()));
      CHECK(r.flops == rel(flops + prefill.flops));
      CHECK(r.bytes_moved == rel(bytes + prefill.bytes));
      CHECK(*r.throughput_tok_s == rel(3 * 90 / (decode + prefill.time.count())));
      CHECK(*r.decode_tok_s == rel(3 * 90 / decode));
    }
  }
}

TEST_CASE("more batch or more tokens never lowers memory or time") {
  for (const Stack& stack : stacks()) {
    for (const auto& method : methods()) {
      StaticResult last;
      for (const auto& [batch, prompt, output] :
           std::vector<std::array<std::int64_t, 3>>{{1, 50, 10},
                                                    {2, 50, 10},
                                                    {2, 170, 10},
                                                    {2, 170, 60},
                                                    {7, 170, 60},
                                                    {7, 400, 60},
                                                    {7, 400, 200}}) {
        const Case c{stack, method, batch, prompt, output};
        const StaticResult r = run_static(c.spec);
        INFO(stack.name, " ", method->name(), " ", batch, " ", prompt, " ", output);
        REQUIRE_FALSE(r.oom);
        CHECK(r.peak_hbm >= last.peak_hbm);
        CHECK(r.kv_bytes >= last.kv_bytes);
        const auto time = [](const StaticResult& x) {
          return x.prefill_time ? x.prefill_time->count() + x.decode_time->count() : 0;
        };
        CHECK(time(r) >= time(last));
        last = r;
      }
    }
  }
}

TEST_CASE("on the ideal stack more bandwidth never lowers throughput, nor a smaller ring") {
  double last = 0;
  for (const double bandwidth : {0.5e12, 1e12, 2e12, 4e12, 64e12}) {
    Case c{find_stack("ideal"), std::make_shared<FullMethod>()};
    c.gpu.hbm_bandwidth = BytesPerSecond{bandwidth};
    const StaticResult r = run_static(c.spec);
    CHECK(*r.throughput_tok_s >= last);
    last = *r.throughput_tok_s;
  }
  last = 0;
  for (const std::int64_t budget : {10000, 200, 150, 80, 10}) {
    const Case c{find_stack("ideal"),
                 std::make_shared<BoundedMethod>(BoundedOptions{.budget = budget})};
    const StaticResult r = run_static(c.spec);
    CHECK(*r.decode_tok_s >= last);
    last = *r.decode_tok_s;
  }
}

TEST_CASE("a method with equal layers runs the same") {
  for (const Stack& stack : stacks()) {
    BoundedOptions options{.budget = 230, .side_per_entry = 8};
    const Case apart{stack, std::make_shared<BoundedMethod>(options)};
    options.has_equal_layers = true;
    const Case equal{stack, std::make_shared<BoundedMethod>(options)};
    const StaticResult a = run_static(apart.spec), b = run_static(equal.spec);
    CHECK(a.peak_hbm == b.peak_hbm);
    CHECK(a.decode_time->count() == b.decode_time->count());
    CHECK(a.kv_bytes_per_layer == b.kv_bytes_per_layer);
    CHECK(a.peak_owners == b.peak_owners);
  }
}

TEST_CASE("without output tokens a run ends after prefill with the state of a longer run there") {
  for (const Stack& stack : stacks()) {
    if (is_preallocated(stack)) continue;  // memory for the output is allocated at the start
    const Case none{stack, std::make_shared<FullMethod>(), 3, 200, 0};
    const Case some{stack, std::make_shared<FullMethod>(), 3, 200, 5};
    const StaticResult a = run_static(none.spec);
    const StaticResult b = run_static(some.spec);
    CHECK(a.prefill_time == b.prefill_time);
    CHECK(a.prefill_peak == b.prefill_peak);
    CHECK(a.kv_bytes == b.timeline.front().kv);
    CHECK(a.decode_time == Seconds{0.0});
    CHECK_FALSE(a.throughput_tok_s.has_value());
    CHECK_FALSE(a.decode_tok_s.has_value());
    CHECK(a.timeline.size() == 1);
  }
}

TEST_CASE("weights that do not fit are an OOM of loading") {
  Case c{find_stack("hf-sdpa"), std::make_shared<FullMethod>()};
  c.gpu.hbm_usable = 512_MiB + Bytes{1000};
  const StaticResult r = run_static(c.spec);
  REQUIRE(r.oom);
  CHECK(r.oom->phase == "load");
  CHECK(r.oom->what == "weights");
  CHECK(r.oom->requested == weight_bytes(c.llm, Dtype::kFp16));
  CHECK(r.oom->free == Bytes{1000});
  CHECK(r.oom->owners == Owners{{"context", 512_MiB}});
  CHECK(r.timeline.empty());
  c.gpu.hbm_usable = 100_MiB;
  CHECK(run_static(c.spec).oom->what == "CUDA context");
}

TEST_CASE("for any memory of a GPU a failed request is named and explained by terms") {
  const Llm llm = llama2_7b();
  const auto full = std::make_shared<FullMethod>();
  const auto run_on = [&](const Gpu& gpu, const char* stack) {
    return run_static({.llm = &llm,
                       .gpu = &gpu,
                       .stack = &find_stack(stack),
                       .method = full,
                       .prompt_tokens = 40000,
                       .output_tokens = 2},
                      {.intervals = true});
  };
  std::set<std::string> refused_tensors;
  for (const char* stack : {"ideal", "hf-eager", "hf-sdpa", "torch-static"}) {
    for (int gib = 1; gib <= 80; ++gib) {
      Gpu gpu = a800();
      gpu.hbm_usable = Bytes{static_cast<std::int64_t>(gib) << 30};
      const StaticResult result = run_on(gpu, stack);  // a defect throws
      INFO(stack, " on ", gib, " GiB");
      Bytes terms;
      for (const PeakTerm& term : result.peak_terms) terms += term.bytes;
      CHECK(terms == result.peak_hbm);
      if (!result.oom) continue;
      refused_tensors.insert(result.oom->what);
      CHECK(result.oom->requested > result.oom->free);
      Bytes held;
      for (const auto& [owner, bytes] : result.oom->owners) held += bytes;
      CHECK(held + result.oom->free == result.usable_hbm);
    }
  }
  CHECK(refused_tensors.contains("weights"));
  CHECK(refused_tensors.contains("causal mask"));
  CHECK(refused_tensors.size() > 5);
}

TEST_CASE("weights in the published format take the published bytes, in another format all") {
  const Llm& llm = find_llm("gpt-oss-20b");
  Case c{find_stack("ideal"), std::make_shared<FullMethod>(), 1, 10, 1};
  c.spec.llm = &llm;
  c.spec.weight_dtype = Dtype::kFp4;  // for the experts; the rest is bf16: see test_llm
  CHECK(run_static(c.spec).peak_owners.at("weights") == Bytes{13'761'264'768});
  c.spec.weight_dtype = Dtype::kBf16;
  CHECK(run_static(c.spec).peak_owners.at("weights") == weight_bytes(llm, Dtype::kBf16));
}

/// The value of "2 x 3 layers x batch 2 x 1.5 B + 7 B rounding".
double worked_out(const std::string& formula) {
  double sum = 0;
  double product = 1;
  std::string number;
  const auto close_number = [&] {
    if (!number.empty()) product *= std::stod(number);
    number.clear();
  };
  for (const char c : formula) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') number += c;
    if (c == ' ') close_number();
    if (c != '+') continue;
    sum += product;
    product = 1;
  }
  close_number();
  return sum + product;
}

/// Checks that terms are complete and in words, and that each formula equals its bytes.
void check_terms(const StaticResult& r) {
  Owners sums;
  Bytes sum;
  for (const PeakTerm& term : r.peak_terms) {
    INFO(term.owner, ": ", term.what, " = ", term.formula, " = ", term.bytes.count());
    CHECK(std::abs(worked_out(term.formula) - static_cast<double>(term.bytes.count())) < 1);
    if (term.owner != "context") CHECK(term.formula.find(" x ") != std::string::npos);
    CHECK_FALSE(term.what.empty());
    CHECK_FALSE(term.source.empty());
    sums[term.owner] += term.bytes;
    sum += term.bytes;
  }
  CHECK(sums == r.peak_owners);
  CHECK(sum == r.peak_hbm);
}

TEST_CASE("the terms of the peak sum to it by owner and their formulas give their bytes") {
  Llm latent = windowed_llm();
  for (LayerSpec& layer : latent.layers) {
    layer.attention.kv_lora_rank = 64;
    layer.attention.q_lora_rank = 48;
    layer.attention.rope_head_dim = 16;
    layer.attention.v_head_dim = 24;
  }
  latent.layers[2].mlp = {.d_ff = 99, .n_experts = 8, .top_k = 3, .shared_d_ff = 45};
  auto many = methods();
  many.push_back(std::make_shared<QueryHeadMethod>());
  for (const MethodInfo& info : test::basic_methods()) {
    many.push_back(make_method(
        {.name = info.name,
         .params = {},
         .budget = takes_budget(info.name) ? std::optional{Budget{.fraction = 0, .entries = 120}}
                                           : std::nullopt},
        200, {.recorded = Dtype::kFp16, .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 32}}));
  }
  for (const Stack& stack : stacks()) {
    for (const auto& method : many) {
      for (const bool is_latent : {false, true}) {
        for (const auto& [prompt, output] :
             std::vector<std::pair<std::int64_t, std::int64_t>>{{200, 90}, {200, 0}, {3, 400}}) {
          Case c{stack, method, 3, prompt, output};
          if (is_latent) c.llm = latent;
          INFO(stack.name, " ", method->name(), " latent ", is_latent, " ", prompt, "+", output);
          for (const Dtype dtype : {Dtype::kFp16, Dtype::kFp32, Dtype::kInt4}) {
            c.spec.weight_dtype = dtype;
            c.spec.kv_dtype = dtype == Dtype::kInt4 ? Dtype::kBf16 : dtype;
            c.gpu = a800();
            const StaticResult whole = run_static(c.spec);
            check_terms(whole);
            // The terms are also complete for runs that are refused at any point.
            for (const double share : {0.9999, 0.99, 0.9, 0.7, 0.4}) {
              c.gpu.hbm_usable =
                  Bytes{static_cast<std::int64_t>(
                      share * static_cast<double>((whole.peak_hbm - stack.context).count()))} +
                  stack.context;
              check_terms(run_static(c.spec));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("terms of the published weights and of the caches are reported with their numbers") {
  const Llm& oss = find_llm("gpt-oss-20b");
  Case c{find_stack("hf-flash"), std::make_shared<FullMethod>(), 2, 1000, 10};
  c.spec.llm = &oss;
  c.spec.weight_dtype = Dtype::kFp4;
  const StaticResult r = run_static(c.spec);
  check_terms(r);
  const auto term = [&](const char* owner) {
    return *std::find_if(r.peak_terms.begin(), r.peak_terms.end(),
                         [&](const PeakTerm& t) { return t.owner == owner; });
  };
  CHECK(term("weights").formula ==
        "19,110,297,600 parameters of experts x 0.5 B + 597,196,800 scales x 1 B + 1,804,459,584 "
        "other parameters x 2 B");
  CHECK(term("weights").source == "config.json of openai/gpt-oss-20b");
  CHECK(term("context").source == "stack hf-flash: context");
  CHECK(term("kv_cache").what == "keys and values of 12 layers x 128 entries");
  CHECK(term("kv_cache").formula == "2 x 12 layers x batch 2 x 128 entries x 8 heads x 64 x 2 B");
  CHECK(term("kv_cache").source.starts_with("method full: holds "));
}

TEST_CASE("embeddings are held once if the second layer's scores are requested again") {
  for (const double share : {0.999, 0.995, 0.99, 0.985, 0.98, 0.97, 0.96, 0.95, 0.93, 0.9}) {
    Case c{find_stack("hf-sdpa"), std::make_shared<BoundedMethod>(BoundedOptions{
                                      .budget = 120, .needs = eager_sums_with_retry()})};
    const StaticResult whole = run_static(c.spec);
    c.gpu.hbm_usable =
        c.stack.context +
        Bytes{static_cast<std::int64_t>(
            share * static_cast<double>((whole.peak_hbm - c.stack.context).count()))};
    const StaticResult r = run_static(c.spec);
    check_terms(r);
    if (!r.oom) CHECK(r.timeline.front().held == whole.timeline.front().held);
  }
}

TEST_CASE("a run states its assumptions on transformers' caches and on a GPU without bf16") {
  const auto said = [](const char* llm, const char* gpu, const char* stack, Dtype dtype,
                       std::string_view words) {
    Case c{find_stack(stack), std::make_shared<FullMethod>(), 1, 10, 1};
    c.spec.llm = &find_llm(llm);
    c.spec.gpu = &find_gpu(gpu);
    c.spec.weight_dtype = c.spec.kv_dtype = dtype;
    const auto notes = run_static(c.spec).notes;
    return std::count_if(notes.begin(), notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  };
  constexpr Dtype kBf16 = Dtype::kBf16;
  CHECK(said("deepseek-v2-lite", "H200", "hf-sdpa", kBf16, "cache its latents") == 1);
  CHECK(said("deepseek-v2-lite", "H200", "ideal", kBf16, "cache its latents") == 0);
  CHECK(said("gemma-2-2b", "H200", "hf-sdpa", kBf16, "sliding window") == 1);
  CHECK(said("gemma-2-2b", "H200", "ideal", kBf16, "sliding window") == 0);
  CHECK(said("llama-2-7b", "H200", "hf-sdpa", kBf16, "assumed") == 0);
  CHECK(said("gemma-2-2b", "T4", "ideal", kBf16, "T4 has no bf16 tensor-core rate") == 1);
  CHECK(said("gemma-2-2b", "T4", "ideal", Dtype::kInt4, "T4 has no bf16 tensor-core rate") == 1);
  CHECK(said("gemma-2-2b", "T4", "ideal", Dtype::kFp16, "bf16") == 0);
}

TEST_CASE("after an OOM the metrics known by then are kept") {
  Case c{find_stack("hf-sdpa"), std::make_shared<FullMethod>(), 3, 50, 400};
  const StaticResult whole = run_static(c.spec);
  REQUIRE(whole.peak_phase == "decode");
  c.gpu.hbm_usable = whole.peak_hbm - Bytes{20000};
  const StaticResult decode = run_static(c.spec);
  REQUIRE(decode.oom);
  CHECK(decode.oom->phase == "decode");
  CHECK(decode.prefill_time == whole.prefill_time);
  CHECK_FALSE(decode.decode_time);
  CHECK_FALSE(decode.throughput_tok_s);
  c.gpu.hbm_usable = whole.prefill_peak - Bytes{20000};
  const StaticResult prefill = run_static(c.spec);
  REQUIRE(prefill.oom);
  REQUIRE(prefill.oom->phase == "prefill");
  CHECK_FALSE(prefill.prefill_time);
  CHECK(prefill.kv_bytes > Bytes{});
  CHECK(prefill.kv_bytes == prefill.oom->owners.at("kv_cache"));
  Bytes sum;
  for (const Bytes n : prefill.kv_bytes_per_layer) sum += n;
  CHECK(sum == prefill.kv_bytes);
}

TEST_CASE("a stack may use only its fraction") {
  Case c{find_stack("ideal"), std::make_shared<FullMethod>()};
  c.stack.usable_fraction = 0.5;
  CHECK(run_static(c.spec).usable_hbm == Bytes{c.gpu.hbm_usable.count() / 2});
}

TEST_CASE("a static cache is allocated whole at the start and never moves") {
  const Case c{with_static_cache(), std::make_shared<FullMethod>()};
  const StaticResult r = run_static(c.spec);
  for (const StaticSample& s : r.timeline) CHECK(s.kv == r.kv_bytes);
  // 3 sequences x 290 tokens x 128 elements x 2 B in three layers; the window of 100 caps one.
  CHECK(r.kv_bytes == Bytes{3 * (3 * 290 + 100) * 128 * 2});
}

TEST_CASE("compression after all layers peaks higher than layer by layer") {
  BoundedOptions options{.budget = 100};
  Llm llm = small_llm();
  llm.layers.resize(2);
  // Many layers, so that the caches are larger than a layer's activations.
  while (llm.layers.size() < 64) llm.layers.push_back(llm.layers.front());
  const auto peak = [&](PrefillPeak when) {
    options.prefill_peak = when;
    Case c{find_stack("ideal"), std::make_shared<BoundedMethod>(options), 1, 4000, 5};
    c.llm = llm;
    return run_static(c.spec).prefill_peak;
  };
  const Bytes difference = peak(PrefillPeak::kAllLayers) - peak(PrefillPeak::kPerLayer);
  // At the last layer's feed-forward block, all 64 layers hold 3,900 more entries of 256 B.
  CHECK(difference.count() == 64LL * 3900 * 128 * 2);
}

TEST_CASE("the timeline is thinned with first and last kept") {
  for (const std::size_t max : {3UL, 4UL, 10UL, 512UL}) {
    const Case c{find_stack("ideal"), std::make_shared<FullMethod>()};
    const StaticResult r = run_static(c.spec, {.max_samples = max});
    CHECK(r.timeline.size() <= max);
    CHECK(r.timeline.front().step == 0);
    CHECK(r.timeline.back().step == 90);
    for (std::size_t i = 1; i < r.timeline.size(); ++i) {
      CHECK(r.timeline[i].step > r.timeline[i - 1].step);
    }
  }
  Case c{find_stack("ideal"), std::make_shared<FullMethod>(), 3, 10, 300};
  const StaticResult whole = run_static(c.spec);
  c.gpu.hbm_usable = whole.peak_hbm - Bytes{20000};
  const StaticResult cut = run_static(c.spec, {.max_samples = 5});
  REQUIRE(cut.oom);
  REQUIRE(cut.oom->phase == "decode");
  CHECK(cut.timeline.size() <= 5);
  CHECK(cut.timeline.back().step == cut.oom->step - 1);
  // Some layers had grown in the failed step: at most one row in all four.
  CHECK(cut.kv_bytes >= cut.timeline.back().kv);
  CHECK(cut.kv_bytes - cut.timeline.back().kv <= Bytes{4LL * 3 * 128 * 2});
}

TEST_CASE("score chunks are quartered until they fit and the run reports it") {
  BoundedOptions options{.budget = 500, .needs = eager_sums_with_retry()};
  Case c{find_stack("hf-sdpa"), std::make_shared<BoundedMethod>(options), 1, 4000, 5};
  // One matrix of all rows: 8 x 4000^2 x 2 B = 256 MB, three matrices 768 MB.
  c.gpu.hbm_usable = 512_MiB + 400_MiB;
  const StaticResult r = run_static(c.spec);
  REQUIRE_FALSE(r.oom);
  REQUIRE_FALSE(r.notes.empty());  // the last; another is the model's window
  CHECK(r.notes.back().starts_with("prefill scores were chunked to 1000 query rows"));
  options.needs.retries_smaller_chunks = false;
  c.spec.method = std::make_shared<BoundedMethod>(options);
  const StaticResult refused = run_static(c.spec);
  REQUIRE(refused.oom);
  CHECK(refused.oom->what == "copy of the attention scores of layer 0");
  CHECK(refused.oom->requested == Bytes{8LL * 4000 * 4000 * 2});
}

TEST_CASE("broken specs and unknown sizes") {
  Case c{find_stack("ideal"), std::make_shared<FullMethod>()};
  c.spec.batch = 0;
  CHECK_THROWS_AS((void)run_static(c.spec), ContractError);
  c.spec.batch = 1;
  CHECK_THROWS_AS((void)run_static(c.spec, {.max_samples = 2}), ContractError);
  c.spec.method = std::make_shared<UnknownSizeMethod>();
  CHECK_THROWS_AS((void)run_static(c.spec), InputError);
  c.spec.method = nullptr;
  CHECK_THROWS_AS((void)run_static(c.spec), ContractError);
}

}  // namespace
}  // namespace kvsim
