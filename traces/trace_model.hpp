#pragma once

// The model from which a trace was recorded. Errors of a replay are weak evidence for models of
// other sizes.

#include <optional>
#include <string>
#include <string_view>

#include "traces/trace.hpp"

namespace kvsim {

/// Returns the number of parameters of the model from which the trace was recorded: `parameters` of
/// the metadata, or the size in the model's name ("books-2.6M-B", "Qwen2.5-0.5B"); nullopt if
/// neither states it.
[[nodiscard]] std::optional<double> trace_parameters(const TraceInfo& info);

/// Formats a number of parameters: "2.6M", "70.6B".
[[nodiscard]] std::string parameters_text(double parameters);

/// "2.6M-parameter model, 384 + 128 tokens": the model's size, and tokens of prompt and output.
[[nodiscard]] std::string trace_words(const TraceInfo& info);

}  // namespace kvsim
