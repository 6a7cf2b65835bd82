#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
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
  bool keeps_inputs = false;        // callers hold the embeddings and a layer's input while it runs
  bool splits_keys = true;  // decode attention cuts the keys so that few heads still fill the GPU
  std::int32_t norm_launches = 1;  // kernels one RMSNorm takes; more than 1: it is not fused
  std::int32_t rope_launches = 1;  // kernels the rotation of Q and K takes
  Bytes context;                   // CUDA context and libraries, per GPU
  double usable_fraction = 1.0;    // of the usable HBM
  Seconds launch_overhead;         // device-side gap per kernel
  Seconds host_per_layer;  // host time per layer and step; the step takes the larger of both
  Seconds host_per_step;
  Seconds host_per_launch;  // host time of each operator a method's own code adds
  /// Whose measured kernels time an operator family ("gemm": "vllm"); "*": any stack's. Families
  /// without an entry are timed by the roofline.
  std::map<std::string, std::string, std::less<>> kernels;
  std::map<std::string, std::string> sources;
};

/// What the stack's allocator takes for a tensor of `n` bytes: PyTorch rounds to blocks of 512 B
/// (kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp). Segments are the allocator's own matter.
[[nodiscard]] Bytes charged_bytes(const Stack& stack, Bytes n);

/// Reads one profile; `name` is what scenarios call it. A profile may extend one of `known`: what
/// it does not say is that one's, with its source. Errors: InputError.
[[nodiscard]] Stack read_stack(const Field& profile, std::string name,
                               std::span<const Stack> known = {});

/// Errors: InputError naming the nearest known one.
[[nodiscard]] const Stack& find_stack(std::string_view name);
[[nodiscard]] const std::vector<Stack>& builtin_stacks();

}  // namespace kvsim
