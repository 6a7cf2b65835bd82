#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/units/check.hpp"
#include "sim/batch/assumptions.hpp"
#include "sim/batch/replay_allocations.hpp"
#include "sim/batch/score_chunks.hpp"
#include "sim/batch/split_run.hpp"
#include "sim/batch/static_state.hpp"
#include "sim/memory/pool.hpp"
#include "sim/network/expert_network.hpp"

namespace kvsim {
StaticRun::StaticRun(const StaticSpec& spec, const StaticOptions& options)
    : llm_{tensor_shard(*spec.llm, spec.tensor_parallel,
                        spec.options.context_parallel.value_or(1))},
      stack_{with_expert_network(
          with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel}),
          *spec.gpu)},
      spec_{spec},
      explains_{options.time_terms},
      finds_intervals_{options.intervals},
      allocations_{options.allocations},
      calibration_{spec.calibration != nullptr ? *spec.calibration : Calibration{}},
      in_{.llm = &llm_,
          .method = spec.method.get(),
          .stack = &stack_,
          .weight_dtype = spec.weight_dtype,
          .kv_dtype = spec.kv_dtype,
          .batch = spec.batch,
          .prompt = spec.prompt_tokens,
          .weight_format = spec.weight_format,
          .tensor_parallel = spec.tensor_parallel,
          .vocab_size = spec.llm->vocab_size,
          .hand_overs = spec.hand_overs,
          .measured_weights = spec.options.weights},
      roofline_{*spec.gpu, stack_, calibration_},
      n_layers_{spec.llm->n_layers()},
      is_static_{is_preallocated(stack_)},
      static_end_{std::max(spec.prompt_tokens + spec.output_tokens,
                           stack_.growth == CacheGrowth::kStatic ? stack_.max_model_len : 0)},
      caches_(static_cast<std::size_t>(n_layers_)),
      held_(static_cast<std::size_t>(n_layers_)),
      score_rows_{spec.prompt_tokens} {
  check_expert_parallel(*spec.llm, *spec.gpu, stack_, spec.tensor_parallel);
  check_dealt(stack_, *spec.llm, *spec.method, spec.kv_dtype);
  check_split_prompts(stack_, *spec.llm, *spec.method);
  in_.allocated = stack_.growth == CacheGrowth::kStatic ? static_end_ : 0;
  spec_.llm = &llm_;
  spec_.stack = &stack_;
  const auto points = static_cast<std::int64_t>(options.max_samples) - 2;
  stride_ = std::max<std::int64_t>(1, (spec.output_tokens + points - 1) / points);
  result_.usable_hbm = fraction_bytes(stack_, spec.gpu->hbm_usable);
  if (stack_.growth == CacheGrowth::kPaged) {
    result_.startup = engine_startup(in_, spec.gpu->hbm_usable,
                                     spec.prompt_tokens + spec.output_tokens, spec.options);
    result_.usable_hbm = result_.startup->limit();
  }
  result_.calibration_id = calibration_.id;
  result_.calibration = provenance();
  result_.notes = assumptions(spec_, in_);
  result_.exceeded_num_seqs = exceeded_num_seqs(stack_, spec_.batch).value_or("");
}

StaticResult StaticRun::run() {
  if (load() && prefill()) result_.prefill_time = Seconds{prefill_time_};
  if (result_.prefill_time && decode()) {
    result_.decode_time = Seconds{decode_time_};
    if (spec_.output_tokens > 0) {
      const double tokens =
          static_cast<double>(spec_.batch) * static_cast<double>(spec_.output_tokens);
      result_.throughput_tok_s = tokens / (prefill_time_ + decode_time_);
      result_.decode_tok_s = tokens / decode_time_;
    }
  }
  finish();
  return std::move(result_);
}

PeakLocation StaticRun::place_of(RunPart part, std::int32_t layer, std::int64_t step) const {
  return {.part = part,
          .layer = layer,
          .tokens = spec_.prompt_tokens + step,
          .score_rows = score_rows_};
}

void StaticRun::put_cache(std::int32_t layer, const LayerCache& cache) {
  caches_[static_cast<std::size_t>(layer)] = cache;
  holdings_[Owner::kKvCache] += cache.kv();
  holdings_[Owner::kSideData] += cache.side;
}

