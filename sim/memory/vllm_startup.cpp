#include "sim/memory/vllm_startup.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "models/cost/cache_rows.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/method.hpp"
#include "models/units/check.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMinBatchedTokens = 2048;  // vllm config.py: SchedulerConfig

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Keys and values of one block of a layer, not rounded by an allocator: blocks are rows of a pool.
Bytes block_bytes(const CostInput& in, std::int32_t layer) {
  const AttentionSpec& a = in.llm->layers[static_cast<std::size_t>(layer)].attention;
  const Bytes recorded = recorded_bytes(a, in.stack->block_tokens, in.kv_dtype);
  if (!in.method->fixed_rows() || recorded == Bytes{}) return recorded;
  CostInput one = in;
  one.batch = 1;
  one.prompt = 0;
  const CacheRows rows{one, layer};
  const auto of = [&](std::int64_t entries) { return rows.keys(entries) + rows.values(entries); };
  // The second block: scales of a head are not part of blocks.
  const Bytes stored = of(2 * in.stack->block_tokens) - of(in.stack->block_tokens);
  return stored > Bytes{} ? stored : recorded;  // a layer that the method does not compress
}

/// Bytes of a layer other than such rows: of a sequence of `tokens` tokens, and of a further block
/// of tokens.
struct OtherBytes {
  Bytes sequence, block;
};
OtherBytes other_bytes(const CostInput& in, std::int32_t layer, std::int64_t tokens) {
  double held = 0, grows = 0;
  for (const CacheItem& item :
       items_without_rows(in.llm->layers[static_cast<std::size_t>(layer)], in.kv_dtype)) {
    held += item.held(tokens);
    grows += item.per_token() * static_cast<double>(in.stack->block_tokens);
  }
  return {.sequence = truncated<Bytes>(std::ceil(held)),
          .block = truncated<Bytes>(std::ceil(grows))};
}

/// Peak of one layer's pass over `tokens` tokens, excluding its cache.
Bytes layer_peak(const CostInput& in, std::int64_t tokens) {
  CostInput one = in;
  one.batch = 1;
  one.prompt = 0;
  Stack whole = *in.stack;
  whole.prefill_chunk = 0;
  whole.prefill_context = 1;  // each GPU profiles a whole pass
  one.stack = &whole;
  Bytes peak;
  for (const LayerGroup& group : layer_groups(*in.llm, *in.method)) {
    const OpGraph graph =
        prefill_layer(one, group.first, {.prompt = tokens, .kept = tokens, .score_rows = tokens});
    peak = std::max(peak, graph.alive_peak().bytes);
  }
  return peak;
}

/// Bytes of the method's own score matrices of `rows` query rows over `prompt` keys, in the layer
/// with the largest.
Bytes score_matrices(const CostInput& in, std::int64_t prompt, std::int64_t rows) {
  CostInput one = in;
  one.batch = 1;
  one.prompt = prompt;
  Bytes max;
  for (const LayerGroup& group : layer_groups(*in.llm, *in.method)) {
    const OpGraph graph =
        prefill_layer(one, group.first, {.prompt = prompt, .kept = prompt, .score_rows = rows});
    Bytes sum;  // all are held at one operator
    for (const Tensor& t : graph.tensors()) {
      if (t.owner == Owner::kScores) sum += t.bytes;
    }
    max = std::max(max, sum);
  }
  return max;
}

}  // namespace

