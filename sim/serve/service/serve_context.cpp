#include "sim/serve/service/serve_context.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/cost/cache_rows.hpp"
#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/llm/cache_summary.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/params.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/network/expert_network.hpp"
#include "sim/serve/engine/static_engine.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "sim/serve/service/service_topology.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kStaticBatch = 8;      // if not in the spec
constexpr std::int64_t kEmptyTypical = 1024;  // prompt that costs are resolved for if there are no
                                              // requests

/// Number of consecutive entries of a head that a step reads entirely or not at all.
std::int64_t page_of(const Method& method) {
  return method.params().contains("page") ? param_integer(method.params(), "page") : 1;
}

/// Includes the output, if the request declares it.
std::int64_t longest_request(const RequestTrace& trace) {
  std::int64_t max = 1;
  for (const Request& r : trace.requests) {
    max =
        std::max(max, std::int64_t{r.prompt_tokens} + std::max(r.output_tokens, r.declared_tokens));
  }
  return max;
}

/// The longest sequence of an engine without a configured max_model_len: the context from the
/// model's configuration, as engines read it; else the workload's longest request.
std::int64_t longest_sequence(const ServeSpec& spec) {
  if (spec.options.longest_request || spec.llm->max_positions == 0) {
    return longest_request(*spec.requests);
  }
  return spec.llm->max_positions;
}

std::string scheduler_of(const ServeSpec& spec) {
  return spec.scheduler.name.empty() ? default_scheduler(*spec.stack) : spec.scheduler.name;
}

/// The stack as configured by the service.
Stack stack_of(const ServeSpec& spec, const StackOptions& options) {
  const Stack stack = with_options(*spec.stack, options, engine_site(spec));
  const std::int64_t longest =
      stack.max_model_len > 0 ? stack.max_model_len : longest_sequence(spec);
  const bool cuts = stack.prefill_chunk == 0 && scheduler_of(spec) == "vllm-v0" &&
                    vllm_v0_chunks(spec.scheduler, longest);
  return with_expert_network(cuts ? with_cut_prompts(stack, kVllmV0ChunkTokens) : stack, *spec.gpu);
}

std::int64_t longest_prompt(const RequestTrace& trace) {
  std::int64_t longest = 0;
  for (const Request& r : trace.requests)
    longest = std::max<std::int64_t>(longest, r.prompt_tokens);
  return longest;
}

bool has_exact_outputs(const RequestTrace& trace) {
  return std::all_of(trace.requests.begin(), trace.requests.end(), [](const Request& r) {
    return r.declared_tokens > 0 && r.declared_tokens == r.output_tokens;
  });
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

}  // namespace

std::shared_ptr<const EngineSettings> engine_settings(const ServeSpec& spec) {
  return stack_of(spec, with_limits(spec.options, spec.scheduler)).settings;
}