void StaticRun::take_cache(std::int32_t layer) {
  LayerCache& cache = caches_[static_cast<std::size_t>(layer)];
  holdings_[Owner::kKvCache] -= cache.kv();
  holdings_[Owner::kSideData] -= cache.side;
  cache = {};
}

LayerCache StaticRun::stored(std::int32_t layer, std::int64_t entries) const {
  return layer_cache(in_, layer, entries);
}

std::int64_t StaticRun::placed_entries(std::int32_t layer) const {
  // Room for the maximum length: size laws grow until the end or until they reach a budget.
  return std::max(held_entries(in_, layer, spec_.prompt_tokens, spec_.prompt_tokens),
                  held_entries(in_, layer, spec_.prompt_tokens, static_end_));
}

void StaticRun::note_peak(const OwnerBytes& holdings, const PeakLocation& place) {
  const Bytes total = holdings.total();
  const bool decodes = place.part == RunPart::kDecodeLayer || place.part == RunPart::kDecodeLogits;
  Bytes& of_phase = decodes ? result_.decode_peak : result_.prefill_peak;
  of_phase = std::max(of_phase, total);
  if (total > result_.peak_hbm) {
    result_.peak_hbm = total;
    peak_holdings_ = holdings;
    result_.peak_phase = decodes ? "decode" : "prefill";
    peak_place_ = place;
    peak_base_.reset();
  }
}

bool StaticRun::fits(const AlivePeak& alive) {
  return holdings_.total() + alive.bytes <= result_.usable_hbm;
}

bool StaticRun::blocks_suffice() {
  const EngineStartup& start = *result_.startup;
  // Passes of this run may be smaller than a full one; each pass is checked when it runs.
  if (start.kv_cache > Bytes{} && start.graphs > start.graphs_room()) {
    result_.oom = OomEvent{.step = 0,
                           .tokens = 0,
                           .phase = "load",
                           .what = "CUDA graphs next to the KV pool",
                           .requested = start.graphs,
                           .free = start.graphs_room(),
                           .owners = holdings_.named()};
    return false;
  }
  const auto shortage = pool_shortage(in_, static_end_, start.kv_cache);
  if (!shortage) return true;
  const bool decodes = shortage->fitting >= spec_.prompt_tokens;
  result_.oom = OomEvent{
      .step = decodes ? shortage->fitting + 1 - spec_.prompt_tokens : 0,
      .tokens = shortage->fitting + 1,
      .phase = "load",
      .what = fmt::format("cache blocks beyond token {} of each sequence", shortage->fitting),
      .requested = shortage->requested,
      .free = start.kv_cache,
      .owners = holdings_.named()};
  return false;
}

bool StaticRun::load() {
  Hbm hbm{result_.usable_hbm};
  const auto place = [&](Owner owner, Bytes n, const char* what) {
    const auto got = hbm.allocate(name_of(owner), n);
    if (got) {
      holdings_[owner] += n;
      note_peak(holdings_, {});
      return true;
    }
    result_.oom = OomEvent{.step = 0,
                           .tokens = 0,
                           .phase = "load",
                           .what = what,
                           .requested = got.error().requested,
                           .free = got.error().free,
                           .owners = got.error().owners};
    return false;
  };
  Bytes outside;
  for (const OffloadedBytes& part : offloaded_bytes(in_)) outside += part.bytes;
  if (!place(Owner::kContext, outside, "CUDA context")) return false;
  if (!place(Owner::kWeights, weights_held(in_), "weights")) {
    return false;
  }
  if (result_.startup && !blocks_suffice()) return false;
  if (stack_.full_causal_mask &&
      !place(Owner::kMask, full_mask_bytes(in_, static_end_), "full causal mask")) {
    return false;
  }
  for (std::int32_t l = 0; is_static_ && l < n_layers_; ++l) {
    const LayerCache cache = stored(l, placed_entries(l));
    LayerCache& placed = caches_[static_cast<std::size_t>(l)];
    if (!place(Owner::kKvCache, cache.kv(), "static cache")) return false;
    placed = {.keys = cache.keys, .values = cache.values, .side = {}, .other = cache.other};
    if (!place(Owner::kSideData, cache.side, "static side data")) return false;
    placed.side = cache.side;
  }
  return true;
}

