#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// How a stack's cache takes a new token.
enum class CacheGrowth : std::uint8_t {
  kStatic,      // allocated for its final length at the start
  kExact,       // grows in place by what is stored (ideal)
  kConcatLayer  // each layer's K, then its V, is copied into a longer tensor; both live meanwhile
};
enum class AttentionExec : std::uint8_t { kFused, kEager };
enum class LogitPositions : std::uint8_t { kLast, kAll };

/// A software stack: what stands between the roofline and a real run. A profile is data
/// (models/stack/data), each constant with its source.
struct Stack {
  std::string name;
  std::string summary;
  CacheGrowth growth = CacheGrowth::kExact;
  AttentionExec attention = AttentionExec::kFused;
  LogitPositions logits = LogitPositions::kLast;
  bool logits_fp32 = false;         // logits upcast to fp32 beside the model's dtype
  bool expands_kv_heads = false;    // K, V repeated to the query heads before attention (GQA)
  bool rounds_allocations = false;  // PyTorch's block rounding applies
  Bytes context;                    // CUDA context and libraries, per GPU
  double usable_fraction = 1.0;     // of the usable HBM
  Seconds launch_overhead;          // device-side gap per kernel
  Seconds host_per_layer;  // host time per layer and step; the step takes the larger of both
  Seconds host_per_step;
  std::map<std::string, std::string> sources;
};

/// Errors: InputError naming the nearest known one.
[[nodiscard]] const Stack& find_stack(std::string_view name);
[[nodiscard]] const std::vector<Stack>& builtin_stacks();

}  // namespace kvsim