ServeContext::ServeContext(const ServeSpec& spec, const ServeHooks& hooks)
    : spec_{spec},
      hooks_{hooks},
      llm_{
          tensor_shard(*spec.llm, spec.tensor_parallel, spec.options.context_parallel.value_or(1))},
      options_{with_limits(spec.options, spec.scheduler)},
      stack_{stack_of(spec, options_)},
      calibration_{spec.calibration != nullptr ? *spec.calibration : Calibration{}},
      roofline_{*spec.gpu, stack_, calibration_},
      typical_prompt_{median_prompt(*spec.requests)},
      longest_{longest_sequence(spec)},
      base_{.llm = &llm_,
            .stack = &stack_,
            .weight_dtype = spec.weight_dtype,
            .kv_dtype = spec.kv_dtype,
            .prompt = typical_prompt_,
            .weight_format = spec.weight_format,
            .tensor_parallel = spec.tensor_parallel,
            .vocab_size = spec.llm->vocab_size,
            .measured_weights = spec.options.weights},
      footprints_{spec.method, method_site(*spec.llm, spec.kv_dtype), spec.measured, base_},
      typical_{footprints_.resolve(typical_prompt_)},
      in_{base_},
      scheduler_{scheduler_of(spec)} {
  check_expert_parallel(*spec.llm, *spec.gpu, stack_, spec.tensor_parallel);
  check_dealt(stack_, *spec.llm, *typical_, spec.kv_dtype);
  check_split_prompts(stack_, *spec.llm, *typical_);
  in_.method = typical_.get();
  // A size that only a replay can determine is refused before anything runs.
  (void)held_entries(in_, 0, typical_prompt_, typical_prompt_);
  usable_ = stack_.growth == CacheGrowth::kPaged
                ? engine_startup(in_, spec.gpu->hbm_usable, longest_, options_).limit()
                : fraction_bytes(stack_, spec.gpu->hbm_usable);
  for (const OffloadedBytes& part : offloaded_bytes(in_)) resident_["context"] += part.bytes;
  resident_["weights"] = weights_held(in_);
  check_scheduler_options(spec.scheduler, scheduler_);
  if (stack_.context_parallel > 1 && !spec_.tier_codec.empty()) {
    throw InputError{
        "tier_codec: expected none with decode_context_parallel: a GPU's pages hold only a share "
        "of the tokens"};
  }
  if (stack_.prefill_context > 1) {
    const auto refuse = [](std::string_view what) {
      throw InputError{fmt::format(
          "engine: prefill_context_parallel: expected 1 with {}: they are not modelled together",
          what)};
    };
    if (spec.speculation.is_on()) refuse("speculation");
    if (spec.pipeline_parallel > 1) refuse("pipeline_parallel");
    if (spec.host_memory > Bytes{}) refuse("host_memory");
    if (spec.nvme.capacity > Bytes{}) refuse("nvme");
    if (spec.cluster.prefill_replicas > 0) refuse("prefill_replicas");
  }
  if (spec.speculation.is_on() && scheduler_ == "static") {
    throw InputError{"scheduler static: speculation requires an engine with continuous batching"};
  }
  if (spec.pipeline_parallel != 1 && scheduler_ == "static") {
    throw InputError{
        "scheduler static: expected pipeline_parallel 1: static batches are not pipelined"};
  }
  if (spec_.allocator && stack_.growth == CacheGrowth::kPaged) {
    throw InputError{fmt::format(
        "memory: allocator: simulate: stack {} keeps the caches of a service in one pool, a single "
        "allocation at its start",
        stack_.name)};
  }
  if (scheduler_ == "static") {
    if (spec_.offload.to != OffloadTier::kNone) {
      throw InputError{"offload: static batches keep all of their caches on the GPU"};
    }
    if (!spec_.tier_codec.empty()) {
      throw InputError{"tier_codec: static batches keep all of their caches on the GPU"};
    }
    Bytes resident;
    for (const auto& [owner, bytes] : resident_) resident += bytes;
    if (resident > usable_) {
      cannot_start_ = fmt::format(
          "the model does not load: of {} its weights take {} and the context {}, {} are missing",
          usable_, resident_["weights"], resident_["context"], resident - usable_);
    } else if (spec_.allocator) {
      AllocationSession session{{.total = usable_, .outside = stack_.context}, *spec_.allocator};
      if (const auto refused = session.load(in_)) {
        cannot_start_ = "the model does not load: " + refused->reason.message();
      }
    }
    return;
  }
  if (stack_.growth != CacheGrowth::kPaged) {
    throw InputError{
        fmt::format("scheduler {}: stack {} has no paged cache, which continuous batching "
                    "requires; use \"static\"",
                    scheduler_, stack_.name)};
  }
  start_paged(hooks);
}

