#include "models/llm/draft_head.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kEagle3Vocabulary = 32000;
constexpr std::int64_t kEagle3Layers = 3;  // layers whose hidden states it reads

/// Returns `llm` without the parts that do not belong to the head.
Llm head_of(const Llm& llm, std::string_view name, const LayerSpec& layer) {
  Llm head = llm;
  head.name = fmt::format("{} {} head", llm.name, name);
  head.layers = {layer};
  head.mtp_layers = 0;
  head.is_draft_head = true;
  head.extra_parameters = head.extra_active_parameters = 0;
  head.extra_bytes = 0;
  head.learned_positions = 0;
  head.vision.reset();
  return head;
}

void add_matrix(Llm& head, std::int64_t in, std::int64_t out) {
  head.extra_parameters += in * out;
  head.extra_active_parameters += in * out;
}

Llm mtp_head(const Llm& llm) {
  if (llm.mtp_layers < 1) {
    throw InputError{fmt::format("{} announces no layers of multi-token prediction", llm.name)};
  }
  LayerSpec layer = llm.layers.back();
  // Tokens near the end of a sequence attend as in the model's own attention layers.
  for (auto own = llm.layers.rbegin(); own != llm.layers.rend(); ++own) {
    if (own->attention.n_heads == 0) continue;
    layer.attention = own->attention;
    layer.state = {};
    layer.formats = own->formats;
    break;
  }
  // The head's cache contains only entries that the head reads: its own index, and no compressed
  // entries (DeepSeek-V4's head has only the window).
  AttentionSpec& attention = layer.attention;
  attention.index.is_borrowed = false;
  if (attention.o_groups > 0) {
    attention.ratio = 0;
    attention.index = {};
  }
  Llm head = head_of(llm, "MTP", layer);
  add_matrix(head, 2 * std::int64_t{llm.d_model}, llm.d_model);  // eh_proj
  return head;
}

Llm eagle_head(const Llm& llm, DraftHead kind) {
  const auto dense = std::find_if(llm.layers.rbegin(), llm.layers.rend(), [](const LayerSpec& one) {
    return one.attention.n_heads > 0 && one.attention.kv_lora_rank == 0 && one.mlp.d_ff > 0 &&
           one.mlp.n_experts == 0 && !is_bounded(one.attention);
  });
  if (dense == llm.layers.rend()) {
    throw InputError{fmt::format(
        "{} has no dense layer whose size an EAGLE head would take; name a draft model", llm.name)};
  }
  const bool is_third = kind == DraftHead::kEagle3;
  const std::int64_t width = llm.d_model;
  Llm head = head_of(llm, is_third ? "EAGLE-3" : "EAGLE", *dense);
  // Heads are published in 16 bits, regardless of the format of their model.
  head.layers.front().mlp.format = nullptr;
  head.layers.front().formats = {};
  head.published_dtype = llm.compute_dtype;
  head.unpacked_dtype.reset();
  head.outside_experts_dtype.reset();
  add_matrix(head, (is_third ? kEagle3Layers : 2) * width, width);
  if (is_third) {
    const AttentionSpec& a = dense->attention;
    const std::int64_t kv = std::int64_t{a.n_kv_heads} * (a.head_dim + a.v_head_dim);
    add_matrix(head, width, std::int64_t{a.n_heads} * a.head_dim + kv);
    head.vocab_size = kEagle3Vocabulary;
    head.head_format = nullptr;
    head.extra_parameters += width * kEagle3Vocabulary;  // its time is that of the full vocabulary
  }
  return head;
}

}  // namespace

Llm draft_head(const Llm& llm, DraftHead kind) {
  return kind == DraftHead::kMtp ? mtp_head(llm) : eagle_head(llm, kind);
}

}  // namespace kvsim
