#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string_view word_of(CacheGrowth growth) {
  switch (growth) {
    case CacheGrowth::kStatic:
      return "static";
    case CacheGrowth::kExact:
      return "exact";
    case CacheGrowth::kConcatLayer:
      return "concat_layer";
    case CacheGrowth::kConcatAll:
      return "concat_all";
    case CacheGrowth::kPaged:
      return "paged";
  }
  return "unknown";
}
std::string_view word_of(AttentionExec attention) {
  switch (attention) {
    case AttentionExec::kFused:
      return "fused";
    case AttentionExec::kEager:
      return "eager";
    case AttentionExec::kMath:
      return "math";
  }
  return "unknown";
}
std::string_view sentence_of(AttentionExec attention) {
  switch (attention) {
    case AttentionExec::kFused:
      return "fused: no score matrix in memory";
    case AttentionExec::kEager:
      return "eager: score matrices in memory";
    case AttentionExec::kMath:
      return "math: fused in prompts; decode steps raise keys and values to fp32 and scale the "
             "keys, "
             "in copies";
  }
  return "unknown";
}
std::string_view sentence_of(FractionOf what) {
  switch (what) {
    case FractionOf::kAll:
      break;
    case FractionOf::kBeforeWeights:
      return "is free before the weights, for them and the cache";
    case FractionOf::kAfterWeights:
      return "the weights leave free, for the cache";
    case FractionOf::kFree:
      return "weights and activations leave free, for the cache";
  }
  return "the driver reports";
}
std::string_view sentence_of(CacheGrowth growth) {
  switch (growth) {
    case CacheGrowth::kStatic:
      return "allocated for its final length at the start";
    case CacheGrowth::kExact:
      return "grows in place by the stored entries";
    case CacheGrowth::kConcatLayer:
      return "each layer's keys, then its values, are copied into a longer tensor";
    case CacheGrowth::kConcatAll:
      return "each layer's keys and values are copied into longer tensors; the caller holds all "
             "old "
             "ones to the step's end";
    case CacheGrowth::kPaged:
      return "blocks of a pool set aside at the start";
  }
  return "unknown";
}
std::string_view yes_no(bool value) { return value ? "yes" : "no"; }

ordered_json reached_json(const Stack& stack) {
  ordered_json out = ordered_json::object();
  for (const auto& [family, rates] : stack.reached) {
    out[family] = {{"flops", rates.flops}, {"bandwidth", rates.bandwidth}};
    if (rates.elements_per_clock > 0) out[family]["elements_per_clock"] = rates.elements_per_clock;
  }
  return out;
}

ordered_json kernels_json(const Stack& stack) {
  ordered_json out = ordered_json::object();
  for (const auto& [family, whose] : stack.kernels) out[family] = whose;
  return out;
}

}  // namespace