void ServeContext::place_offloads() {
  const OffloadSpec& offload = spec_.offload;
  Bytes own;
  bool reads_part = false;
  constexpr std::int64_t kMany = 1 << 20;  // entries: above any budget of reads
  constexpr double kPart = 0.5;            // such budgets are far below this share
  for (std::int32_t l = 0; l < llm_.n_layers(); ++l) {
    const CacheRows rows{in_, l};
    const auto bytes =
        typical_->layer_bytes(l, rows.shape(), spec_.kv_dtype, typical_prompt_, typical_prompt_);
    if (bytes) own += bytes->host;
    const auto whole = static_cast<double>((rows.keys(kMany) + rows.values(kMany)).count());
    const StepTraffic step = typical_->decode_traffic(l, rows.shape(), spec_.kv_dtype,
                                                      static_cast<double>(kMany), false);
    if (step.attention_read >= kPart * whole) continue;
    reads_part = true;
    // Keys and values of a page are each contiguous; models without values keep only latents.
    const std::int64_t page = page_of(*typical_);
    const std::int64_t runs = rows.stored_heads() * (rows.values(page) > Bytes{} ? 2 : 1);
    const Bytes piece{
        std::max<std::int64_t>(1, (rows.keys(page) + rows.values(page)).count() / runs)};
    piece_ = piece_ > Bytes{} ? std::min(piece_, piece) : piece;
  }
  const bool has_own = own > Bytes{};
  if (offload.to == OffloadTier::kNone) {
    keeps_outside_ = has_own;
    return;
  }
  const auto refuse = [](const std::string& why) { throw InputError{"offload: " + why}; };
  if (scheduler_ != "vllm-v1" && scheduler_ != "vllm-v0") {
    refuse(fmt::format(
        "scheduler {} does not support memory outside the GPU: expected vllm-v1 or vllm-v0",
        scheduler_));
  }
  if (spec_.scheduler.swap.value_or(false)) {
    refuse("scheduler: swap: offloaded caches are recomputed, not swapped");
  }
  if (spec_.cluster.prefill_replicas > 0) {
    refuse("cluster: prefill_replicas: a transferred cache must be on the GPU");
  }
  if (offload.to == OffloadTier::kHost && spec_.host_memory <= Bytes{}) {
    refuse("to: host: expected host_memory");
  }
  if (offload.to == OffloadTier::kNvme && spec_.nvme.capacity <= Bytes{}) {
    refuse("to: nvme: expected nvme");
  }
  if (has_own && offload.to != OffloadTier::kHost) {
    refuse(fmt::format("to: {} places entries in host memory itself: expected host",
                       spec_.method.name));
  }
  keeps_outside_ = has_own || reads_part;
  if (!has_own && reads_part) footprints_.offload();
  notes_.push_back(offload_note(has_own));
}

void ServeContext::choose_codec() {
  const bool of_method = describe_method(spec_.method.name).axes.at("tier") != "none";
  if (!of_method && spec_.tier_codec.empty()) return;
  const bool leaves = keeps_outside_ || (spec_.scheduler.swap.value_or(false) &&
                                         spec_.host_memory + spec_.nvme.capacity > Bytes{});
  if (of_method && !spec_.tier_codec.empty()) {
    throw InputError{fmt::format("tier_codec {}: method {} has a codec already", spec_.tier_codec,
                                 spec_.method.name)};
  }
  if (!leaves && !of_method) {
    throw InputError{fmt::format(
        "tier_codec {}: no page leaves the GPU: expected offload under a method that reads part of "
        "its cache, or the scheduler's swap",
        spec_.tier_codec)};
  }
  if (!leaves) {
    notes_.push_back(
        fmt::format("{}: no page leaves the GPU, so nothing is coded", spec_.method.name));
    return;
  }
  if (spec_.cluster.prefill_replicas > 0) {
    throw InputError{
        "tier_codec: cluster: prefill_replicas: pages of transferred caches are not "
        "coded"};
  }
  MethodSpec coded = spec_.method;
  if (!of_method) coded.name += "+tier=" + spec_.tier_codec;
  MethodContext site = method_site(*spec_.llm, spec_.kv_dtype);
  site.ordinals.clear();
  const auto method = make_method(coded, typical_prompt_, site);
  const std::string name = describe_method(coded.name).axes.at("tier");
  std::vector<LayerSpan> classes;
  for (std::size_t l = 0; l < sizes_->layer_classes(); ++l) {
    classes.push_back(sizes_->layer_class(l).layers);
  }
  outside_format_ =
      OutsideFormat{*as_composed(*method).parts().tier, name, in_, classes, roofline_};
}

