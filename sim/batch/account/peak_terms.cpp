#include "sim/batch/account/peak_terms.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "models/cost/cache_rows.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/product.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/memory/pool.hpp"

namespace kvsim {
namespace {

std::string with_rounding(const std::string& text, Bytes payload, Bytes charged) {
  if (charged == payload) return text;
  return fmt::format("{} + {} B rounding", text, with_commas((charged - payload).count()));
}

/// The source of a tensor's size.
std::string source_of(const CostInput& in, Owner owner, std::string_view tensor) {
  const auto stack = [&](std::string_view key) {
    return fmt::format("stack {}: {}", in.stack->name, key);
  };
  const auto method = [&](std::string_view what) {
    return fmt::format("method {}: {}", in.method->name(), what);
  };
  const bool eager = in.stack->attention != AttentionExec::kFused;
  switch (owner) {
    case Owner::kContext:
      return stack(tensor);
    case Owner::kWeights:
      if (in.measured_weights) return "engine: weights";
      return in.llm->source.empty() ? fmt::format("model {}", in.llm->name) : in.llm->source;
    case Owner::kKvCache: {
      for (const MethodInfo& info : builtin_methods()) {
        if (info.name == in.method->name()) return method("holds " + info.size_law);
      }
      return method("its size law");
    }
    case Owner::kSideData:
      return method("side data");
    case Owner::kConcatCopy:
      return stack("growth");
    case Owner::kCompaction:
      return method("compaction");
    case Owner::kKvExpansion:
      return stack(tensor == "repeated keys and values" ? "expands_kv_heads" : "attention");
    case Owner::kMask:
      return stack(tensor == "full_causal_mask" ? tensor : "attention");
    case Owner::kScores:
      return eager && !tensor.starts_with("copy") && tensor != "score row"
                 ? stack("attention")
                 : method("scores it needs");
    case Owner::kLogits:
      return stack(tensor.starts_with("fp32") ? "logits_fp32" : "logits");
    case Owner::kActivations:
      break;
  }
  if (tensor == "norm intermediate") return stack("norm_launches");
  if (tensor.starts_with("rotated")) return stack("rope_launches");
  if (tensor == "input embeddings" || (tensor == "layer input" && in.stack->keeps_inputs)) {
    return stack("keeps_inputs");
  }
  return fmt::format("shape of {}", in.llm->name);
}

/// Collects terms and checks that they sum to the bytes of their owners.
class Terms {
 public:
  explicit Terms(const PeakInput& in) : in_{*in.cost} {}

  void add(Owner owner, std::string what, Bytes bytes, std::string formula,
           std::string_view tensor = "") {
    if (bytes == Bytes{}) return;
    terms_.push_back({.owner = std::string{name_of(owner)},
                      .what = std::move(what),
                      .bytes = bytes,
                      .formula = std::move(formula),
                      .source = source_of(in_, owner, tensor)});
  }

  void add_tensor(const Tensor& tensor, std::int32_t layer) {
    std::string what{tensor.name};
    if (layer >= 0) what += fmt::format(" of layer {}", layer);
    add(tensor.owner, std::move(what), tensor.bytes,
        with_rounding(tensor.size.text(), tensor.size.bytes(), tensor.bytes), tensor.name);
  }

  [[nodiscard]] std::vector<PeakTerm> checked(const Owners& owners) && {
    std::stable_sort(terms_.begin(), terms_.end(),
                     [](const auto& a, const auto& b) { return a.owner < b.owner; });
    Owners sums;
    for (const PeakTerm& term : terms_) sums[term.owner] += term.bytes;
    for (const auto& [owner, n] : owners) {
      KVSIM_CHECK(sums[owner] == n, "the terms of {} sum to {} B, it holds {} B", owner,
                  sums[owner].count(), n.count());
    }
    KVSIM_CHECK(sums.size() == owners.size(), "terms of {} owners, {} hold memory", sums.size(),
                owners.size());
    return std::move(terms_);
  }

