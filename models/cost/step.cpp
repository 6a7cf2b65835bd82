#include "models/cost/step.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/cost/cache_rows.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

const LayerSpec& layer_of(const CostInput& in, std::int32_t layer) {
  return in.llm->layers[static_cast<std::size_t>(layer)];
}

template <class Entries>
Entries entries(const std::optional<Entries>& law, const Method& method) {
  if (!law) {
    throw InputError{fmt::format(
        "method \"{}\" has no closed size law: what it keeps depends on the data, so a replay has "
        "to measure it",
        method.name())};
  }
  return *law;
}

}  // namespace

Dtype activation_dtype(Dtype weight_dtype) {
  return bits_of(weight_dtype) >= 16 ? weight_dtype : Dtype::kBf16;
}

std::int64_t experts_on(std::int64_t n_experts, std::int64_t ranks, std::int64_t rank) {
  return n_experts / ranks + (rank < n_experts % ranks ? 1 : 0);
}

PromptPart prompt_part(const CostInput& in, std::int32_t layer) {
  PromptPart part = in.method->prompt_part(layer);
  part.computed /= in.stack->prefill_context;
  return part;
}

PromptPart split_part(const CostInput& in) { return {.computed = 1.0 / in.stack->prefill_context}; }

ExpertShare expert_share(const CostInput& in, const MlpSpec& mlp, std::int64_t rows,
                         bool are_repeated) {
  const std::int64_t ranks = in.stack->expert_parallel;
  const std::int64_t both = std::min<std::int64_t>(ranks, in.tensor_parallel);
  const std::int64_t parts = in.stack->prefill_context;
  are_repeated = are_repeated && parts > 1;
  // Tokens are the same on all GPUs of a tensor-parallel group. Other groups have different tokens,
  // or the same ones if prompts are split over groups and the tokens are replicated.
  const std::int64_t groups = std::max({std::int64_t{1}, parts, ranks / in.tensor_parallel});
  const auto tokens = static_cast<double>(rows * (are_repeated ? 1 : groups));
  const auto chosen = static_cast<double>(rows * mlp.top_k);
  const double max = in.stack->expert_imbalance;
  const auto up = [](double x) { return static_cast<std::int64_t>(std::ceil(x)); };
  double here = chosen * max / static_cast<double>(both);
  if (ranks == 1 && !are_repeated) here *= static_cast<double>(parts);
  if (ranks > 1 && are_repeated) here /= static_cast<double>(groups);
  return {.experts = experts_on(mlp.n_experts, ranks, 0),
          .width = std::int64_t{mlp.d_ff} * both / (ranks == 1 ? parts : 1),
          .rows = up(here),
          .own = ranks == 1 ? rows * (are_repeated ? 1 : groups) : (rows + both - 1) / both,
          .tokens = tokens,
          .exchanged =
              chosen / static_cast<double>(both) * max * (1.0 - 1.0 / static_cast<double>(ranks))};
}

bool shares_experts(const Stack& stack) {
  return stack.expert_parallel > 1 || stack.prefill_context > 1;
}

Llm held_model(const CostInput& in) {
  Llm held = *in.llm;
  for (LayerSpec& layer : held.layers) {
    MlpSpec& mlp = layer.mlp;
    if (mlp.n_experts == 0) continue;
    const ExpertShare share = expert_share(in, mlp, 1);
    // The router stays whole: its rows for other GPUs' experts are counted unpacked.
    held.extra_parameters += std::int64_t{held.d_model} * (mlp.n_experts - share.experts);
    mlp.n_experts = static_cast<std::int32_t>(share.experts);
    mlp.d_ff = static_cast<std::int32_t>(share.width);
  }
  return held;
}

Bytes host_weights(const CostInput& in, std::int32_t layer) {
  if (in.stack == nullptr || in.stack->host_weights == 0) return {};
  Bytes all;
  visit_layer_matrices(
      *in.llm, layer_of(in, layer),
      [&](const MatrixPlace& place, std::int64_t rows, std::int64_t columns, std::int64_t count) {
        all += matrix_bytes(*in.llm, in.weights(), place, rows, columns, count);
      });
  return truncated<Bytes>(in.stack->host_weights * static_cast<double>(all.count()));
}