ordered_json stack_json(const Stack& stack) {
  ordered_json out{
      {"name", stack.name},
      {"summary", stack.summary},
      {"growth", word_of(stack.growth)},
      {"attention", word_of(stack.attention)},
      {"logits", stack.logits == LogitPositions::kLast ? "last" : "all"},
      {"logits_fp32", stack.logits_fp32},
      {"expands_kv_heads", stack.expands_kv_heads},
      {"rounds_allocations", stack.rounds_allocations},
      {"keeps_inputs", stack.keeps_inputs},
      {"splits_keys", stack.splits_keys},
      {"splits_layers", stack.splits_layers},
      {"host_weights", stack.host_weights},
      {"overlaps_weights", stack.overlaps_weights},
      {"norm_launches", stack.norm_launches},
      {"rope_launches", stack.rope_launches},
      {"context_bytes", stack.context.count()},
      {"usable_fraction", stack.usable_fraction},
      {"fraction_of", word_of(stack.fraction_of)},
      {"launch_overhead_s", stack.launch_overhead.count()},
      {"host_per_layer_s", stack.host_per_layer.count()},
      {"eager_per_layer_s", stack.eager_per_layer.count()},
      {"host_per_step_s", stack.host_per_step.count()},
      {"host_per_launch_s", stack.host_per_launch.count()},
      {"block_tokens", stack.block_tokens},
      {"prefill_chunk", stack.prefill_chunk},
      {"max_num_seqs", stack.max_num_seqs},
      {"fused_projections", stack.fused_projections},
      {"full_causal_mask", stack.full_causal_mask},
      {"attends_allocated", stack.attends_allocated},
      {"score_passes", stack.score_passes},
      {"between_steps_s", stack.inter_step_overhead.count()},
      {"between_per_sequence_s", stack.inter_step_per_sequence.count()},
      {"schedules_ahead", stack.schedules_ahead},
      {"front_end",
       {{"latency_s", stack.front_end.latency.count()},
        {"request_s", stack.front_end.request.count()},
        {"prompt_token_s", stack.front_end.prompt_token.count()},
        {"sequence_s", stack.front_end.sequence.count()},
        {"token_s", stack.front_end.token.count()}}},
      {"cutoff",
       {{"step_s", stack.cutoff.step.count()}, {"bytes_per_logit", stack.cutoff.bytes_per_logit}}},
      {"attention_per_clock", stack.attention_per_clock},
      {"sampler_bytes", stack.sampler_bytes},
      {"loads_vision", stack.loads_vision},
      {"graphs_bytes", stack.graphs.count()},
      {"communication_bytes", stack.communication.count()},
      {"collective_latency_s", stack.collective_latency.count()},
      {"overlap", stack.overlap == Overlap::kMax ? "max" : "add"},
      {"reached", reached_json(stack)},
      {"kernels", kernels_json(stack)},
      {"sources", stack.sources}};
  if (stack.defaults) {
    out["engine"] = stack.defaults->engine;
    out["version"] = stack.version;
    out["versions"] = {stack.defaults->first, stack.defaults->last};
    out["usage"] = word_of(stack.usage);
    out["defaults"] = ordered_json::parse(stack.defaults->rules_json);
  }
  return out;
}

namespace {

std::string front_end_text(const FrontEndTimes& times) {
  return fmt::format(
      "{} to the engine; work of {} per request in {}, {} per prompt token, {} per streamed token",
      times.latency, times.request,
      times.turns == 1 ? "one turn" : fmt::format("{} turns", times.turns), times.prompt_token,
      times.token);
}

std::string cutoff_text(const CutoffTimes& times) {
  return fmt::format("{} per step, {:g} B per logit", times.step, times.bytes_per_logit);
}

/// Adds the values of a rule that are not engine options.
void add_other_values(const EngineValues& v, std::vector<std::string>& out) {
  const auto choose = [&](const std::optional<bool>& value, const char* yes, const char* no) {
    if (value) out.emplace_back(*value ? yes : no);
  };
  choose(v.schedules_ahead, "schedules ahead of the GPU", "schedules in step with the GPU");
  choose(v.reserves_full_prompt, "admits a prompt with room for all of it",
         "admits a prompt with room for its first chunk");
  choose(v.prefix_caching, "prefix caching", "no prefix caching");
  choose(v.window_pools, "pools for windows", "one pool of tokens");
  if (v.state_slots) {
    out.push_back(fmt::format("slots of recurrent states per request: {}", *v.state_slots));
  }
  if (v.state_sequences) out.push_back(fmt::format("of all requests: {}", *v.state_sequences));
  if (v.graph_sequences) {
    out.push_back(*v.graph_sequences > 0
                      ? fmt::format("graphs of up to {} sequences", *v.graph_sequences)
                      : "no bound of graphs");
  }
  choose(v.graph_padding, "steps padded to a graph's size", "graphs of exact sizes");
  choose(v.rescans_decodes, "scans of prompts include decodes", "scans of prompts only");
  choose(v.joint_attention, "one call of attention for prompts and decodes",
         "separate calls of attention for prompts and decodes");
  choose(v.eager_prompts, "prompts without graphs", "prompts as fast as with graphs");
  if (v.eager_per_layer) {
    out.push_back(fmt::format("{} to launch a layer without a graph", *v.eager_per_layer));
  }
  if (v.inter_step_overhead) out.push_back(fmt::format("{} between steps", *v.inter_step_overhead));
  if (v.inter_step_per_sequence) {
    out.push_back(fmt::format("{} per sequence between steps", *v.inter_step_per_sequence));
  }
  if (v.front_end) out.push_back("API server: " + front_end_text(*v.front_end));
  if (v.front_end_turns) {
    out.push_back(
        fmt::format("API server: {} turns of its event loop per request", *v.front_end_turns));
  }
  if (v.cutoff) out.push_back("top-k, top-p: " + cutoff_text(*v.cutoff));
  if (v.attention_per_clock) {
    out.push_back(
        fmt::format("decode attention of {:g} flops per SM and clock", *v.attention_per_clock));
  }
  if (v.prompt_attention_per_clock) {
    out.push_back(fmt::format("prompts' attention of {:g} flops per SM and clock",
                              *v.prompt_attention_per_clock));
  }
}

/// The values that a rule sets, under the engine's option names.
std::string values_text(const EngineDefaults& defaults, const DefaultsRule& rule) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view key, const std::string& value) {
    const std::string_view option = defaults.option(key);
    out.push_back(fmt::format("{} {}", option.empty() ? key : option, value));
  };
  const EngineValues& v = rule.values;
  if (v.prefill_chunk) {
    add("prefill_chunk", *v.prefill_chunk > 0 ? fmt::format("{}", *v.prefill_chunk)
                                              : std::string{"the model's length"});
  }
  if (v.long_prefill_chunk && *v.long_prefill_chunk > 0) {
    add("long_prefill_chunk", fmt::format("{} beyond 32,768 positions", *v.long_prefill_chunk));
  }
  if (v.max_num_seqs) add("max_num_seqs", fmt::format("{}", *v.max_num_seqs));
  if (v.usable_fraction) add("usable_fraction", fmt::format("{:g}", *v.usable_fraction));
  if (v.block_tokens) add("block_tokens", fmt::format("{}", *v.block_tokens));
  if (v.counts_graphs) add("counts_graphs", *v.counts_graphs ? "1" : "0");
  if (v.sampler_bytes) {
    out.push_back(
        fmt::format("{:g} B per logit of sampling in the profiling run", *v.sampler_bytes));
  }
  if (v.reserve) {
    out.push_back(fmt::format(
        "{}: the rest after a reserve of {}, plus {} per token of a pass, {} per sequence of a "
        "graph, {} per GPU",
        defaults.option("usable_fraction"), v.reserve->base, v.reserve->per_prefill_token,
        v.reserve->per_graph_sequence, v.reserve->per_gpu));
  }
  if (v.reserve_graphs) out.push_back(fmt::format("{} reserved for graphs", *v.reserve_graphs));
  if (v.min_reserve) out.push_back(fmt::format("at least {} reserved", *v.min_reserve));
  if (v.reserve_drafts) out.push_back(fmt::format("{} reserved for drafts", *v.reserve_drafts));
  add_other_values(v, out);
  return fmt::format("{}", fmt::join(out, ", "));
}

