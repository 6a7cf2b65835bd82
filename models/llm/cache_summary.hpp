#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// Cached bytes of one sequence in a group of layers.
struct CacheTerms {
  double per_token = 0;        // keys and values of a further token once windows are full
  double index_per_token = 0;  // index keys of a further token
  double state = 0;            // recurrent states and compressors, from the first token
  double window = 0;           // full windows and chunks

  CacheTerms& operator+=(const CacheTerms& other);
};

/// Consecutive or non-consecutive layers of one kind and shape.
struct CacheGroup {
  /// kind_name of its layers; "shared full": they read caches of other layers.
  std::string kind;
  std::string description;  // of attention or state, human-readable
  std::int32_t layers = 0;
  std::int32_t first_layer = 0;
  CacheTerms terms{};
};

/// Returns the groups of a model in the order of their first layers, with keys and values in
/// `kv_dtype`.
[[nodiscard]] std::vector<CacheGroup> cache_groups(const Llm& llm, Dtype kv_dtype);
/// Returns the sum over all groups.
[[nodiscard]] CacheTerms cache_terms(const Llm& llm, Dtype kv_dtype);
/// Bytes that a sequence of `tokens` tokens holds, and bytes that one of its decode steps reads.
/// States are read completely, and layers that share a cache read it again.
[[nodiscard]] double held_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype);
[[nodiscard]] double read_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype);

}  // namespace kvsim