std::string ServeContext::offload_note(bool has_own) const {
  if (!keeps_outside_) {
    return fmt::format("offload: {} reads its whole cache at every step: nothing is offloaded",
                       spec_.method.name);
  }
  const bool nvme = spec_.offload.to == OffloadTier::kNvme;
  std::string note = fmt::format(
      "offload: {} holds all entries of the layers that a step reads in part, HBM the entries that "
      "a step reads; ",
      nvme ? "NVMe" : "host memory");
  if (nvme) return note + "copies are not split into pages and have no cost per page";
  if (has_own) {
    return note +
           "copies have no cost per chunk; the method chooses which entries are placed there";
  }
  const std::int64_t page = page_of(*typical_);
  return note + fmt::format(
                    "keys and values of {} per head are fetched in copies of {}, which reach {} of "
                    "the link; large copies reach {}",
                    page == 1 ? "an entry" : fmt::format("{} entries", page), piece_,
                    host_rate(piece_), host_rate());
}

void ServeContext::start_paged(const ServeHooks& hooks) {
  bool wanted = spec_.scheduler.prefix_caching.value_or(
      stack_.prefix_caching.value_or(find_scheduler(scheduler_).prefix_caching));
  const bool has_stages = spec_.pipeline_parallel > 1;
  if (has_stages) {
    pipeline_ = make_pipeline(spec_, in_, roofline_, longest_, options_, hooks);
    startup_ = pipeline_->startup;
  } else {
    startup_ = engine_startup(in_, spec_.gpu->hbm_usable, longest_, options_);
    cost_ = hooks.cost ? hooks.cost(in_, roofline_) : mixed_iteration_cost(in_, roofline_);
  }
  if (!spec_.scheduler.prefix_caching && startup_->groups && startup_->groups->has_states()) {
    wanted = wanted && keeps_states_by_default(*parse_engine_version(stack_.version));
  }
  std::optional<GroupSizes> groups;
  const std::optional<VllmGroups>& of_model = has_stages ? pipeline_->groups : startup_->groups;
  if (of_model && spec_.method.name == "full" && !spec_.measured) {
    groups.emplace(*of_model, wanted, 0);
  }
  const IterationCost& cost = has_stages ? *pipeline_->costs.front() : *cost_;
  sizes_.emplace(in_, cost.layer_classes(), std::move(groups));
  // Groups are of the full cache, which has no holes to compact.
  if (sizes_->groups() != nullptr) stack_.lazy_compaction = false;
  if (has_stages) {
    pool_units_ = pipeline_->pool_units;
    held_unit_ = pipeline_->unit;
    resident_["weights"] = startup_->weights;
    notes_.push_back(
        fmt::format("a pipeline of {} stages with one batch in flight per stage: memory is that of "
                    "a GPU of the stage with the least room; stages pass on {} per token",
                    spec_.pipeline_parallel, pipeline_->row));
  } else {
    pool_units_ = sizes_->pool_units(startup_->kv_cache);
    held_unit_ = sizes_->unit();
  }
  if (spec_.speculation.is_on()) add_proposals(hooks);
  usable_ = startup_->limit();
  resident_["activations"] = startup_->activation;
  full_law_ = spec_.method.name == "full" && !spec_.measured && !sizes_->windowed() &&
              (sizes_->counts_blocks() || (sizes_->holds_unseen() && sizes_->plain()));
  moves_whole_ = spec_.cluster.prefill_replicas > 0 && !spec_.cluster.compress_before_transfer &&
                 spec_.method.name != "full";
  if (moves_whole_ && sizes_->windowed()) {
    throw InputError{
        fmt::format("cluster: compress_before_transfer: false is only for models whose layers all "
                    "attend to all tokens; {} has windows",
                    spec_.llm->name)};
  }
  if (moves_whole_) {
    notes_.push_back(
        "the prompt's whole cache is transferred and compressed at its destination; the method's "
        "time is counted at the replica that computes the prompt");
  }
  prefix_caching_ =
      wanted && (sizes_->groups() != nullptr || (sizes_->plain() && !sizes_->windowed()));
  if (const GroupSizes* sizes = sizes_->groups(); sizes != nullptr && prefix_caching_) {
    notes_.push_back(fmt::format(
        "prefixes are found in whole blocks of {} tokens, up to the point from which all {} groups "
        "of layers can continue{}",
        with_commas(sizes->block_tokens()), startup_->groups->groups.size(),
        sizes->state_ids() > 0 ? ": a state is kept where a prefill step ends on a whole block"
                               : ": windows hold the last blocks within their reach"));
  }
  if (wanted && !prefix_caching_) {
    notes_.push_back(
        "prefix caching is off: the layers' blocks do not hold the same tokens, or the method "
        "does not keep plain rows");
  }
  if (startup_->kv_cache <= Bytes{} || pool_units_ < 1) {
    cannot_start_ = fmt::format("no memory is left for a cache: {} are missing", startup_->missing);
  } else if (startup_->shortage() > Bytes{}) {
    cannot_start_ = fmt::format("{} (engine: memory_fraction)", shortage_text(*startup_));
  } else if (const std::string many = beyond_states(); !many.empty()) {
    cannot_start_ = many;
  } else if (find_scheduler(scheduler_).clips && full_law_ && !startup_->serves()) {
    notes_.push_back(
        fmt::format("{} shortens its longest sequence from {} tokens to the {} that its pool holds",
                    scheduler_, startup_->max_model_len, startup_->tokens));
    startup_->max_model_len = startup_->tokens;
    startup_->sequence = sizes_->unit() * pool_units_;
    startup_->max_concurrency = 1;
  } else if (!options_.longest_request && spec_.method.name == "full" && !startup_->serves()) {
    const auto settings = group_settings(in_, startup_->max_model_len);
    const std::int64_t longest =
        settings ? longest_request(llm_, *settings, startup_->blocks) : startup_->tokens;
    // vLLM's message at its start: v1/core/kv_cache_utils.py, check_enough_kv_cache_memory.
    cannot_start_ = fmt::format(
        "a sequence of max_model_len {} tokens takes {} of cache, but {} are available: the "
        "longest possible max_model_len is {} tokens (engine: max_model_len)",
        startup_->max_model_len, startup_->sequence, startup_->kv_cache, longest);
  }
  note_declarations();
  place_offloads();
  choose_codec();
  if (full_law_ || sizes_->groups() != nullptr) return;
  if (!stack_.lazy_compaction)
    notes_.push_back(
        "a method that drops entries frees blocks when the kept ones are compacted, which its cost "
        "includes; while a prompt is computed in chunks every layer holds all of it, and a method "
        "that compresses layer by layer writes only the kept entries of the last chunk");
  if (!typical_->ragged()) {
    notes_.push_back(
        "all heads of a layer hold the number of entries that the size law predicts for the layer");
  } else if (stack_.per_head_blocks) {
    notes_.push_back(
        "heads hold different numbers of entries: each has separate blocks, and attention reads "
        "its "
        "entries and waits for the longest head");
  } else {
    notes_.push_back(
        "heads hold different numbers of entries: a block has those of all heads of a layer and is "
        "freed when the longest head no longer uses it, and attention reads every head up to the "
        "longest");
  }
  if (stack_.lazy_compaction) {
    notes_.push_back(
        "dropped entries leave holes, which attention skips: a layer is rewritten if holes are "
        "more "
        "than a quarter of its blocks' contents and this frees a block");
  }
  notes_.push_back(
      "a preempted sequence is prefilled and compressed again together with its generated tokens, "
      "as one prompt");
}