std::string version_range(const DefaultsRule& rule) {
  const auto word = [](const EngineVersion& v) {
    return v[2] > 0 ? fmt::format("{}.{}.{}", v[0], v[1], v[2]) : fmt::format("{}.{}", v[0], v[1]);
  };
  if (rule.from && rule.before) {
    return fmt::format("from {}, before {}", word(*rule.from), word(*rule.before));
  }
  if (rule.from) return "from " + word(*rule.from);
  if (rule.before) return "before " + word(*rule.before);
  return "all versions";
}

/// Defaults by version and GPU: for each value the first matching line applies.
std::string defaults_text(const Stack& stack, std::size_t width) {
  if (!stack.defaults) return "";
  const EngineDefaults& defaults = *stack.defaults;
  std::string out =
      paragraph(fmt::format("\nDefaults of {} {} to {}; for each value the first matching line "
                            "applies. {}@VERSION selects a version, {}:llm the offline class{}.",
                            defaults.engine, defaults.first, defaults.last, stack.name, stack.name,
                            defaults.distinguishes(EngineUsage::kTensorrt)
                                ? fmt::format(", {}:tensorrt a compiled engine", stack.name)
                                : ""),
                width);
  for (const DefaultsRule& rule : defaults.rules) {
    const std::string where = rule.conditions();
    out += fmt::format(
        "- {}", paragraph(fmt::format("{}{}{}: {}", version_range(rule), where.empty() ? "" : "; ",
                                      where, values_text(defaults, rule)),
                          width, 2));
  }
  return out;
}

}  // namespace

