#pragma once

// A small service with explicit pool, costs and workload, and an observer that checks every
// iteration.

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/cost/iteration/mixed_layer.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/check.hpp"
#include "sim/serve/service/service.hpp"
#include "tests/support/machines.hpp"

namespace kvsim::test {

/// An iteration takes a fixed time, plus a time per token and per entry.
struct LinearTimes {
  double iteration = 1e-3;  // seconds
  double per_token = 1e-6;
  double per_entry = 1e-9;
};

class LinearCost : public IterationCost {
 public:
  LinearCost(const CostInput& in, LinearTimes times) : times_{times} {
    for (const auto& layer_class : mixed_columns(*in.llm, *in.method).classes) {
      layer_classes_.push_back({.layer = layer_class.layer, .layers = layer_class.layers});
    }
  }
  MixedCost cost(const MixedStep& step) override {
    double tokens = static_cast<double>(step.decodes * step.decode_tokens);
    double entries = 0;
    if (step.decodes > 0) {
      for (const DecodeLoad& l : step.loads) entries += l.attended;
      entries /= static_cast<double>(step.loads.size());
    }
    for (const PrefillChunk& c : step.chunks) tokens += static_cast<double>(c.tokens);
    return {
        .time = Seconds{times_.iteration + times_.per_token * tokens + times_.per_entry * entries},
        .flops = tokens,
        .bytes = entries,
        .at_peak = Seconds{1e-9 * tokens}};
  }
  std::span<const LayerSpan> layer_classes() const override { return layer_classes_; }

 private:
  LinearTimes times_;
  std::vector<LayerSpan> layer_classes_;
};

/// A service whose pool has this number of blocks of the full cache (1 KiB per token).
struct SmallService {
  std::int64_t blocks = 64;
  std::int64_t block_tokens = 16;
  std::optional<std::int64_t> max_model_len{};  // none: the length of the longest request
  LinearTimes times{};
  SchedulerSpec scheduler{};
  MethodSpec method{"full", {}, {}};
  SloSpec slo{};
  Bytes host_memory{};
  NvmeSpec nvme{};
  RequestTrace trace{};
  std::string stack = "vllm";
  /// Share of the PCIe bandwidth reached by copies between GPU and host; 1: for whole and partial
  /// copies, none: as in the stack.
  std::optional<double> link_reached = 1;
  std::int32_t tensor_parallel = 1;
  ServeObserver* observer = nullptr;
  std::shared_ptr<const MeasuredLaw> measured{};
  std::function<std::unique_ptr<Scheduler>()> make_scheduler{};
  ClusterSpec cluster{};
  SpeculationSpec speculation{};
  std::uint64_t seed = 0;
  bool per_head_blocks = false;
  bool lazy_compaction = false;
  OffloadSpec offload{};
  std::string tier_codec{};
  bool async_scheduling = false;
  FrontEndTimes front_end{};
  const Llm* llm = nullptr;   // replaces small_llm()
  std::int32_t pipeline = 1;  // stages; each takes the share of `times` of its layers

  [[nodiscard]] ServeResult run(const ServeOptions& options = {}) const {
    const Llm small = small_llm();
    const Llm& model = llm != nullptr ? *llm : small;
    Gpu gpu = a800();
    gpu.pcie = BytesPerSecond{25e9};
    gpu.hbm_usable = full_cache_bytes(small, blocks * block_tokens, Dtype::kFp16);
    Calibration calibration{.id = "test", .provenance = "made up"};
    calibration.families[static_cast<std::size_t>(OpFamily::kHostCopy)].bandwidth =
        link_reached.value_or(1);
    const ServeSpec spec{.llm = &model,
                         .gpu = &gpu,
                         .stack = &find_stack(stack),
                         .method = method,
                         .measured = measured,
                         .calibration = link_reached ? &calibration : nullptr,
                         .tensor_parallel = tensor_parallel,
                         .pipeline_parallel = pipeline,
                         .options = {.max_model_len = max_model_len,
                                     .longest_request = !max_model_len,
                                     .prefill_chunk = 512,
                                     .block_tokens = block_tokens,
                                     .per_head_blocks = per_head_blocks,
                                     .lazy_compaction = lazy_compaction,
                                     .memory_fraction = 1.0,
                                     .async_scheduling = async_scheduling,
                                     .front_end_latency = front_end.latency,
                                     .front_end_request = front_end.request,
                                     .front_end_prompt_token = front_end.prompt_token,
                                     .front_end_token = front_end.token,
                                     .front_end_sequence = front_end.sequence,
                                     .weights = Bytes{0},
                                     .non_torch = Bytes{0},
                                     .activation = Bytes{0},
                                     .graphs = Bytes{0}},
                         .requests = std::make_shared<RequestTrace>(trace),
                         .scheduler = scheduler,
                         .slo = slo,
                         .cluster = cluster,
                         .speculation = speculation,
                         .host_memory = host_memory,
                         .nvme = nvme,
                         .offload = offload,
                         .tier_codec = tier_codec,
                         .seed = seed};
    ServeHooks hooks{.observer = observer};
    hooks.cost = [this](const CostInput& in, const Roofline&) {
      return std::make_unique<LinearCost>(in, times);
    };
    hooks.stage_cost = [this](const CostInput& in, const Roofline&, const LayerRange& range) {
      const double share =
          static_cast<double>(range.last - range.first) / static_cast<double>(in.llm->n_layers());
      return std::make_unique<LinearCost>(in, LinearTimes{.iteration = times.iteration * share,
                                                          .per_token = times.per_token * share,
                                                          .per_entry = times.per_entry * share});
    };
    if (make_scheduler) {
      hooks.scheduler = [this](const SchedulerSpec&, const SchedulerContext&) {
        return make_scheduler();
      };
    }
    return run_serve(spec, options, hooks);
  }
};

inline Request request(double at_s, std::int32_t prompt, std::int32_t output) {
  return {.arrival = to_sim_time(Seconds{at_s}), .prompt_tokens = prompt, .output_tokens = output};
}

/// Random numbers that are equal with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_{seed * 2654435761U + 12345} {}
  double uniform() {  // in (0, 1)
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (static_cast<double>(state_ >> 11U) + 0.5) / 9007199254740992.0;
  }
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(uniform() * (high - low + 1));
  }

 private:
  std::uint64_t state_;
};