Bytes vision_weights(const CostInput& in) {
  if (in.stack == nullptr || !in.stack->loads_vision || !in.llm->vision) return {};
  constexpr std::int64_t kValue = 2;  // bytes: published quantizations keep it in 16 bits
  return Bytes{(kValue * vision_parameters(*in.llm->vision) + in.tensor_parallel - 1) /
               in.tensor_parallel};
}

Bytes weights_held(const CostInput& in) {
  if (in.measured_weights) return *in.measured_weights;
  if (in.stack == nullptr || !shares_experts(*in.stack)) {
    Bytes held = loaded_weight_bytes(*in.llm, in.weights());
    // Weights of the current layer are on the GPU, and those of the next layer if loading overlaps.
    Bytes largest;
    for (std::int32_t layer = 0; layer < in.llm->n_layers(); ++layer) {
      const Bytes away = host_weights(in, layer);
      held -= away;
      largest = std::max(largest, away);
    }
    const bool two = in.stack != nullptr && in.stack->overlaps_weights;
    return held + vision_weights(in) + largest * (two ? std::min(2, in.llm->n_layers()) : 1);
  }
  return loaded_weight_bytes(held_model(in), in.weights()) + vision_weights(in);
}

std::vector<OffloadedBytes> offloaded_bytes(const CostInput& in) {
  std::vector<OffloadedBytes> out;
  const auto add = [&](std::string_view name, std::string_view key, Bytes n) {
    if (n > Bytes{}) out.push_back({name, key, n});
  };
  add("CUDA context", "context", in.stack->context);
  if (in.tensor_parallel > 1 || shares_experts(*in.stack)) {
    add("buffers of collectives", "communication", in.stack->communication);
  }
  add("CUDA graphs", "graphs", in.stack->graphs);
  return out;
}

Bytes full_mask_bytes(const CostInput& in, std::int64_t tokens) {
  return allocator_rounded(in, Bytes{tokens * tokens});
}

std::int64_t rows_at_once(const CostInput& in, std::int64_t tokens) {
  const std::int64_t rows = in.batch * tokens;
  // An engine's budget applies to all GPUs that a prompt is split over.
  const std::int64_t parts = in.stack->prefill_context;
  const std::int64_t chunk = (in.stack->prefill_chunk + parts - 1) / parts;
  return tokens > 1 && chunk > 0 ? std::min(rows, chunk) : rows;
}

Product rows_product(const CostInput& in, std::int64_t tokens) {
  const std::int64_t held = rows_at_once(in, tokens);
  if (held < in.batch * tokens) return Product{}.times(held, "tokens at once");
  return Product{}.times(in.batch, "batch").times(tokens, "tokens");
}

std::vector<LayerGroup> layer_groups(const Llm& llm, const Method& method) {
  std::vector<LayerGroup> groups;
  // Formats other than plain rows treat the kept entries of the prompt separately, and each layer
  // keeps its own number.
  const bool apart = !method.plain_rows() && !method.has_equal_layers();
  std::int32_t kind_before = 0;
  for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
    const auto& layers = llm.layers;
    const auto i = static_cast<std::size_t>(l);
    if (apart) {
      groups.push_back({.first = l, .count = 1, .first_equal = l});
      continue;
    }
    const std::int32_t kind = method.layer_kind(l);
    if (!groups.empty() && kind == kind_before && layers[i - 1] == layers[i]) {
      ++groups.back().count;
    } else {
      const auto like = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& g) {
        return layers[static_cast<std::size_t>(g.first)] == layers[i] &&
               method.layer_kind(g.first) == kind;
      });
      groups.push_back({.first = l,
                        .count = 1,
                        .first_equal = static_cast<std::int32_t>(like - groups.begin())});
    }
    kind_before = kind;
  }
  return groups;
}

LayerCache layer_cache(const CostInput& in, std::int32_t layer, std::int64_t n) {
  return CacheRows{in, layer}.cache(n);
}

LayerCache cache_after_step(const CostInput& in, std::int32_t layer, const DecodeState& moment) {
  return CacheRows{in, layer}.cache_after_step(moment);
}

std::int64_t held_limit(const Stack& stack, const AttentionSpec& attention) {
  return stack.window_pools ? entry_limit(attention) : 0;
}

