#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "models/cost/step.hpp"
#include "models/units/units.hpp"
#include "sim/memory/hbm.hpp"

namespace kvsim {

/// One term of a run's peak memory.
struct PeakTerm {
  std::string owner;
  std::string what;     // "keys and values of 32 layers x 18,000 entries"
  Bytes bytes;          // as the stack's allocator charges it
  std::string formula;  // sum of products with the numbers filled in: "32 layers x … x 4 B"
  std::string source;   // "stack hf-sdpa: growth", "method h2o: holds …", the model's publication
};

/// The parts of a run that can have the memory peak.
enum class RunPart : std::uint8_t {
  kLoad,
  kEmbedding,  // of the prompt
  kPrefillLayer,
  kPromptLogits,
  kCompression,  // of a layer, after all have run
  kDecodeLayer,
  kDecodeLogits
};

/// A moment of a run, with enough data to rebuild the memory in use then.
struct PeakLocation {
  RunPart part = RunPart::kLoad;
  std::int32_t layer = -1;      // of the running graph; -1: none
  std::int64_t tokens = 0;      // per sequence after the step
  std::int64_t score_rows = 1;  // of a prefill
  DecodeState moment{};         // of a decode layer
  // If an allocation was refused: of this operator's tensors, those before this one are allocated.
  OpIndex refused_at = -1;  // -1: the graph's own peak
  std::size_t refused_tensor = std::numeric_limits<std::size_t>::max();
};

/// The requested bytes and, for a static cache, the allocated bytes.
struct PeakInput {
  const CostInput* cost = nullptr;                         // not owned
  std::int64_t prompt = 0;                                 // tokens
  const std::vector<LayerCache>* static_caches = nullptr;  // null: the cache grows
  std::int64_t static_end = 0;                             // capacity of a static cache in tokens
};

/// The graph that runs at `place`. Errors: ContractError for kLoad, which has none.
[[nodiscard]] OpGraph graph_at(const PeakInput& in, const PeakLocation& place);

/// Every byte in use at `place`, sorted by owner name. Errors: ContractError if the terms of an
/// owner do not sum to its bytes in `owners`.
[[nodiscard]] std::vector<PeakTerm> peak_terms(const PeakInput& in, const PeakLocation& place,
                                               const Owners& owners);

}  // namespace kvsim
