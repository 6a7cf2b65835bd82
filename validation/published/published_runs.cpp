#include "validation/published/published_runs.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/resolve/measured.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

/// Returns the largest n in [0, max] for which `fits` holds; `fits` must be monotonic.
template <class Fits>
std::int64_t largest(std::int64_t max, Fits fits) {
  std::int64_t good = 0;
  std::int64_t bad = 1;
  while (bad <= max && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  bad = std::min(bad, max + 1);
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

namespace {

/// Whether the run's bytes can be counted exactly.
bool is_countable(const Llm& llm, const RunSize& size) {
  constexpr double kMaxBytes = 0x1p58;
  const auto batch = static_cast<double>(size.batch);
  const auto prompt = static_cast<double>(size.prompt);
  const double tokens = prompt + static_cast<double>(size.steps);
  double cache = 0;
  double scores = 0;
  for (const LayerSpec& layer : llm.layers) {
    const AttentionSpec& a = layer.attention;
    cache += batch * tokens * 4 * a.n_heads * (a.head_dim + a.v_head_dim);
    scores = std::max(scores, batch * prompt * prompt * 16 * a.n_heads);
  }
  return std::max(cache, scores) < kMaxBytes && size.prompt <= kMaxPointTokens;
}

}  // namespace

PublishedRuns::PublishedRuns(const PublishedRow& row, const PublishedSetup& setup, const Llm& llm,
                             MethodSpec method)
    : setup_{setup}, llm_{llm}, method_{std::move(method)}, gpu_{setup.gpu}, stack_{setup.stack} {
  if (setup.stack != nullptr && setup.all_logits) {
    own_stack_ = *setup.stack;
    own_stack_->logits = LogitPositions::kAll;
    own_stack_->logits_fp32 = true;
    stack_ = &*own_stack_;
  }
  if (setup.stack != nullptr && setup.eager_execution && setup.stack->host_per_layer.count() == 0) {
    // The host launches what a graph would replay: about 20 operators per layer (two norms, four
    // products, rotation, cache write, attention, activation, two sums over GPUs, and views).
    constexpr double kOperators = 20;
    own_stack_ = *stack_;
    own_stack_->host_per_layer = setup.stack->host_per_launch * kOperators;
    stack_ = &*own_stack_;
  }
  if (setup.stack != nullptr && setup.linear_mask && stack_->full_causal_mask) {
    own_stack_ = *stack_;
    own_stack_->full_causal_mask = false;
    stack_ = &*own_stack_;
  }
  options_.max_model_len = setup.cache_tokens ? setup.cache_tokens : setup.max_model_len;
  options_.max_num_seqs = setup.max_num_seqs;
  options_.prefill_chunk = setup.prefill_chunk;
  options_.block_tokens = setup.block_tokens;
  options_.memory_fraction = setup.memory_fraction;
  if (setup.eager_execution) options_.cuda_graphs = false;
  // Its configurations with parameter offloading keep no layer on the GPU.
  if (stack_ != nullptr && stack_->name == "zero-inference") options_.host_weights = 1;
  if (setup.gpu != nullptr && setup.card_memory && *setup.card_memory <= setup.gpu->hbm) {
    own_gpu_ = *setup.gpu;
    own_gpu_->hbm_usable = *setup.card_memory;
    gpu_ = &*own_gpu_;
  }
  weights_ = {.base = llm.compute_dtype, .format = nullptr};
  if (setup.weights) weights_ = match_weights(row, *setup.weights, llm);
  kv_dtype_ = setup.kv_dtype ? *setup.kv_dtype : default_kv_dtype(llm, weights_.base);
}

std::optional<std::int64_t> PublishedRuns::pass_tokens(const RunSize& size) const {
  constexpr std::int64_t kPieces = 8192;
  constexpr std::int64_t kMinPass = 2048;     // max_num_batched_tokens of vLLM's V0 engine
  constexpr std::int64_t kLongModel = 32768;  // beyond this length, that engine chunks prompts
  if (stack_ == nullptr) return std::nullopt;
  if (is_paged() && stack_->prefill_chunk == 0) {
    const std::int64_t longest = options_.max_model_len.value_or(size.prompt + size.steps);
    if (longest > kLongModel && stack_->long_prefill_chunk > 0) return stack_->long_prefill_chunk;
    return std::max(kMinPass, size.prompt);  // whole prompts, as many as fit in a pass
  }
  // A row about one decode step does not depend on how the prompt was prefilled.
  if (setup_.output && setup_.output->steady && stack_->prefill_chunk == 0) return kPieces;
  return std::nullopt;
}

StaticSpec PublishedRuns::spec(const RunSize& size) {
  StaticSpec spec;
  spec.calibration = &builtin_calibration();
  spec.llm = &llm_;
  spec.gpu = gpu_;
  spec.stack = stack_;
  spec.weight_dtype = weights_.base;
  spec.weight_format = weights_.format;
  spec.tensor_parallel = setup_.gpus;
  spec.options = options_;
  if (!options_.prefill_chunk) spec.options.prefill_chunk = pass_tokens(size);
  spec.kv_dtype = kv_dtype_;
  spec.batch = size.batch;
  spec.prompt_tokens = size.prompt;
  spec.output_tokens = size.steps;
  spec.method = make_method(method_, size.prompt, method_site(llm_, kv_dtype_));
  if (!spec.method->entries_held(0, size.prompt, size.prompt)) {
    const auto law = expected_law(*spec.method, size.prompt, llm_.n_layers());
    if (law) spec.method = with_measured_law(spec.method, *law, llm_.n_layers());
  }
  return spec;
}

void PublishedRuns::check(const RunSize& size) const {
  constexpr std::int64_t kMaxSteps = std::int64_t{1} << 20;
  if (size.steps > kMaxSteps) {
    throw InputError{fmt::format("an output of {} tokens: more than {} are not run step by step",
                                 size.steps, kMaxSteps)};
  }
  if (!is_countable(llm_, size)) {
    throw InputError{
        fmt::format("batch {} of {} + {} tokens is beyond what can be counted in bytes", size.batch,
                    size.prompt, size.steps)};
  }
}

const StaticResult& PublishedRuns::run(const RunSize& size) {
  const auto found = results_.find(size);
  if (found != results_.end()) return found->second;
  check(size);
  StaticSpec one = spec(size);
  // A row about one decode step does not include the prefill: only the step must fit.
  const bool step_alone = setup_.output && setup_.output->steady && !is_paged() && size.steps > 0 &&
                          !setup_.offloads_weights;
  Gpu roomy = *gpu_;
  if (step_alone) {
    constexpr std::int64_t kRoom = 8;
    roomy.hbm = roomy.hbm * kRoom;
    roomy.hbm_usable = roomy.hbm_usable * kRoom;
    one.gpu = &roomy;
  }
  StaticResult result =
      setup_.offloads_weights ? run_offloaded(one) : run_static(one, {.max_samples = 3});
  if (step_alone && !result.oom) {
    result.usable_hbm = fraction_bytes(*stack_, gpu_->hbm_usable);
    if (result.decode_peak > result.usable_hbm) {
      result.oom = OomEvent{.step = size.steps,
                            .tokens = size.prompt + size.steps,
                            .phase = "decode",
                            .what = "the step's peak",
                            .requested = result.decode_peak,
                            .free = result.usable_hbm,
                            .owners = result.peak_owners};
    }
  }
  return results_.emplace(size, std::move(result)).first->second;
}

StaticResult PublishedRuns::run_offloaded(StaticSpec spec) const {
  const auto away = [&](std::int64_t layers) {
    spec.options.host_weights = static_cast<double>(layers) / llm_.n_layers();
    return run_static(spec, {.max_samples = 3});
  };
  // Number of layers that fit on the GPU.
  const std::int64_t all = llm_.n_layers();
  const std::int64_t kept =
      largest(all, [&](std::int64_t layers) { return !away(all - layers).oom; });
  return away(all - kept);
}

bool PublishedRuns::fragments(const RunSize& size) {
  const bool copies =
      stack_->growth == CacheGrowth::kConcatLayer || stack_->growth == CacheGrowth::kConcatAll;
  if (!copies || !stack_->rounds_allocations) return false;
  StaticSpec one = spec(size);
  one.allocator.emplace();
  const StaticResult result = run_static(one, {.max_samples = 3});
  return result.allocator && result.allocator->oom;
}

EngineStartup PublishedRuns::startup() {
  StaticSpec run = spec({.batch = 1, .prompt = 1, .steps = 0});
  // Unless stated, an engine is configured for the model's longest sequence.
  if (!run.options.max_model_len && llm_.max_positions > 0) {
    run.options.max_model_len = llm_.max_positions;
  }
  run.options.prefill_chunk = options_.prefill_chunk;
  if (stack_->prefill_chunk == 0 && !options_.prefill_chunk && run.options.max_model_len) {
    run.options.prefill_chunk = pass_tokens({.batch = 1, .prompt = *run.options.max_model_len});
  }
  const auto found = run_static(run, {.max_samples = 3}).startup;
  KVSIM_CHECK(found.has_value(), "the start of stack {}, which has no pool", stack_->name);
  return *found;
}

std::int64_t PublishedRuns::largest_batch(std::int64_t prompt, std::int64_t steps) {
  constexpr std::int64_t kMaxSearched = std::int64_t{1} << 17;  // a search takes about forty runs
  if (steps > kMaxSearched) {
    throw InputError{fmt::format("no search for a batch over an output of {} tokens", steps)};
  }
  return largest(kMaxBatch, [&](std::int64_t batch) {
    const RunSize size{.batch = batch, .prompt = prompt, .steps = steps};
    return is_countable(llm_, size) && !run(size).oom;
  });
}

std::int64_t PublishedRuns::longest_prompt(std::int64_t batch, std::int64_t max) {
  return largest(max, [&](std::int64_t prompt) {
    const RunSize size{.batch = batch, .prompt = prompt, .steps = 1};
    return is_countable(llm_, size) && !run(size).oom;
  });
}

}  // namespace kvsim
