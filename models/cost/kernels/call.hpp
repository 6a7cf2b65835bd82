#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "models/gpu/gpu.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// Families of kernels with a timing form; the names are those of `kvsim validate measured`.
enum class KernelOp : std::uint8_t {
  kDecodeAttention,
  kPrefillAttention,
  kMla,
  kGemm,
  kGroupedGemm,
  kMoe,
  kElementwise,
  kCollective,
  kCopy,
  kRecurrence,
  kConvolution,
  kIndexScores,
  kIndexChoice,
  kSparseAttention
};
inline constexpr std::size_t kKernelOps = 14;
[[nodiscard]] std::string_view name_of(KernelOp op);
[[nodiscard]] std::optional<KernelOp> find_kernel_op(std::string_view name);

/// One layer, one query token per sequence, on one GPU (head counts are per GPU).
struct DecodeAttentionCall {
  double batch = 1;
  double kv_len = 1;   // entries read per sequence and KV head, including the new one; the mean if
                       // ragged
  double longest = 0;  // entries of the longest KV head, if heads differ; 0: they are equal
  std::int32_t q_heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 128;
  friend bool operator==(const DecodeAttentionCall&, const DecodeAttentionCall&) = default;
};

/// One layer, causal: `new_tokens` queries per sequence over themselves and `prefix` cached tokens.
struct PrefillAttentionCall {
  double batch = 1;
  double new_tokens = 1;
  double prefix = 0;
  std::int32_t q_heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 128;
  friend bool operator==(const PrefillAttentionCall&, const PrefillAttentionCall&) = default;
};

/// Attention core over a latent cache (DeepSeek: 512 + 64 wide): absorbed at decode, expanded to
/// heads at prefill.
struct MlaCall {
  bool decode = true;
  double batch = 1;
  double seq_len = 1;  // decode: entries read; prefill: new tokens
  std::int32_t heads = 1;
  double prefix = 0;  // prefill: cached tokens of the sequence, already expanded to heads
  friend bool operator==(const MlaCall&, const MlaCall&) = default;
};

/// y[m, n] = x[m, k] w[n, k].
struct GemmCall {
  double m = 1;
  double n = 1;
  double k = 1;
  friend bool operator==(const GemmCall&, const GemmCall&) = default;
};

/// One of the two projections of a layer's routed experts as one kernel: rows are distributed over
/// `experts` matrices w[n, k].
struct GroupedGemmCall {
  double rows = 1;         // of all experts together
  double experts = 1;      // on this GPU
  double rows_padded = 1;  // of the buffer that the kernel iterates over; `rows` if it iterates
                           // only over those
  double n = 1;
  double k = 1;
  bool masked = false;  // decode layout: a fixed buffer per expert
  friend bool operator==(const GroupedGemmCall&, const GroupedGemmCall&) = default;
};

/// A layer's routed experts: both projections and the operators between them, without the router.
struct MoeCall {
  double tokens = 1;
  double hidden = 1;
  double inter = 1;  // per expert, not sharded
  double top_k = 1;
  double experts = 1;  // on all GPUs
  double tp = 1;
  double ep = 1;
  double skew = 0;     // exponent of the power law of tokens over experts; 0: balanced
  double busiest = 0;  // rows of the most loaded GPU over the mean; 0: according to `skew`
  friend bool operator==(const MoeCall&, const MoeCall&) = default;
};

/// Norms, rotations, activations, additions, embeddings: streaming kernels.
enum class ElementwiseKind : std::uint8_t { kNorm, kRope, kActivation, kAdd, kEmbedding, kOther };
struct ElementwiseCall {
  ElementwiseKind kind = ElementwiseKind::kOther;
  double rows = 1;  // tokens
  double bytes_read = 0;
  double bytes_written = 0;
  double kernels = 1;  // consecutive launches
  friend bool operator==(const ElementwiseCall&, const ElementwiseCall&) = default;
};

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSendReceive
};
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  double bytes = 0;  // size as printed by nccl-tests
  double gpus = 2;
  double gpus_per_node = 8;
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

enum class CopyKind : std::uint8_t { kDevice, kHostToDevice, kDeviceToHost };
struct CopyCall {
  CopyKind kind = CopyKind::kDevice;
  double bytes = 0;
  double pieces = 1;  // equal pieces, each a separate transfer
  friend bool operator==(const CopyCall&, const CopyCall&) = default;
};

