#pragma once

#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {

/// What a row's weights are stored in: a format of 16 bits or more for all, or a released
/// quantisation by what the cell, the model's name, the framework and the note say of it.
[[nodiscard]] WeightStore match_weights(const PublishedRow& row, const FormatText& text,
                                        const Llm& llm);

}  // namespace kvsim