/// vLLM refuses to start if more sequences may run than there are blocks, because each needs one
/// for its state, and if a step cannot end on a block. Sources: vLLM
/// v1/worker/gpu_model_runner.py, "max_num_seqs … exceeds available Mamba cache blocks";
/// config/vllm.py, "In Mamba cache align mode, block_size … must be <= max_num_batched_tokens".
std::string ServeContext::beyond_states() const {
  if (!startup_->groups || !startup_->groups->has_states()) return {};
  const std::int64_t step = spec_.scheduler.max_num_batched_tokens.value_or(stack_.prefill_chunk);
  const GroupSizes* groups = sizes_->groups();
  if (prefix_caching_ && groups != nullptr && groups->state_ids() > 0 && step > 0 &&
      groups->block_tokens() > step) {
    return fmt::format(
        "a block next to states has {} tokens, a step at most {}: no state is kept at its end "
        "(scheduler: max_num_batched_tokens, or prefix_caching false)",
        with_commas(groups->block_tokens()), with_commas(step));
  }
  // Graphs of decode steps are captured for this many sequences.
  if (!options_.cuda_graphs.value_or(true) || stack_.max_num_seqs <= startup_->blocks) return {};
  return fmt::format(
      "max_num_seqs {} exceeds the {} blocks of the pool, of which each sequence takes one for its "
      "state (engine: max_num_seqs)",
      with_commas(stack_.max_num_seqs), with_commas(startup_->blocks));
}