/// The rule of a recurrent layer (delta rules, Mamba 2): a matrix of value_dim x key_dim per head
/// of a sequence, updated by `tokens` new tokens of each sequence. Decode takes tokens one by one,
/// a prompt's scan takes them in chunks.
struct RecurrenceCall {
  bool decode = true;
  double batch = 1;
  double tokens = 1;  // per sequence
  double heads = 1;   // value heads, on this GPU
  double key_dim = 128;
  double value_dim = 128;
  double state_bytes = 4;  // per state element
  friend bool operator==(const RecurrenceCall&, const RecurrenceCall&) = default;
};

/// Causal convolution of several taps over the channels of new tokens, for all sequences together.
struct ConvolutionCall {
  double tokens = 1;
  double channels = 1;
  friend bool operator==(const ConvolutionCall&, const ConvolutionCall&) = default;
};

/// Scores of a sparse index: each query's heads over one 8-bit key per entry, summed over heads.
struct IndexScoresCall {
  bool decode = true;
  double batch = 1;
  double queries = 1;  // per sequence
  double keys = 1;     // visible keys per query; the mean for a prompt
  double heads = 1;
  double head_dim = 128;
  friend bool operator==(const IndexScoresCall&, const IndexScoresCall&) = default;
};

/// The top `chosen` of `length` scores in each row.
struct IndexChoiceCall {
  double rows = 1;
  double length = 1;
  double chosen = 2048;
  friend bool operator==(const IndexChoiceCall&, const IndexChoiceCall&) = default;
};

/// Attention over chosen latent entries, 512 + 64 wide: each query has a list of entries.
struct SparseAttentionCall {
  bool decode = true;
  double batch = 1;
  double queries = 1;  // per sequence
  double chosen = 1;   // entries per query; a prompt's kernel processes the whole list
  double heads = 1;
  friend bool operator==(const SparseAttentionCall&, const SparseAttentionCall&) = default;
};

/// In the order of KernelOp.
using KernelCall =
    std::variant<DecodeAttentionCall, PrefillAttentionCall, MlaCall, GemmCall, GroupedGemmCall,
                 MoeCall, ElementwiseCall, CollectiveCall, CopyCall, RecurrenceCall,
                 ConvolutionCall, IndexScoresCall, IndexChoiceCall, SparseAttentionCall>;
[[nodiscard]] inline KernelOp op_of(const KernelCall& call) {
  return static_cast<KernelOp>(call.index());
}

/// Formats of a kernel. `name` is the key of measurements and reports: "compute/kv" for attention
/// ("bf16/fp8"), the GEMM's format for weights ("fp8_block").
struct KernelFormat {
  std::string name;
  Dtype compute = Dtype::kBf16;  // selects the arithmetic rate
  double operand_bytes = 2;      // per element of activations or queries, as read from memory
  double stored_bytes = 2;       // per element of weights or of the cache, without scales
  bool quantises = false;        // activations are quantised within the measured time
  bool block_scaled = false;     // one scale per 128 x 128 block, applied outside the tensor cores
};
/// Returns the attention format with queries of `compute` over a cache of `kv`.
[[nodiscard]] KernelFormat attention_format(Dtype compute, Dtype kv);
/// Returns the format named `word` in measurements ("bf16", "fp8", "fp8_block", "int8_wo",
/// "int4_wo", "sq", "nvfp4", "bf16/fp8", …). Throws InputError with the nearest known name.
[[nodiscard]] KernelFormat parse_kernel_format(std::string_view word);

/// Returns a unique object per name with the lifetime of the program: calls point to it.
[[nodiscard]] const KernelFormat& shared_format(const KernelFormat& format);

/// Returns the dimension of a call that grows with the cache or the prompt, or the call with
/// another value of it: kv_len, new_tokens, seq_len, m, rows, tokens, bytes, keys, length, chosen.
[[nodiscard]] double length_of(const KernelCall& call);
[[nodiscard]] KernelCall with_length(KernelCall call, double length);

/// The GPU parameters of forms, in SI units.
struct KernelGpu {
  double bandwidth = 0;  // HBM
  std::array<double, kDtypes.size()> flops{};
  double fp32_flops = 0;  // outside the tensor cores
  double sms = 0;
  double l2 = 0;           // bytes
  double nvlink = 0;       // both directions together; 0: none
  double nvlink_gpus = 0;  // GPUs that it connects: 2 with a bridge, else all of a node
  double pcie = 0;         // one direction
  double host_link = 0;    // one direction: C2C if available, else PCIe
  bool hopper_or_later = false;
  [[nodiscard]] double peak(Dtype dtype) const { return flops[static_cast<std::size_t>(dtype)]; }
};
[[nodiscard]] KernelGpu kernel_gpu(const Gpu& gpu);

}  // namespace kvsim
