#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "sim/decoder/closed_loop.hpp"

namespace kvsim {

/// "kvsim.closed-loop/1" (docs/results.md).
[[nodiscard]] nlohmann::ordered_json loop_document(const LoopResult& result);

/// A table of the methods, the best accuracy first at equal bytes, and the skipped ones.
[[nodiscard]] std::string loop_summary(const LoopResult& result, std::size_t width);

/// The method with the highest accuracy among methods that hold equal bytes, if it leads by over a
/// standard error.
[[nodiscard]] std::string loop_finding(const LoopResult& result);

}  // namespace kvsim
