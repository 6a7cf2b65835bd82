#include "sim/serve/serve_site.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/serve/scheduler.hpp"
#include "sim/serve/static_engine.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kStaticBatch = 8;  // where the spec names none
constexpr std::int64_t kEmptyTypical = 1024;  // prompt that costs are settled for without requests

StackOptions options_of(const ServeSpec& spec) {
  StackOptions options = spec.options;
  // A scheduler's bounds are what the engine profiles its start with.
  if (spec.scheduler.max_num_batched_tokens) {
    options.prefill_chunk = spec.scheduler.max_num_batched_tokens;
  }
  if (spec.scheduler.max_num_seqs) options.max_num_seqs = spec.scheduler.max_num_seqs;
  return options;
}

std::int64_t median_prompt(const RequestTrace& trace) {
  std::vector<std::int64_t> prompts;
  prompts.reserve(trace.requests.size());
  for (const Request& r : trace.requests) prompts.push_back(r.prompt_tokens);
  if (prompts.empty()) return kEmptyTypical;
  const auto middle = prompts.begin() + static_cast<std::ptrdiff_t>(prompts.size() / 2);
  std::nth_element(prompts.begin(), middle, prompts.end());
  return *middle;
}

std::int64_t longest_sequence(const RequestTrace& trace) {
  std::int64_t most = 1;
  for (const Request& r : trace.requests) {
    most = std::max(most, std::int64_t{r.prompt_tokens} + r.output_tokens);
  }
  return most;
}

}  // namespace

ServeSite::ServeSite(const ServeSpec& spec, const ServeHooks& hooks)
    : spec_{spec},
      hooks_{hooks},
      llm_{tensor_shard(*spec.llm, spec.tensor_parallel)},
      options_{options_of(spec)},
      stack_{with_options(*spec.stack, options_)},
      calibration_{spec.calibration != nullptr ? *spec.calibration : Calibration{}},
      roofline_{*spec.gpu, stack_, calibration_},
      typical_prompt_{median_prompt(*spec.requests)},
      longest_{longest_sequence(*spec.requests)},
      base_{.llm = &llm_,
            .stack = &stack_,
            .weight_dtype = spec.weight_dtype,
            .kv_dtype = spec.kv_dtype,
            .prompt = typical_prompt_,
            .weight_format = spec.weight_format,
            .tensor_parallel = spec.tensor_parallel,
            .vocab_size = spec.llm->vocab_size,
            .measured_weights = spec.options.weights},
      laws_{spec.method, method_site(*spec.llm, spec.kv_dtype), spec.measured, base_},
      typical_{laws_.settle(typical_prompt_)},
      in_{base_},
      scheduler_{spec.scheduler.name.empty() ? default_scheduler(*spec.stack)
                                             : spec.scheduler.name} {
  in_.method = typical_.get();
  // A size that only a replay knows is refused before anything runs.
  (void)held_entries(in_, 0, typical_prompt_, typical_prompt_);
  usable_ = Bytes{static_cast<std::int64_t>(
      std::floor(static_cast<double>(spec.gpu->hbm_usable.count()) * stack_.usable_fraction))};
  for (const OutsideBytes& part : outside_bytes(in_)) standing_["context"] += part.bytes;
  standing_["weights"] = weights_held(in_);
  if (scheduler_ == "static") return;
  (void)find_scheduler(scheduler_);
  if (stack_.growth != CacheGrowth::kPaged) {
    throw InputError{fmt::format(
        "scheduler {}: stack {} has no paged cache to batch continuously; it runs \"static\"",
        scheduler_, stack_.name)};
  }
  start_paged(hooks);
}

