#pragma once

#include <cstdint>
#include <vector>

#include "traces/synthetic/generate.hpp"

namespace kvsim::synthetic {

/// The token ids of a trace, and for each query the position after an earlier occurrence of its
/// token.
struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> origin;  // position whose context a token repeats; the token itself
                                     // elsewhere
  std::vector<std::int64_t> answer;  // target of an induction query at t; -1 if there is none
};

/// Draws ids that follow Zipf's law, with copied spans; a repeat copies the context.
[[nodiscard]] Text draw_text(const GenerateOptions& o);

}  // namespace kvsim::synthetic