std::int64_t held_entries(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                          std::int64_t tokens) {
  const LayerSpec& spec = layer_of(in, layer);
  if (!caches_rows(spec)) return tokens;
  return within_limit(held_limit(*in.stack, spec.attention),
                      entries(in.method->entries_held(layer, prompt, tokens), *in.method));
}

DecodeState decode_moment(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                          std::int64_t tokens, std::int64_t before) {
  const LayerSpec& spec = layer_of(in, layer);
  if (!caches_rows(spec)) {
    return {.attended = attention_kind(spec.attention).visited(spec, tokens),
            .before = before,
            .after = tokens};
  }
  const AttentionSpec& attention = spec.attention;
  const auto [law, attended] = entries(in.method->step_entries(layer, prompt, tokens), *in.method);
  DecodeState moment{.attended = within_limit(attention, attended),
                     .before = before,
                     .after = within_limit(held_limit(*in.stack, attention), law)};
  if (in.stack->attends_allocated) {
    moment.attended = std::max(moment.attended, within_limit(attention, in.allocated));
  }
  KVSIM_CHECK(moment.after <= before + 1, "layer {} grows from {} to {} entries in one step", layer,
              before, moment.after);
  if (moment.after == before + 1) return moment;
  moment.evicts = held_limit(*in.stack, attention) == 0 ||
                  law < entries(in.method->entries_held(layer, prompt, tokens - 1), *in.method) + 1;
  const Compaction how = in.method->compaction();
  const bool in_place = !moment.evicts || ((how == Compaction::kSwap || how == Compaction::kRing) &&
                                           moment.after == before);
  moment.change = in_place ? CacheChange::kOverwrite : CacheChange::kRewrite;
  return moment;
}

std::vector<Tensor> resident_tensors(const CostInput& in, std::int64_t tokens) {
  std::vector<Tensor> out;
  const auto add = [&](std::string_view name, Owner owner, const Product& size) {
    out.push_back(
        {.name = name, .owner = owner, .bytes = allocator_rounded(in, size.bytes()), .size = size});
  };
  const auto rows = [&](std::int64_t width, const char* unit) {
    return rows_product(in, tokens).times(width, unit).in(activation_dtype(in.weight_dtype));
  };
  if (in.stack->keeps_inputs) {
    add("input embeddings", Owner::kActivations, rows(in.llm->d_model, ""));
  }
  if (in.stack->attention == AttentionExec::kEager && tokens > 1) {
    add("causal mask", Owner::kMask, rows(tokens, "tokens"));
  }
  return out;
}

namespace {

Seconds scheduling(const CostInput& in) {
  return in.stack->inter_step_overhead +
         in.stack->inter_step_per_sequence * static_cast<double>(in.batch);
}

}  // namespace

Seconds inter_step_overhead(const CostInput& in) {
  return in.stack->schedules_ahead ? Seconds{} : scheduling(in);
}

Seconds hidden_scheduling(const CostInput& in) {
  return in.stack->schedules_ahead ? scheduling(in) : Seconds{};
}

std::int32_t method_operators(const Method& method, const Stack& stack) {
  const bool fuses = !runs_by_operators(stack) && stack.attention == AttentionExec::kFused;
  return fuses ? method.extra_launches()
               : method.eager_operators(stack.attention == AttentionExec::kEager);
}

Seconds host_time(const CostInput& in, bool decode) {
  const double layers = in.llm->n_layers();
  const Seconds method = decode ? in.stack->host_per_launch *
                                      static_cast<double>(method_operators(*in.method, *in.stack)) *
                                      layers
                                : Seconds{};
  const Seconds layer = host_per_layer(*in.stack, decode ? in.batch : 0, !decode);
  return in.stack->host_per_step + layer * layers + method + hidden_scheduling(in);
}

double prefill_passes(const CostInput& in, std::int64_t prompt) {
  return prefill_passes(in, prompt, layer_groups(*in.llm, *in.method));
}

double prefill_passes(const CostInput& in, std::int64_t prompt,
                      std::span<const LayerGroup> groups) {
  double repeats = 0;
  for (const LayerGroup& group : groups) {
    if (!caches_rows(layer_of(in, group.first))) continue;
    const CacheRows rows{in, group.first};
    repeats = std::max(
        repeats,
        in.method->prefill_extra(group.first, rows.shape(), in.kv_dtype, prompt).prefill_repeats);
  }
  return 1 + repeats;
}

}  // namespace kvsim