void ServeSite::start_paged(const ServeHooks& hooks) {
  startup_ = engine_startup(in_, spec_.gpu->hbm_usable, longest_, options_);
  cost_ = hooks.cost ? hooks.cost(in_, roofline_) : mixed_iteration_cost(in_, roofline_);
  sizes_.emplace(in_, cost_->laws());
  standing_["activations"] = startup_->activation;
  full_law_ = spec_.method.name == "full" && !spec_.measured && sizes_->counts_blocks() &&
              !sizes_->windowed();
  const bool wanted =
      spec_.scheduler.prefix_caching.value_or(find_scheduler(scheduler_).prefix_caching);
  prefix_caching_ = wanted && sizes_->plain() && !sizes_->windowed();
  if (wanted && !prefix_caching_) {
    notes_.push_back(
        "prefix caching is off: the layers' blocks do not hold the same tokens, or the method "
        "keeps rows in a form of its own");
  }
  if (startup_->kv_cache <= Bytes{} || sizes_->pool_units(startup_->kv_cache) < 1) {
    cannot_start_ = fmt::format("no memory is left for a cache: {} are missing", startup_->missing);
  } else if (stack_.max_model_len > 0 && spec_.method.name == "full" && !startup_->serves()) {
    cannot_start_ = fmt::format("a sequence of max_model_len {} tokens, the pool holds {}",
                                startup_->max_model_len, startup_->tokens);
  }
  if (full_law_) return;
  notes_.push_back(
      "a method that drops entries frees blocks when its survivors are written anew, as its cost "
      "is charged; while a prompt is computed in chunks every layer holds all of it, and a method "
      "that compresses layer by layer writes of the last chunk what survives alone");
  notes_.push_back(
      "entries are those of the size law for every head of a layer: heads that hold different "
      "numbers share blocks and free them with the longest, which is not counted");
  notes_.push_back(
      "a preempted sequence is prefilled and compressed anew with what it had generated, as one "
      "prompt");
}

std::unique_ptr<Engine> ServeSite::make_engine(ServeState& state, std::int32_t replica,
                                               std::size_t max_samples) {
  if (scheduler_ == "static") {
    const std::int64_t batch = spec_.scheduler.batch.value_or(kStaticBatch);
    if (batch < 1) {
      throw InputError{fmt::format("scheduler static: batch: expected at least 1, got {}", batch)};
    }
    StaticSpec one{.llm = spec_.llm,
                   .gpu = spec_.gpu,
                   .stack = spec_.stack,
                   .method = {},
                   .weight_dtype = spec_.weight_dtype,
                   .kv_dtype = spec_.kv_dtype,
                   .calibration = spec_.calibration,
                   .weight_format = spec_.weight_format,
                   .tensor_parallel = spec_.tensor_parallel,
                   .options = options_};
    return std::make_unique<StaticEngine>(state, replica, max_samples, std::move(one), laws_,
                                          spec_.scheduler.order, batch);
  }
  const std::int64_t units = sizes_->pool_units(startup_->kv_cache);
  const SchedulerSite site{
      .stack = &stack_, .max_model_len = startup_->max_model_len, .pool_units = units};
  auto scheduler = hooks_.scheduler ? hooks_.scheduler(spec_.scheduler, site)
                                    : find_scheduler(scheduler_).make(spec_.scheduler, site);
  EngineParts parts{.sizes = &*sizes_,
                    .laws = full_law_ ? nullptr : &laws_,
                    .cost = cost_.get(),
                    .startup = *startup_,
                    .pool_units = units,
                    .prefix_caching = prefix_caching_,
                    .max_model_len = startup_->max_model_len,
                    .standing = standing_,
                    .host_memory = spec_.host_memory,
                    .link = spec_.gpu->c2c.value_or(spec_.gpu->pcie),
                    .order = spec_.scheduler.order};
  return std::make_unique<ContinuousEngine>(state, replica, max_samples, std::move(parts),
                                            std::move(scheduler), hooks_.observer);
}

std::string ServeSite::provenance() const {
  if (calibration_.kernels == nullptr || !stack_.kernels.empty()) return calibration_.provenance;
  return fmt::format(
      "no fitted kernels, stack {} names none: {}", stack_.name,
      roofline_.is_bound() ? "rates of the data sheet" : "shares of the data sheet by its profile");
}

std::vector<std::string> ServeSite::notes() const {
  std::vector<std::string> notes = notes_;
  if (spec_.tensor_parallel > 1) {
    notes.push_back(
        fmt::format("tensor parallelism over {} GPUs: memory is of one of them, tokens of all",
                    spec_.tensor_parallel));
  }
  if (const auto& none = laws_.unsettled(); none.lengths > 0) {
    notes.push_back(fmt::format("prompts of {} lengths from {} to {} tokens hold every token: {}",
                                none.lengths, none.shortest, none.longest, none.why));
  }
  if (spec_.measured) {
    notes.push_back(
        fmt::format("size law of {}: as measured on {}", spec_.method.name, spec_.measured->trace));
  }
  return notes;
}

std::int64_t ServeSite::capacity_tokens() const {
  if (startup_) return startup_->tokens;
  Bytes standing;
  for (const auto& [owner, bytes] : standing_) standing += bytes;
  return std::max<std::int64_t>(0, (usable_ - standing).count()) /
         full_cache_bytes(llm_, 1, spec_.kv_dtype).count();
}

}  // namespace kvsim