bool StaticRun::prefill_layers() {
  const std::int64_t prompt = spec_.prompt_tokens;
  const bool per_layer = spec_.method->prefill_peak() == PrefillPeak::kPerLayer;
  const bool may_retry = spec_.method->needs().retries_smaller_chunks;
  const std::vector<Tensor> residents = resident_tensors(in_, prompt);
  const auto add_residents = [&](Owner owner) {
    for (const Tensor& t : residents) {
      if (t.owner != owner) continue;
      const Bytes free = result_.usable_hbm - holdings_.total();
      if (t.bytes > free) {
        result_.oom = OomEvent{.step = 0,
                               .tokens = prompt,
                               .phase = "prefill",
                               .what = std::string{t.name},
                               .requested = t.bytes,
                               .free = free,
                               .owners = holdings_.named()};
        return false;
      }
      holdings_[owner] += t.bytes;
    }
    return true;
  };
  if (!add_residents(Owner::kMask)) return false;

  std::int32_t layer = 0;
  bool embeddings_held = false;
  for (const LayerGroup& group : layer_groups(*spec_.llm, *spec_.method)) {
    std::optional<OpGraph> graph;
    AlivePeak alive;
    GraphCost cost;
    for (layer = group.first; layer < group.first + group.count;) {
      // In the first layer the embeddings are the layer's own input.
      if (layer == 1 && !std::exchange(embeddings_held, true) &&
          !add_residents(Owner::kActivations)) {
        return false;
      }
      const std::int64_t kept = held_entries(in_, layer, prompt, prompt);
      if (!graph || kept != held_[static_cast<std::size_t>(layer - 1)]) {
        graph =
            prefill_layer(in_, layer, {.prompt = prompt, .kept = kept, .score_rows = score_rows_});
        alive = graph->alive_peak();
        cost = evaluate(*graph, roofline_);
      }
      if (!fits(alive)) {
        OomEvent refused = event(*graph, place_of(RunPart::kPrefillLayer, layer));
        const bool by_scores = graph->op(alive.at).family == OpFamily::kScorePass;
        if (may_retry && by_scores && score_rows_ > 1) {
          score_rows_ = fewer_score_rows(score_rows_);
          graph.reset();
          continue;
        }
        result_.oom = std::move(refused);
        return false;
      }
      OwnerBytes now = holdings_;
      now.add(alive.by_owner);
      note_peak(now, place_of(RunPart::kPrefillLayer, layer));
      prefill_device_ += cost.time;
      result_.flops += cost.flops;
      result_.at_peak += cost.at_peak;
      result_.bytes_moved += cost.bytes;
      held_[static_cast<std::size_t>(layer)] = kept;
      layer_score_rows_.push_back(score_rows_);
      if (!is_static_) put_cache(layer, stored(layer, per_layer ? kept : prompt));
      ++layer;
    }
  }
  if (score_rows_ < prompt) {
    result_.notes.push_back(fmt::format(
        "prefill scores were chunked to {} query rows after refused allocations; the time of the "
        "refused attempts is not counted",
        score_rows_));
  }
  return true;
}

bool StaticRun::compress_all_layers() {
  if (spec_.method->prefill_peak() == PrefillPeak::kPerLayer) return true;
  for (std::int32_t l = 0; l < n_layers_; ++l) {
    const std::int64_t kept = held_[static_cast<std::size_t>(l)];
    if (kept == spec_.prompt_tokens) continue;
    const OpGraph graph = compress_layer(in_, l, spec_.prompt_tokens, kept);
    const AlivePeak alive = graph.alive_peak();
    const LayerCache before = caches_[static_cast<std::size_t>(l)];
    if (!is_static_) take_cache(l);
    if (!fits(alive)) {
      result_.oom = event(graph, place_of(RunPart::kCompression, l));
      put_cache(l, before);
      return false;
    }
    OwnerBytes now = holdings_;
    now.add(alive.by_owner);
    note_peak(now, place_of(RunPart::kCompression, l));
    const GraphCost cost = evaluate(graph, roofline_);
    prefill_device_ += cost.time;
    result_.flops += cost.flops;
    result_.at_peak += cost.at_peak;
    result_.bytes_moved += cost.bytes;
    if (!is_static_) put_cache(l, stored(l, kept));
  }
  return true;
}