void ServeContext::note_declarations() {
  const std::vector<Request>& requests = spec_.requests->requests;
  const std::int64_t budget = resolve_limits(stack_, spec_.scheduler).tokens.value_or(0);
  if (scheduler_ == "trtllm" && !spec_.scheduler.chunked_prefill && budget > 0 &&
      longest_prompt(*spec_.requests) > budget) {
    notes_.push_back(
        fmt::format("prompts are longer than max_num_tokens {}: assumed to run with "
                    "--enable_chunked_prefill, without which TensorRT-LLM refuses them",
                    with_commas(budget)));
  }
  const bool reserves =
      scheduler_ == "sglang" ||
      (scheduler_ == "trtllm" && spec_.scheduler.policy.value_or("") != "max-utilization");
  const auto silent = std::count_if(requests.begin(), requests.end(),
                                    [](const Request& r) { return r.declared_tokens == 0; });
  if (reserves && silent > 0) {
    undeclared_ = silent;
    notes_.push_back(fmt::format(
        "{} of {} requests declare no output length (declared_tokens): {} assumes that each may "
        "reach the longest sequence, {} tokens{}",
        silent, requests.size(), scheduler_, startup_->max_model_len,
        stack_.max_model_len == 0 && options_.longest_request ? ", the longest of the workload"
                                                              : ""));
  }
  const bool turns = std::any_of(requests.begin(), requests.end(), [](const Request& r) {
    return r.after >= 0 && r.prefix_count > 0;
  });
  if (prefix_caching_ && turns && spec_.cluster.prefill_replicas > 0) {
    notes_.push_back(
        "prefix caching: prefill replicas do not hold the tokens that other replicas generated: "
        "the next turn of a conversation computes the tokens of the previous answer again");
  }
}

