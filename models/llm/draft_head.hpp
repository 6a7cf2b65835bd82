#pragma once

#include <cstdint>

#include "models/llm/llm.hpp"

namespace kvsim {

/// Draft heads on a model's hidden states. As separate models they do not have an embedding
/// (Llm::is_draft_head): the embedding and, except for EAGLE-3, the output projection are the
/// target's.
enum class DraftHead : std::uint8_t { kMtp, kEagle, kEagle3 };

/// Returns the head as a draft model of one layer:
/// - kMtp: the model's multi-token prediction head: a layer like its last, and a projection of the
///   concatenated hidden state and embedding to the model's width (DeepSeek-V3 report, section
///   2.2).
/// - kEagle: a layer like the last dense one, without its first norm, and a projection from twice
///   the width (Li et al. 2024, arXiv 2401.15077).
/// - kEagle3: the projection takes the hidden states of three layers; queries, keys and values take
///   its result concatenated with the embedding, and the head has a separate output projection to
///   32,000 tokens (Li et al. 2025, arXiv 2503.01840; draft_vocab_size of its published heads).
/// Throws InputError if the model declares no MTP layers, or has no dense layer for an EAGLE head.
[[nodiscard]] Llm draft_head(const Llm& llm, DraftHead kind);

}  // namespace kvsim
