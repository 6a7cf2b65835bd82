#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// What one sequence keeps in some layers, in bytes.
struct CacheTerms {
  double per_token = 0;        // that a further token adds to keys and values once windows are full
  double index_per_token = 0;  // that it adds to keys of indexes
  double state = 0;            // of recurrent states and compressors, from the first token on
  double window = 0;           // of full windows and chunks

  CacheTerms& operator+=(const CacheTerms& other);
};

/// Consecutive or scattered layers of one kind and shape.
struct CacheGroup {
  std::string kind;         // kind_name of its layers; "shared full" if they read others' caches
  std::string description;  // of attention or state, for people
  std::int32_t layers = 0;
  std::int32_t first_layer = 0;
  CacheTerms terms{};
};

/// The groups of a model in order of their first layers, with keys and values in `kv_dtype`.
[[nodiscard]] std::vector<CacheGroup> cache_groups(const Llm& llm, Dtype kv_dtype);
/// The sum of all groups.
[[nodiscard]] CacheTerms cache_terms(const Llm& llm, Dtype kv_dtype);
/// Bytes that a sequence of `tokens` tokens holds, and those that one decode step of it reads.
/// States are read whole, and layers that share a cache read it again.
[[nodiscard]] double held_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype);
[[nodiscard]] double read_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype);

}  // namespace kvsim