namespace {

/// Bytes beyond those of the profiling run.
Bytes excess(const CostInput& in, const EngineStartup& startup, std::int64_t prompt,
             std::int64_t rows) {
  const Bytes profiled = score_matrices(in, startup.pass_tokens, startup.pass_tokens);
  return std::max(Bytes{}, score_matrices(in, prompt, rows) - profiled);
}

/// A measured activation peak is assumed to include the method's additions.
bool needs_room(const CostInput& in, const EngineStartup& startup) {
  return in.method->needs().prompt_scores != PromptScoreClass::kNone &&
         !startup.activation_measured;
}

/// Returns the largest n in [0, max] that fits; 0 always fits.
template <class Fits>
std::int64_t last_fitting(std::int64_t max, const Fits& fits) {
  if (fits(max)) return max;
  std::int64_t good = 0, bad = max;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

Bytes times(double factor, Bytes bytes) {
  return truncated<Bytes>(std::floor(factor * static_cast<double>(bytes.count())));
}

}  // namespace

Bytes EngineStartup::remaining_cache(Bytes weights_taken, Bytes non_torch_taken,
                                     Bytes activation_taken) const {
  const auto share = [&](Bytes free) { return free > Bytes{} ? times(fraction, free) : free; };
  switch (fraction_of) {
    case FractionOf::kBeforeWeights:
      return share(total - non_torch_taken) - weights_taken;
    case FractionOf::kAfterWeights:
      return share(total - non_torch_taken - weights_taken);
    case FractionOf::kFree:
      return share(total - non_torch_taken - weights_taken - activation_taken - graphs);
    case FractionOf::kAll:
      break;
  }
  return times(fraction, total) - weights_taken - non_torch_taken - activation_taken -
         (counts_graphs ? graphs : Bytes{});
}

double EngineStartup::demand_ratio() const {
  if (total <= Bytes{}) return std::numeric_limits<double>::infinity();
  const bool before = fraction_of == FractionOf::kAll || fraction_of == FractionOf::kBeforeWeights;
  const double wanted = static_cast<double>(missing.count()) / (before ? fraction : 1) +
                        static_cast<double>(shortage().count());
  const double demand_ratio = 1 + wanted / static_cast<double>(total.count());
  return starts() ? demand_ratio : std::max(demand_ratio, std::nextafter(1.0, 2.0));
}

std::string shortage_text(const EngineStartup& startup) {
  return fmt::format("the cache's pool leaves {} for activations and CUDA graphs, which take {}",
                     startup.non_kv_bytes() - startup.shortage(), startup.non_kv_bytes());
}

std::string state_limit_text(const EngineStartup& startup) {
  if (startup.groups && startup.groups->has_states()) {
    return fmt::format(
        "max_num_seqs of at most {}: the pool has this number of blocks, and each sequence takes "
        "one for its state",
        with_commas(startup.blocks));
  }
  if (!startup.pools) return {};
  for (const EnginePool& pool : startup.pools->pools) {
    if (!pool.holds_states) continue;
    return fmt::format(
        "at most {} sequences run at once: the pool of states has {} slots, of which "
        "each may take {}",
        with_commas(pool.capacity / startup.pools->slots), with_commas(pool.capacity),
        startup.pools->slots);
  }
  return {};
}

Bytes scoring_excess(const CostInput& in, const EngineStartup& startup, std::int64_t prompt) {
  return excess(in, startup, prompt, std::min(prompt, startup.pass_tokens));
}

Bytes scoring_room(const EngineStartup& startup) {
  return std::max(Bytes{}, startup.activation - startup.layer_activation) +
         std::max(Bytes{}, startup.total - startup.usable -
                               (startup.counts_graphs ? Bytes{} : startup.graphs));
}

std::int64_t scored_rows(const CostInput& in, const EngineStartup& startup, std::int64_t prompt) {
  const std::int64_t max = std::min(prompt, startup.pass_tokens);
  if (!needs_room(in, startup)) return max;
  const Bytes room = scoring_room(startup);
  return last_fitting(max,
                      [&](std::int64_t rows) { return excess(in, startup, prompt, rows) <= room; });
}

std::int64_t longest_scored_prompt(const CostInput& in, const EngineStartup& startup,
                                   std::int64_t max) {
  if (!needs_room(in, startup)) return max;
  const Bytes room = scoring_room(startup);
  return last_fitting(
      max, [&](std::int64_t prompt) { return scoring_excess(in, startup, prompt) <= room; });
}

namespace {

/// Returns whether all layers hold every token, or all have the same window.
bool has_equal_layers(const Llm& llm) {
  return std::all_of(llm.layers.begin(), llm.layers.end(), [&](const LayerSpec& l) {
    return l.state.kind == StateKind::kNone && l.attention.o_groups == 0 &&
           l.attention.n_heads > 0 && l.attention.index.n_heads == 0 && !l.attention.shares_cache &&
           l.attention == llm.layers.front().attention;
  });
}

/// Returns the pools by kind of layer; nullopt if the engine has one pool, or its layers are equal.
std::optional<EnginePools> pools_of(const CostInput& in, const EngineStartup& startup) {
  const Stack& stack = *in.stack;
  if (!stack.defaults || has_equal_layers(*in.llm)) return std::nullopt;
  if (stack.defaults->engine == "SGLang") {
    return sglang_pools(*in.llm,
                        {.kv_dtype = in.kv_dtype,
                         .state_slots = stack.state_slots,
                         .state_sequences = stack.state_sequences,
                         .window_pools = stack.window_pools,
                         .page_tokens = stack.block_tokens},
                        startup.kv_cache);
  }
  if (stack.defaults->engine == "TensorRT-LLM") {
    return trtllm_pools(*in.llm,
                        {.kv_dtype = in.kv_dtype,
                         .max_num_seqs = stack.max_num_seqs,
                         .max_model_len = startup.max_model_len,
                         .block_tokens = stack.block_tokens},
                        startup.kv_cache);
  }
  return std::nullopt;
}

}  // namespace

std::optional<VllmGroupSettings> group_settings(const CostInput& in, std::int64_t max_model_len) {
  const Stack& stack = *in.stack;
  if (!stack.defaults || stack.defaults->engine != "vLLM") return std::nullopt;
  // vLLM PR 17996 (June 2025): layers with a window have separate groups.
  constexpr EngineVersion kFirst{0, 9, 2};
  const auto release = parse_engine_version(stack.version);
  if (!release || *release < kFirst || has_equal_layers(*in.llm)) return std::nullopt;
  VllmGroupSettings out{.kv_dtype = in.kv_dtype, .release = *release};
  if (in.method->fixed_rows()) out.format = in.method;
  out.max_model_len = max_model_len;
  if (stack.prefill_chunk > 0) out.max_num_batched_tokens = stack.prefill_chunk;
  // The engine's default is 16; longer blocks are set by the user.
  constexpr std::int64_t kDefaultBlock = 16;
  const std::int64_t block = stack.block_tokens / stack.context_parallel;
  if (block != kDefaultBlock) out.block_tokens = block;
  out.context_parallel = stack.context_parallel;
  out.schedules_ahead = stack.schedules_ahead;
  out.keeps_states = keeps_states_by_default(*release);
  return out;
}

void EngineStartup::hold(VllmGroups of, Bytes id) {
  block = id;
  blocks = kv_cache.count() / id.count();
  const VllmCapacity capacity = capacity_of_blocks(of, blocks, max_model_len);
  tokens = capacity.tokens;
  sequence = id * of.request_blocks;
  max_concurrency = capacity.concurrency;
  of.block_id = id;
  groups = std::move(of);
}

EngineStartup startup_memory(const CostInput& in, Bytes total, std::int64_t run_tokens,
                             const StackOptions& measured) {
  const Stack& stack = *in.stack;
  KVSIM_CHECK(stack.growth == CacheGrowth::kPaged, "the start-up of stack {}, which has no pool",
              stack.name);
  EngineStartup out{
      .total = total, .fraction = stack.usable_fraction, .fraction_of = stack.fraction_of};
  out.counts_graphs = stack.counts_graphs;
  out.settings = stack.settings;
  out.weights = weights_held(in);
  for (const OffloadedBytes& part : offloaded_bytes(in)) {
    if (part.key == "graphs") {
      out.graphs += part.bytes;
    } else {
      out.non_torch += part.bytes;
    }
  }
  out.max_model_len = stack.max_model_len > 0 ? stack.max_model_len : run_tokens;
  const std::int64_t batched = stack.prefill_chunk > 0
                                   ? stack.prefill_chunk
                                   : std::max(out.max_model_len, kMinBatchedTokens);
  const Dtype dtype = activation_dtype(in.weight_dtype);
  const Bytes hidden = bytes_of(batched * in.llm->d_model, dtype);
  const std::int64_t vocab = in.vocab_size > 0 ? in.vocab_size : in.llm->vocab_size;
  const double logits = static_cast<double>(stack.max_num_seqs) * static_cast<double>(vocab);
  out.sampling_activation = hidden + truncated<Bytes>(std::ceil(logits * stack.sampler_bytes));
  out.pass_tokens = batched;
  out.layer_activation = layer_peak(in, batched);
  out.activation_measured = measured.activation.has_value();
  if (const auto& vision = in.llm->vision;
      vision && stack.loads_vision && stack.fraction_of == FractionOf::kAll) {
    const std::int64_t images = std::max<std::int64_t>(1, batched / vision->image_tokens);
    const std::int64_t tokens = images * vision->image_tokens;
    out.vision_activation = vision_peak(*vision, tokens, in.tensor_parallel);
    out.vision_outputs = vision_outputs(*vision, tokens);
  }
  out.activation = measured.activation.value_or(
      std::max(out.vision_activation,
               out.vision_outputs + std::max(out.layer_activation, out.sampling_activation)));

  const Bytes left = out.remaining_cache(out.weights, out.non_torch, out.activation);
  out.missing = std::max(Bytes{}, Bytes{} - left);
  out.kv_cache = std::max(Bytes{}, left);
  out.usable = stack.fraction_of == FractionOf::kAll ? times(stack.usable_fraction, total) : total;
  return out;
}

EngineStartup engine_startup(const CostInput& in, Bytes total, std::int64_t run_tokens,
                             const StackOptions& measured) {
  EngineStartup out = startup_memory(in, total, run_tokens, measured);
  const Stack& stack = *in.stack;
  if (const auto settings = group_settings(in, out.max_model_len)) {
    VllmGroups groups = vllm_groups(*in.llm, *settings);
    const Bytes id = groups.block_id;
    out.hold(std::move(groups), id);
    return out;
  }
  if ((out.pools = pools_of(in, out))) {
    for (const EnginePool& pool : out.pools->pools) {
      if (!pool.holds_states) out.block += pool.unit * stack.block_tokens;
    }
    out.tokens = out.pools->tokens();
    out.blocks = out.tokens / stack.block_tokens;
    out.sequence = out.pools->request_bytes(out.max_model_len);
    out.max_concurrency = out.pools->concurrency(out.max_model_len);
    return out;
  }
  const std::int64_t blocks_of_length = divide_up(out.max_model_len, stack.block_tokens);
  bool has_other = false;
  for (std::int32_t layer = 0; layer < in.llm->n_layers(); ++layer) {
    const Bytes one = block_bytes(in, layer);
    out.block += one;
    const std::int64_t limit =
        held_limit(stack, in.llm->layers[static_cast<std::size_t>(layer)].attention);
    std::int64_t blocks = blocks_of_length;
    if (limit > 0) {
      // A pass may add a chunk before the window releases blocks; the window may start within a
      // block.
      blocks = std::min(blocks, divide_up(limit - 1 + out.pass_tokens, stack.block_tokens) + 1);
    }
    out.sequence += one * blocks;
    const OtherBytes other = other_bytes(in, layer, blocks_of_length * stack.block_tokens);
    out.sequence += other.sequence;
    out.block += other.block;
    has_other = has_other || other.sequence > Bytes{};
  }
  out.blocks = out.block > Bytes{} ? out.kv_cache.count() / out.block.count() : 0;
  out.tokens = out.blocks * stack.block_tokens;
  const Bytes pool = has_other ? out.kv_cache : out.block * out.blocks;
  out.max_concurrency =
      static_cast<double>(pool.count()) / static_cast<double>(out.sequence.count());
  // States take no blocks: tokens are counted as in requests of full length (vLLM since mid 2026).
  if (has_other) {
    out.tokens = static_cast<std::int64_t>(
        std::floor(out.max_concurrency * static_cast<double>(out.max_model_len)));
  }
  return out;
}

}  // namespace kvsim