/// Poisson arrivals of random lengths; some share prefixes, some follow other requests, some
/// declare a length.
inline RequestTrace random_trace(std::uint64_t seed, std::int32_t n, double rate,
                                 std::int32_t prompt, std::int32_t output, bool prefixes = false) {
  Dice dice{seed};
  RequestTrace trace;
  trace.prefix_block = prefixes ? 48 : 0;
  double at = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    at -= std::log(dice.uniform()) / rate;
    const std::int32_t outputs = dice.between(0, 2 * output);
    Request r = request(at, dice.between(1, 2 * prompt - 1), outputs);
    r.priority = dice.between(0, 3);
    const bool declares = dice.between(0, 1) == 1;
    const std::int32_t declared = dice.between(1, 4 * output);
    if (declares) r.declared_tokens = declared;
    if (i > 3 && dice.uniform() < 0.2) {
      r.after = i - dice.between(1, 3);
      r.arrival = to_sim_time(Seconds{dice.uniform() / rate});
    }
    if (prefixes) {
      r.prefix_first = static_cast<std::int32_t>(trace.prefix_ids.size());
      r.prefix_count = (r.prompt_tokens + 47) / 48;
      // A few families: the first blocks are common to the family, the rest is private.
      const auto family = static_cast<std::uint64_t>(dice.between(1, 4));
      const std::int32_t common = dice.between(0, r.prefix_count - 1);
      for (std::int32_t b = 0; b < r.prefix_count; ++b) {
        const auto place = static_cast<std::uint64_t>(b);
        trace.prefix_ids.push_back(b < common
                                       ? family * 1000 + place
                                       : 1'000'000 + 1000 * static_cast<std::uint64_t>(i) + place);
      }
    }
    trace.requests.push_back(r);
  }
  return trace;
}

/// Checks invariants at every step; records every decision.
class CheckingObserver : public ServeObserver {
 public:
  explicit CheckingObserver(std::int64_t block_tokens = 16, bool full = true)
      : block_{block_tokens}, full_{full} {}

  void planned(const IterationView& v) override {
    KVSIM_CHECK(v.start >= last_end_ && v.end > v.start, "the clock goes back");
    // The engine is never idle while a sequence could run.
    KVSIM_CHECK(!has_work_ || v.start == last_end_, "idle from {} to {} ps", last_end_.count(),
                v.start.count());
    KVSIM_CHECK(!v.plan.empty(), "an iteration of nothing");
    std::set<RequestId> seen, running{v.running.begin(), v.running.end()};
    KVSIM_CHECK(running.size() == v.running.size(), "a sequence runs twice");
    for (const Planned& p : v.plan) {
      const Sequence& s = (*v.sequences)[static_cast<std::size_t>(p.id)];
      KVSIM_CHECK(seen.insert(p.id).second && running.contains(p.id), "request {} is planned twice",
                  p.id);
      KVSIM_CHECK(p.tokens >= 1 && p.tokens == s.planned && s.computed + p.tokens <= s.known,
                  "{} tokens of request {}", p.tokens, p.id);
      KVSIM_CHECK(s.arrival <= v.start, "request {} runs before it comes", p.id);
      planned_tokens += p.tokens;
      decisions.emplace_back(v.start, p.id, p.tokens);
    }
    v.memory->check();
  }
  void ended(const IterationView& v) override {
    last_end_ = v.end;
    has_work_ = !v.running.empty() || v.waiting > 0;
    v.memory->check();
    std::int64_t held = 0;
    for (const RequestId id : v.running) {
      const Sequence& s = (*v.sequences)[static_cast<std::size_t>(id)];
      KVSIM_CHECK(s.state == SequenceState::kRunning && s.planned == 0, "request {} half done", id);
      held += v.memory->held(id);
      const std::int64_t blocks = (s.computed + block_ - 1) / block_;
      KVSIM_CHECK(!full_ || v.memory->held(id) == blocks, "{} blocks for {} tokens",
                  v.memory->held(id), s.computed);
    }
    KVSIM_CHECK(held >= v.memory->taken(), "blocks without an owner");
    KVSIM_CHECK(v.memory->pinned() > 0 || held == v.memory->taken(), "{} units held, {} taken",
                held, v.memory->taken());
    std::int64_t waiting = 0, running = 0;
    for (const Sequence& s : *v.sequences) {
      waiting += s.state == SequenceState::kWaiting ? 1 : 0;
      running += s.state == SequenceState::kRunning ? 1 : 0;
    }
    KVSIM_CHECK(waiting == static_cast<std::int64_t>(v.waiting) && running == std::ssize(v.running),
                "a request is lost");
    max_running = std::max(max_running, v.running.size());
  }

  std::int64_t planned_tokens = 0;
  std::size_t max_running = 0;
  std::vector<std::tuple<SimTime, RequestId, std::int32_t>> decisions;

 private:
  std::int64_t block_;
  bool full_;
  SimTime last_end_{};
  bool has_work_ = false;
};

}  // namespace kvsim::test
