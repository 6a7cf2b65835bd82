#pragma once

// Which model a trace was recorded from. Errors of a replay say little about models of other sizes.

#include <optional>
#include <string>
#include <string_view>

#include "traces/trace.hpp"

namespace kvsim {

/// Parameters of the model that the trace was recorded from: the metadata's `parameters`, else the
/// size in the model's name ("books-2.6M-B", "Qwen2.5-0.5B"); nullopt if neither says.
[[nodiscard]] std::optional<double> trace_parameters(const TraceInfo& info);

/// "2.6M", "70.6B": parameters as people write them.
[[nodiscard]] std::string parameters_text(double parameters);

/// "2.6M-parameter model, 384 + 128 tokens": the model's size, and tokens of prompt and output.
[[nodiscard]] std::string trace_words(const TraceInfo& info);

}  // namespace kvsim