 private:
  const CostInput& in_;
  std::vector<PeakTerm> terms_;
};

std::string vision_formula(const VisionEncoder& vision, std::int32_t ranks) {
  return fmt::format("{} parameters x 2 B{}", with_commas(vision_parameters(vision)),
                     ranks > 1 ? fmt::format(" / {} GPUs", ranks) : "");
}

std::string weights_formula(const CostInput& in) {
  const Llm llm = shares_experts(*in.stack) ? held_model(in) : *in.llm;
  const auto all = parameters(llm);
  if (in.measured_weights) return fmt::format("{} B", with_commas(in.measured_weights->count()));
  if (in.stack->host_weights > 0) {  // excluding those in host memory
    return fmt::format("{} B", with_commas(weights_held(in).count()));
  }
  const bool as_published = llm.unpacked_dtype && in.weight_dtype == llm.published_dtype;
  if (in.weight_format != nullptr || as_published) {
    std::int64_t packed = 0;
    Bytes packed_bytes;
    const auto add = [&](const MatrixPlace& place, std::int64_t rows, std::int64_t columns,
                         std::int64_t count) {
      if (packing_of(llm, in.weights(), place) == nullptr) return;
      packed += rows * columns * count;
      packed_bytes += matrix_bytes(llm, in.weights(), place, rows, columns, count);
    };
    visit_outer_matrices(llm, add);
    for (const LayerSpec& layer : llm.layers) visit_layer_matrices(llm, layer, add);
    return fmt::format(
        "{} B of {} {} parameters with their scales + {}", with_commas(packed_bytes.count()),
        with_commas(packed),
        in.weight_format != nullptr ? std::string{in.weight_format->name} : published_formats(llm),
        Product{}
            .times(all - packed, "other parameters")
            .in(in.weight_format != nullptr ? in.weight_dtype
                                            : dense_weight_dtype(llm, in.weight_dtype))
            .text());
  }
  const Dtype dense = dense_weight_dtype(llm, in.weight_dtype);
  if (dense == in.weight_dtype) {
    return Product{}.times(all, "parameters").in(in.weight_dtype).text();
  }
  const std::int64_t routed = routed_expert_parameters(llm);
  return fmt::format("{} + {} + {}",
                     Product{}.times(routed, "parameters of experts").in(in.weight_dtype).text(),
                     Product{}.times(mxfp4_scales(routed), "scales").in_bytes(Bytes{1}).text(),
                     Product{}.times(all - routed, "other parameters").in(dense).text());
}

/// Cache entries that the running graph does not hold; nullopt: none, or held by it.
std::optional<std::int64_t> entries_outside(const PeakInput& in, const PeakLocation& place,
                                            std::int32_t layer) {
  const CostInput& cost = *in.cost;
  if (in.static_caches != nullptr) {
    return std::max(held_entries(cost, layer, in.prompt, in.prompt),
                    held_entries(cost, layer, in.prompt, in.static_end));
  }
  const bool per_layer = cost.method->prefill_peak() == PrefillPeak::kPerLayer;
  const auto at = [&](std::int64_t tokens) { return held_entries(cost, layer, in.prompt, tokens); };
  switch (place.part) {
    case RunPart::kLoad:
    case RunPart::kEmbedding:
      return std::nullopt;
    case RunPart::kPrefillLayer:
      if (layer >= place.layer) return std::nullopt;
      return per_layer ? at(in.prompt) : in.prompt;
    case RunPart::kPromptLogits:
      return per_layer ? at(in.prompt) : in.prompt;
    case RunPart::kCompression:
      if (layer == place.layer) return std::nullopt;
      return layer < place.layer ? at(in.prompt) : in.prompt;
    case RunPart::kDecodeLayer:
      if (layer == place.layer) return std::nullopt;
      return at(layer < place.layer ? place.tokens : place.tokens - 1);
    case RunPart::kDecodeLogits:
      return at(place.tokens);
  }
  return std::nullopt;
}

/// Caches of equal layers with equal numbers of entries, as one term for keys and values and one
/// for the method's side data.
void add_caches(const PeakInput& in, const PeakLocation& place, Terms& terms) {
  const CostInput& cost = *in.cost;
  using Key = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t, std::int64_t,
                         std::int64_t, std::int64_t, std::int64_t>;
  struct Group {
    std::int32_t first = 0;
    std::int64_t layers = 0;
    std::int64_t entries = 0;
    LayerCache cache;
    Bytes prompts;  // rows of prompts that are not compressed yet, of one layer
  };
  const bool prefills = place.part != RunPart::kLoad && place.part != RunPart::kDecodeLayer &&
                        place.part != RunPart::kDecodeLogits;
  std::map<Key, Group> groups;
  for (std::int32_t l = 0; l < cost.llm->n_layers(); ++l) {
    const auto entries = entries_outside(in, place, l);
    if (!entries) continue;
    const AttentionWork work =
        attention_work(cost.llm->layers[static_cast<std::size_t>(l)].attention);
    // The allocation of a static cache may be refused halfway.
    const LayerCache cache = in.static_caches != nullptr
                                 ? (*in.static_caches)[static_cast<std::size_t>(l)]
                                 : layer_cache(cost, l, *entries);
    const Bytes prompts = prefills && in.static_caches != nullptr
                              ? prompt_rows_beyond(cost, l, in.prompt, *entries)
                              : Bytes{};
    Group& group =
        groups[{*entries, work.rows, work.key_width, work.row_value_width, cache.keys.count(),
                cache.side.count(), cache.other.count(), prompts.count()}];
    if (group.layers++ == 0) group.first = l;
    group.entries = *entries;
    group.cache = cache;
    group.prompts = prompts;
  }
  const PromptRows rows = prompt_rows(cost, in.prompt);
  for (const auto& each : groups) {
    const Group& group = each.second;
    const AttentionWork work =
        attention_work(cost.llm->layers[static_cast<std::size_t>(group.first)].attention);
    const CacheRows stored{cost, group.first};
    const auto start = [&] { return Product{}.times(group.layers, "layers"); };
    const std::string layers =
        fmt::format("of {} x {} entries",
                    group.layers == 1 ? fmt::format("layer {}", group.first)
                                      : fmt::format("{} layers", group.layers),
                    with_commas(group.entries));
    const Bytes kv = (group.cache.keys + group.cache.values) * group.layers;
    if (!stored.plain()) {
      const Product p =
          start()
              .times(cost.batch, "batch")
              .in_bytes(Bytes{(stored.keys(group.entries) + stored.values(group.entries)).count() /
                              cost.batch});
      terms.add(Owner::kKvCache,
                fmt::format("keys and values {}, as the method stores them", layers), kv,
                with_rounding(p.text(), p.bytes(), kv));
    } else if (work.is_latent) {
      const Product p = stored.keys_size(group.entries, start());
      terms.add(Owner::kKvCache, fmt::format("latents {}", layers), kv,
                with_rounding(p.text(), p.bytes(), kv));
    } else if (work.key_width == work.row_value_width) {
      const Product p =
          stored.keys_size(group.entries, Product{}.times(2).times(group.layers, "layers"));
      terms.add(Owner::kKvCache, fmt::format("keys and values {}", layers), kv,
                with_rounding(p.text(), p.bytes(), kv));
    } else {
      const Product k = stored.keys_size(group.entries, start());
      const Product v = stored.values_size(group.entries, start());
      terms.add(Owner::kKvCache, fmt::format("keys and values {}", layers), kv,
                with_rounding(k.text() + " + " + v.text(), k.bytes() + v.bytes(), kv));
    }
    const Bytes other = group.cache.other * group.layers;
    const Product items = stored.other_size(group.entries, start());
    terms.add(Owner::kKvCache, fmt::format("states, windows and index {}", layers), other,
              with_rounding(items.text(), items.bytes(), other));
    if (group.prompts > Bytes{}) {
      const Product p = start()
                            .times(rows.sequences, "prompts")
                            .in_bytes(Bytes{group.prompts.count() / rows.sequences});
      const Bytes all = group.prompts * group.layers;
      terms.add(Owner::kKvCache,
                fmt::format("up to {} entries before compression", with_commas(rows.entries)), all,
                with_rounding(p.text(), p.bytes(), all));
    }
    const Bytes side = group.cache.side * group.layers;
    if (side == Bytes{}) continue;
    const Product p = stored.side_size(group.entries, start());
    terms.add(Owner::kSideData, fmt::format("side data {}", layers), side,
              with_rounding(p.text(), p.bytes(), side));
  }
}

/// Old caches that the caller holds until the end of a decode step.
void add_old_caches(const PeakInput& in, const PeakLocation& place, Terms& terms) {
  const CostInput& cost = *in.cost;
  const bool decodes = place.part == RunPart::kDecodeLayer || place.part == RunPart::kDecodeLogits;
  if (cost.stack->growth != CacheGrowth::kConcatAll || !decodes) return;
  const std::int32_t end = place.part == RunPart::kDecodeLayer ? place.layer : cost.llm->n_layers();
  std::map<std::pair<std::int64_t, Bytes>, std::int64_t> layers;  // by entries and bytes
  for (std::int32_t l = 0; l < end; ++l) {
    const DecodeState moment = decode_moment(cost, l, in.prompt, place.tokens,
                                             held_entries(cost, l, in.prompt, place.tokens - 1));
    ++layers[{moment.before, cache_after_step(cost, l, moment).total()}];
  }
  for (const auto& [old, n] : layers) {
    const auto& [entries, bytes] = old;
    terms.add(Owner::kConcatCopy,
              fmt::format("old keys and values of {} layers x {} entries", n, with_commas(entries)),
              bytes * n, fmt::format("{} layers x {} B", n, with_commas(bytes.count())));
  }
}

/// Tensors that outlive graphs: the mask and, after the first layer, the embeddings.
void add_residents(const PeakInput& in, const PeakLocation& place, Terms& terms) {
  const CostInput& cost = *in.cost;
  const bool decodes = place.part == RunPart::kDecodeLayer || place.part == RunPart::kDecodeLogits;
  const bool prefills =
      place.part == RunPart::kPrefillLayer || place.part == RunPart::kPromptLogits;
  if (!decodes && !prefills) return;
  for (const Tensor& tensor : resident_tensors(cost, decodes ? 1 : in.prompt)) {
    const bool past_first =
        place.part == RunPart::kPrefillLayer ? place.layer > 0 : cost.llm->n_layers() > 1;
    if (tensor.owner == Owner::kActivations && prefills && !past_first) continue;
    terms.add_tensor(tensor, -1);
  }
}

}  // namespace

OpGraph graph_at(const PeakInput& in, const PeakLocation& place) {
  const CostInput& cost = *in.cost;
  const auto kept = [&] { return held_entries(cost, place.layer, in.prompt, in.prompt); };
  switch (place.part) {
    case RunPart::kEmbedding:
      return embed_prompt(cost, in.prompt);
    case RunPart::kPrefillLayer:
      return prefill_layer(cost, place.layer,
                           {.prompt = in.prompt, .kept = kept(), .score_rows = place.score_rows});
    case RunPart::kPromptLogits:
      return output_logits(cost, in.prompt);
    case RunPart::kCompression:
      return compress_layer(cost, place.layer, in.prompt, kept());
    case RunPart::kDecodeLayer:
      return decode_layer(cost, place.layer, place.moment);
    case RunPart::kDecodeLogits:
      return output_logits(cost, 1);
    case RunPart::kLoad:
      break;
  }
  KVSIM_CHECK(false, "no graph runs while the model is loaded");
  return {};
}

std::vector<PeakTerm> peak_terms(const PeakInput& in, const PeakLocation& place,
                                 const Owners& owners) {
  const CostInput& cost = *in.cost;
  Terms terms{in};
  const auto holds = [&](Owner owner) { return owners.contains(std::string{name_of(owner)}); };
  if (holds(Owner::kContext)) {
    for (const OffloadedBytes& part : offloaded_bytes(cost)) {
      terms.add(Owner::kContext, std::string{part.name}, part.bytes,
                fmt::format("{} B", with_commas(part.bytes.count())), part.key);
    }
  }
  if (holds(Owner::kWeights)) {
    const Bytes vision = cost.measured_weights ? Bytes{} : vision_weights(cost);
    terms.add(Owner::kWeights, "weights", weights_held(cost) - vision, weights_formula(cost));
    if (vision > Bytes{}) {
      terms.add(Owner::kWeights, "vision encoder", vision,
                vision_formula(*cost.llm->vision, cost.tensor_parallel));
    }
  }
  if (cost.stack->full_causal_mask && holds(Owner::kMask)) {
    terms.add(
        Owner::kMask, "full causal mask", full_mask_bytes(cost, in.static_end),
        with_rounding(fmt::format("{0} x {0} tokens x 1 B", with_commas(in.static_end)),
                      Bytes{in.static_end * in.static_end}, full_mask_bytes(cost, in.static_end)),
        "full_causal_mask");
  }
  add_caches(in, place, terms);
  add_old_caches(in, place, terms);
  if (place.part != RunPart::kLoad) {
    add_residents(in, place, terms);
    const OpGraph graph = graph_at(in, place);
    const OpIndex at = place.refused_at >= 0 ? place.refused_at : graph.alive_peak().at;
    const auto tensors = graph.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& t = tensors[i];
      if (t.first > at || t.last < at) continue;
      if (t.first == at && i >= place.refused_tensor) continue;
      terms.add_tensor(t, place.layer);
    }
  }
  return std::move(terms).checked(owners);
}

}  // namespace kvsim