bool StaticRun::prefill() {
  const OwnerBytes loaded = holdings_;
  const auto around = [&](RunPart part, const OpGraph& graph) {
    const AlivePeak alive = graph.alive_peak();
    if (!fits(alive)) {
      result_.oom = event(graph, place_of(part, -1));
      return false;
    }
    OwnerBytes now = holdings_;
    now.add(alive.by_owner);
    note_peak(now, place_of(part, -1));
    const GraphCost cost = evaluate(graph, roofline_);
    prefill_device_ += cost.time;
    result_.flops += cost.flops;
    result_.at_peak += cost.at_peak;
    result_.bytes_moved += cost.bytes;
    return true;
  };
  Bytes uncompressed;
  for (std::int32_t l = 0; is_static_ && l < n_layers_; ++l) {
    uncompressed += prompt_rows_beyond(in_, l, spec_.prompt_tokens, placed_entries(l));
  }
  holdings_[Owner::kKvCache] += uncompressed;
  if (!around(RunPart::kEmbedding, embed_prompt(in_, spec_.prompt_tokens))) return false;
  if (!prefill_layers()) return false;
  if (!around(RunPart::kPromptLogits, output_logits(in_, spec_.prompt_tokens))) return false;
  // Activations and mask of the prompt are released; caches remain.
  holdings_[Owner::kActivations] = loaded.by_owner[static_cast<std::size_t>(Owner::kActivations)];
  holdings_[Owner::kMask] = loaded.by_owner[static_cast<std::size_t>(Owner::kMask)];
  if (!compress_all_layers()) return false;
  holdings_[Owner::kKvCache] -= uncompressed;
  if (const double passes = prefill_passes(in_, spec_.prompt_tokens); passes > 1) {
    prefill_device_ = prefill_device_ * passes;
    result_.flops *= passes;
    result_.at_peak = result_.at_peak * passes;
    result_.bytes_moved *= passes;
    result_.notes.push_back(fmt::format(
        "the method makes {} passes over the prompt; each is charged the time of the first",
        passes));
  }
  prefill_time_ =
      (std::max(prefill_device_, host_time(in_, false)) + inter_step_overhead(in_)).count();
  sample(0, result_.prefill_peak, Seconds{prefill_time_});
  return true;
}

bool StaticRun::decode() {
  compiled_.emplace(in_, roofline_);
  for (const Tensor& t : resident_tensors(in_, 1)) resident_ += t.bytes;
  for (std::int64_t step = 1; step <= spec_.output_tokens; ++step) {
    if (!decode_one(step)) return false;
  }
  return true;
}

