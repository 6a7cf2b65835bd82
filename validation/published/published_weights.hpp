#pragma once

#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {

/// Returns the weight format of a row: one format of 16 bits or more for all weights, or a released
/// quantisation identified by the cell, the model's name, the framework and the note.
[[nodiscard]] WeightStore match_weights(const PublishedRow& row, const FormatText& text,
                                        const Llm& llm);

}  // namespace kvsim