std::unique_ptr<Engine> ServeContext::make_engine(ServeState& state, std::int32_t replica,
                                                  std::size_t max_samples, ReplicaRole role) {
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
                   .options = options_,
                   .allocator = spec_.allocator};
    const bool beforehand = stack_.growth == CacheGrowth::kStatic && stack_.max_model_len == 0;
    return std::make_unique<StaticEngine>(state, replica, max_samples, std::move(one), footprints_,
                                          spec_.scheduler.order, batch,
                                          beforehand ? longest_request(*spec_.requests) : 0);
  }
  const std::int64_t units = pool_units_;
  state.max_stride = spec_.pipeline_parallel;
  const bool keeps_states =
      prefix_caching_ && sizes_->groups() != nullptr && sizes_->groups()->state_ids() > 0;
  const SchedulerContext site{.stack = &stack_,
                              .max_model_len = startup_->max_model_len,
                              .longest_prompt = longest_prompt(*spec_.requests),
                              .pool_units = units,
                              .block_tokens = sizes_->block_tokens(),
                              .block_units = sizes_->block_units(),
                              .state_block = keeps_states ? sizes_->block_tokens() : 0,
                              .max_states = startup_->pools ? startup_->pools->max_states() : 0,
                              .host_memory = spec_.host_memory + spec_.nvme.capacity,
                              .stages = spec_.pipeline_parallel,
                              .drafts = spec_.speculation.is_on() ? spec_.speculation.tokens : 0,
                              .exact_outputs = has_exact_outputs(*spec_.requests)};
  auto scheduler = hooks_.scheduler ? hooks_.scheduler(spec_.scheduler, site)
                                    : find_scheduler(scheduler_).make(spec_.scheduler, site);
  // A cache that is compressed after its transfer is held whole until then.
  const bool whole = full_law_ || (role == ReplicaRole::kPrefill && moves_whole_);
  EngineParts parts{
      .sizes = &*sizes_,
      .footprints = whole ? nullptr : &footprints_,
      .cost = pipeline_ ? pipeline_->costs.front().get() : cost_.get(),
      .startup = *startup_,
      .pool_units = units,
      .held_unit = held_unit_,
      .prefix_caching = prefix_caching_,
      .max_model_len = startup_->max_model_len,
      .longest_scored = longest_scored_prompt(in_, *startup_, startup_->max_model_len),
      .scoring = [this](std::int64_t prompt) { return scoring_excess(in_, *startup_, prompt); },
      .scored_rows = [this](std::int64_t tokens) { return scored_rows(in_, *startup_, tokens); },
      .scoring_room = scoring_room(*startup_),
      .clips = find_scheduler(scheduler_).clips,
      .resident = resident_,
      // Its GPUs share it equally.
      .host_memory = Bytes{spec_.host_memory.count() / spec_.tensor_parallel},
      .nvme = Bytes{spec_.nvme.capacity.count() / spec_.tensor_parallel},
      .swap = {.link = host_rate(),
               .write = spec_.nvme.write * (1.0 / spec_.tensor_parallel),
               .read = spec_.nvme.read * (1.0 / spec_.tensor_parallel),
               .pieces = host_rate(outside_format_.link(piece_))},
      .shares_host_link = cannot_start_.empty() && spec_.cluster.prefill_replicas > 0 &&
                          service_topology(spec_, host_rate()).shares_host_links,
      .keeps_outside = keeps_outside_,
      .offload = spec_.offload,
      .outside_format = outside_format_,
      .order = spec_.scheduler.order,
      .role = role,
      .schedules_ahead = stack_.schedules_ahead,
      .front_end = stack_.front_end,
      .drafts = spec_.speculation.is_on() ? spec_.speculation.tokens : 0,
      .draft_levels = spec_.speculation.levels(),
      .acceptance = spec_.speculation.acceptance,
      .seed = spec_.seed};
  if (pipeline_) {
    for (std::size_t i = 1; i < pipeline_->costs.size(); ++i) {
      parts.later_stages.push_back(pipeline_->costs[i].get());
    }
    parts.stage_row = pipeline_->row;
    parts.stage_link = pipeline_->link;
    parts.stage_latency = pipeline_->latency;
  }
  return std::make_unique<ContinuousEngine>(state, replica, max_samples, std::move(parts),
                                            std::move(scheduler), hooks_.observer);
}

std::int64_t ServeContext::capacity_tokens() const {
  if (startup_) return startup_->tokens;
  Bytes resident;
  for (const auto& [owner, bytes] : resident_) resident += bytes;
  const auto room = static_cast<double>(std::max<std::int64_t>(0, (usable_ - resident).count()));
  // In one sequence, which holds states and windows once.
  const CacheTerms terms = cache_terms(llm_, spec_.kv_dtype);
  const bool has_fixed = terms.state + terms.index_per_token > 0;
  if (!has_fixed) {
    return static_cast<std::int64_t>(room) / full_cache_bytes(llm_, 1, spec_.kv_dtype).count();
  }
  const double left = room - terms.state - terms.window;
  return static_cast<std::int64_t>(std::max(0.0, left) /
                                   std::max(1.0, terms.per_token + terms.index_per_token));
}

}  // namespace kvsim