std::string stack_text(const Stack& stack, std::size_t width) {
  Facts facts;
  facts.add("what", stack.summary);
  facts.add("cache", std::string{sentence_of(stack.growth)});
  facts.add("attention", std::string{sentence_of(stack.attention)});
  facts.add("logits", fmt::format("of {}{}",
                                  stack.logits == LogitPositions::kLast ? "the last position"
                                                                        : "all positions",
                                  stack.logits_fp32 ? ", upcast to fp32" : ""));
  if (stack.score_passes > 0) {
    facts.add("score passes",
              stack.score_passes == 1
                  ? "1 operator over them before the softmax: the mask"
                  : fmt::format("{} operators scale and mask them before the softmax",
                                stack.score_passes));
  }
  facts.add("KV heads", stack.expands_kv_heads ? "repeated to the query heads before attention"
                                               : "read as stored");
  facts.add("allocations", stack.rounds_allocations ? "rounded to blocks of 512 B" : "exact");
  facts.add("holds inputs", std::string{yes_no(stack.keeps_inputs)});
  facts.add("splits keys", fmt::format("{} (decode attention of few heads fills the GPU)",
                                       yes_no(stack.splits_keys)));
  facts.add("several GPUs", stack.splits_layers ? "each holds whole layers, one computes at a time"
                                                : "share every layer by tensor parallelism");
  facts.add("launches", fmt::format("{} per norm, {} per rotation of Q and K", stack.norm_launches,
                                    stack.rope_launches));
  if (stack.growth == CacheGrowth::kPaged) {
    facts.add("blocks", fmt::format("of {} tokens", stack.block_tokens));
  }
  if (stack.prefill_chunk > 0) {
    facts.add("prefill", fmt::format("in passes of at most {} tokens", stack.prefill_chunk));
  }
  if (stack.max_num_seqs > 0) {
    facts.add("sequences", fmt::format("at most {} at once", stack.max_num_seqs));
  }
  facts.add("projections", stack.fused_projections ? "Q, K and V in one product, gate and up in one"
                                                   : "one product each");
  if (stack.attends_allocated) facts.add("attends", "to all of the cache's room, masked");
  if (stack.front_end != FrontEndTimes{}) {
    facts.add("API server", front_end_text(stack.front_end));
  }
  if (stack.schedules_ahead) facts.add("scheduling", "a step ahead of the GPU, hidden behind it");
  if (stack.inter_step_overhead > Seconds{}) {
    facts.add("between steps", fmt::format("{}, and {} per sequence", stack.inter_step_overhead,
                                           stack.inter_step_per_sequence));
  }
  if (stack.cutoff != CutoffTimes{}) {
    facts.add("top-k, top-p", cutoff_text(stack.cutoff));
  }
  if (stack.attention_per_clock > 0) {
    facts.add("decode attention",
              fmt::format("{:g} flops per SM and clock", stack.attention_per_clock));
  }
  if (stack.full_causal_mask) facts.add("mask", "boolean, of the full length squared");
  facts.add("context", fmt::format("{}", stack.context));
  if (stack.graphs > Bytes{}) facts.add("CUDA graphs", fmt::format("{}", stack.graphs));
  if (stack.communication > Bytes{}) {
    facts.add("collectives",
              fmt::format("{} of buffers, {} each", stack.communication, stack.collective_latency));
  }
  if (stack.sampler_bytes > 0) {
    facts.add("dummy sampling", fmt::format("{:g} B per logit at start-up", stack.sampler_bytes));
  }
  if (stack.loads_vision) facts.add("vision", "loads a model's vision encoder");
  if (stack.overlap == Overlap::kAdd) {
    facts.add("overlap", "an operator's arithmetic and traffic add up");
  }
  for (const auto& [family, rates] : stack.reached) {
    facts.add("reached, " + family,
              rates.elements_per_clock > 0
                  ? fmt::format("{:g} elements per SM and clock", rates.elements_per_clock)
                  : fmt::format("{:g} of the arithmetic rate, {:g} of the bandwidth", rates.flops,
                                rates.bandwidth));
  }
  for (const auto& [family, whose] : stack.kernels) {
    facts.add("kernels, " + family, whose == "*" ? "of the best-known stack" : whose);
  }
  facts.add("usable", fmt::format("{:g} of the memory that {}", stack.usable_fraction,
                                  sentence_of(stack.fraction_of)));
  facts.add("time a launch", fmt::format("{}", stack.launch_overhead));
  facts.add("host time",
            fmt::format("{} per layer, {} per step, {} per operator of a method",
                        stack.host_per_layer, stack.host_per_step, stack.host_per_launch));
  return stack.name + "\n" + facts.str(width) + defaults_text(stack, width) +
         sources_text(stack.sources, width);
}

}  // namespace kvsim
