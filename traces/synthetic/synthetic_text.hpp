#pragma once

#include <cstdint>
#include <vector>

#include "traces/synthetic/generate.hpp"

namespace kvsim::synthetic {

/// The token ids of a trace, and where each query finds what followed its token before.
struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> origin;  // whose context a token repeats; itself elsewhere
  std::vector<std::int64_t> answer;  // what an induction query at t looks for; -1 if nothing
};

/// Ids follow Zipf's law, with copied spans; a repeat copies the context.
[[nodiscard]] Text draw_text(const GenerateOptions& o);

}  // namespace kvsim::synthetic