bool StaticRun::decode_one(std::int64_t step) {
  const std::int64_t tokens = spec_.prompt_tokens + step;
  const auto moment_of = [&](std::int32_t layer) {
    return decode_moment(in_, layer, spec_.prompt_tokens, tokens,
                         held_[static_cast<std::size_t>(layer)]);
  };
  const auto windowed = [&](std::int32_t layer) {
    return is_bounded(spec_.llm->layers[static_cast<std::size_t>(layer)].attention);
  };
  const Method& law = *spec_.method;
  const bool equal_layers = law.has_equal_layers();
  GraphCost total = compiled_->around();
  Bytes total_held = holdings_.total() + resident_;
  Bytes peak;
  const auto& groups = compiled_->groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::int32_t end = groups[g].first + groups[g].count;
    // Layers of one group with equal states form a run: they cost the same and change the cache
    // equally.
    for (std::int32_t first = groups[g].first; first < end;) {
      const DecodeState moment = moment_of(first);
      std::int32_t next = end;
      if (!equal_layers) {
        const auto held = law.entries_held(first, spec_.prompt_tokens, tokens);
        const auto attended = law.entries_attended(first, spec_.prompt_tokens, tokens);
        const auto joins = [&](std::int32_t l) {
          return held_[static_cast<std::size_t>(l)] == moment.before &&
                 law.entries_held(l, spec_.prompt_tokens, tokens) == held &&
                 law.entries_attended(l, spec_.prompt_tokens, tokens) == attended &&
                 (!windowed(first) || moment_of(l) == moment);
        };
        for (next = first + 1; next < end && joins(next);) ++next;
      }

      const CompiledLayer& layer = compiled_->layer(g, moment);
      const GraphCost cost = layer.cost(moment);
      const Bytes alive = layer.alive_peak(moment);
      const LayerCache before =
          is_static_ ? LayerCache{} : caches_[static_cast<std::size_t>(first)];
      const LayerCache after = is_static_ ? LayerCache{} : stored(first, moment.after);
      const LayerCache old = cache_after_step(in_, first, moment);
      const Bytes growth = after.total() + old.total() - before.total();
      const std::int64_t last = next - 1 - first;
      // If caches grow, the last layer has the peak, else the first.
      const std::int64_t highest = growth > Bytes{} ? last : 0;
      const Bytes run_peak = total_held - before.total() + growth * highest + alive;
      if (run_peak > result_.usable_hbm) {
        std::int32_t l = first;
        for (; total_held - before.total() + alive <= result_.usable_hbm; ++l) {
          take_cache(l);
          put_cache(l, after);
          holdings_[Owner::kConcatCopy] += old.total();
          total_held += growth;
        }
        if (!is_static_) take_cache(l);
        holdings_[Owner::kActivations] += resident_;
        PeakLocation place = place_of(RunPart::kDecodeLayer, l, step);
        place.moment = moment;
        result_.oom = event(decode_layer(in_, l, moment), place);
        if (!is_static_) put_cache(l, before);
        return false;
      }
      peak = std::max(peak, run_peak);
      if (run_peak > result_.peak_hbm) {
        result_.peak_hbm = run_peak;
        peak_place_ =
            place_of(RunPart::kDecodeLayer, first + static_cast<std::int32_t>(highest), step);
        peak_place_.moment = moment;
        peak_base_ = holdings_;
        (*peak_base_)[Owner::kKvCache] += after.kv() * highest - before.kv() * (highest + 1);
        (*peak_base_)[Owner::kSideData] += after.side * highest - before.side * (highest + 1);
        (*peak_base_)[Owner::kConcatCopy] += old.total() * highest;
      }
      const std::int64_t n = last + 1;
      total.time += cost.time * static_cast<double>(n);
      total.flops += cost.flops * static_cast<double>(n);
      total.at_peak += cost.at_peak * static_cast<double>(n);
      total.bytes += cost.bytes * static_cast<double>(n);
      for (std::int32_t l = first; l < next; ++l) {
        held_[static_cast<std::size_t>(l)] = moment.after;
        if (!is_static_) caches_[static_cast<std::size_t>(l)] = after;
      }
      holdings_[Owner::kKvCache] += (after.kv() - before.kv()) * n;
      holdings_[Owner::kSideData] += (after.side - before.side) * n;
      holdings_[Owner::kConcatCopy] += old.total() * n;
      total_held += growth * n;
      first = next;
    }
  }
  const Bytes head_peak = total_held + compiled_->around_peak();
  if (head_peak > result_.usable_hbm) {
    holdings_[Owner::kActivations] += resident_;
    result_.oom = event(output_logits(in_, 1), place_of(RunPart::kDecodeLogits, -1, step));
    return false;
  }
  if (head_peak > result_.peak_hbm) {
    result_.peak_hbm = head_peak;
    peak_place_ = place_of(RunPart::kDecodeLogits, -1, step);
    peak_base_ = holdings_;
  }
  holdings_[Owner::kConcatCopy] = Bytes{};  // the caller releases the old caches
  peak = std::max(peak, head_peak);
  result_.decode_peak = std::max(result_.decode_peak, peak);

  const Seconds time = std::max(total.time, compiled_->host()) + inter_step_overhead(in_);
  decode_time_ += time.count();
  result_.flops += total.flops;
  result_.at_peak += total.at_peak;
  result_.bytes_moved += total.bytes;
  sample(step, peak, time);
  return true;
}

StaticResult run_static(const StaticSpec& spec, const StaticOptions& options) {
  KVSIM_CHECK(
      spec.llm != nullptr && spec.gpu != nullptr && spec.stack != nullptr && spec.method != nullptr,
      "a static run has no model, GPU, stack or method");
  KVSIM_CHECK(spec.batch >= 1 && spec.prompt_tokens >= 1 && spec.output_tokens >= 0,
              "batch {} and prompt {} at least 1, output {} at least 0", spec.batch,
              spec.prompt_tokens, spec.output_tokens);
  KVSIM_CHECK(options.max_samples >= 3, "a timeline of {} samples", options.max_samples);
  StaticSpec as_run = spec;
  if (spec.stack->masks_evicted) as_run.method = masked(spec.method);
  return splits_layers(as_run) ? run_split(as_run, options) : StaticRun{as_run, options}.run();
}

}  // namespace kvsim
