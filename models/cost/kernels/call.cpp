#include "models/cost/kernels/call.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

/// Formats of GEMM weights, in addition to the plain element formats, and rules of recurrent
/// layers.
const std::vector<KernelFormat>& named_formats() {
  static const std::vector<KernelFormat> formats{
      {.name = "fp8",
       .compute = Dtype::kFp8E4m3,
       .operand_bytes = 2,
       .stored_bytes = 1,
       .quantises = true},
      {.name = "fp8_block",
       .compute = Dtype::kFp8E4m3,
       .operand_bytes = 2,
       .stored_bytes = 1,
       .quantises = true,
       .block_scaled = true},
      {.name = "int8_wo", .compute = Dtype::kBf16, .operand_bytes = 2, .stored_bytes = 1},
      // A 16-bit scale per group of 128, zeros packed with the weights.
      {.name = "int4_wo", .compute = Dtype::kBf16, .operand_bytes = 2, .stored_bytes = 0.516},
      // MXFP4 weights, 16-bit arithmetic: a scale byte per group of 32.
      {.name = "mxfp4", .compute = Dtype::kBf16, .operand_bytes = 2, .stored_bytes = 0.53125},
      {.name = "sq",
       .compute = Dtype::kInt8,
       .operand_bytes = 2,
       .stored_bytes = 1,
       .quantises = true},
      // A scale byte per group of 16.
      {.name = "nvfp4",
       .compute = Dtype::kFp4,
       .operand_bytes = 2,
       .stored_bytes = 0.5625,
       .quantises = true},
      {.name = "gated_delta", .compute = Dtype::kBf16, .operand_bytes = 2, .stored_bytes = 4},
      {.name = "kimi_delta", .compute = Dtype::kBf16, .operand_bytes = 2, .stored_bytes = 4},
      {.name = "mamba2", .compute = Dtype::kBf16, .operand_bytes = 2, .stored_bytes = 4}};
  return formats;
}

/// "fp8" for a cache is e4m3 in all sources.
std::string_view short_name(Dtype dtype) {
  return dtype == Dtype::kFp8E4m3 ? std::string_view{"fp8"} : name_of(dtype);
}

}  // namespace

namespace {

constexpr std::array<std::string_view, kKernelOps> kOpNames{
    "decode_attention", "prefill_attention", "mla",  "gemm",       "grouped_gemm", "moe",
    "elementwise",      "collective",        "copy", "recurrence", "convolution",  "index_scores",
    "index_choice",     "sparse_attention"};

}  // namespace

std::string_view name_of(KernelOp op) { return kOpNames[static_cast<std::size_t>(op)]; }

std::optional<KernelOp> find_kernel_op(std::string_view name) {
  const auto* const found = std::find(kOpNames.begin(), kOpNames.end(), name);
  if (found == kOpNames.end()) return std::nullopt;
  return static_cast<KernelOp>(found - kOpNames.begin());
}

KernelFormat attention_format(Dtype compute, Dtype kv) {
  return {.name = fmt::format("{}/{}", short_name(compute), short_name(kv)),
          .compute = compute,
          .operand_bytes = bits_of(compute) / 8.0,
          .stored_bytes = bits_of(kv) / 8.0};
}

KernelFormat parse_kernel_format(std::string_view word) {
  if (const auto slash = word.find('/'); slash != std::string_view::npos) {
    const auto compute = parse_dtype(word.substr(0, slash));
    const auto kv = parse_dtype(word.substr(slash + 1));
    if (compute && kv) {
      KernelFormat format = attention_format(*compute, *kv);
      format.name = word;
      return format;
    }
  }
  for (const KernelFormat& format : named_formats()) {
    if (format.name == word) return format;
  }
  if (const auto dtype = parse_dtype(word)) {
    return {.name = std::string{word},
            .compute = *dtype,
            .operand_bytes = bits_of(*dtype) / 8.0,
            .stored_bytes = bits_of(*dtype) / 8.0};
  }
  std::vector<std::string> known;
  for (const KernelFormat& format : named_formats()) known.push_back(format.name);
  for (const DtypeName& entry : kDtypes) known.emplace_back(entry.name);
  throw InputError{unknown_name("kernel format", word, known)};
}

const KernelFormat& shared_format(const KernelFormat& format) {
  static std::mutex mutex;
  static std::map<std::string, KernelFormat, std::less<>> all;
  const std::scoped_lock lock{mutex};
  return all.try_emplace(format.name, format).first->second;
}

namespace {

struct Length {
  double& operator()(DecodeAttentionCall& c) const { return c.kv_len; }
  double& operator()(PrefillAttentionCall& c) const { return c.new_tokens; }
  double& operator()(MlaCall& c) const { return c.seq_len; }
  double& operator()(GemmCall& c) const { return c.m; }
  double& operator()(GroupedGemmCall& c) const { return c.rows; }
  double& operator()(MoeCall& c) const { return c.tokens; }
  double& operator()(ElementwiseCall& c) const { return c.rows; }
  double& operator()(CollectiveCall& c) const { return c.bytes; }
  double& operator()(CopyCall& c) const { return c.bytes; }
  double& operator()(RecurrenceCall& c) const { return c.tokens; }
  double& operator()(ConvolutionCall& c) const { return c.tokens; }
  double& operator()(IndexScoresCall& c) const { return c.keys; }
  double& operator()(IndexChoiceCall& c) const { return c.length; }
  double& operator()(SparseAttentionCall& c) const { return c.chosen; }
};

}  // namespace

double length_of(const KernelCall& call) {
  KernelCall copy = call;
  return std::visit(Length{}, copy);
}

KernelCall with_length(KernelCall call, double length) {
  std::visit(Length{}, call) = length;
  return call;
}

KernelGpu kernel_gpu(const Gpu& gpu) {
  KernelGpu out{.bandwidth = gpu.hbm_bandwidth.count(),
                .fp32_flops = gpu.peak_fp32.count(),
                .sms = static_cast<double>(gpu.sms),
                .l2 = static_cast<double>(gpu.l2.count()),
                .nvlink = gpu.nvlink ? gpu.nvlink->count() : 0.0,
                .nvlink_gpus = gpu.nvlink_gpus ? static_cast<double>(*gpu.nvlink_gpus)
                                               : std::numeric_limits<double>::infinity(),
                .pcie = gpu.pcie.count(),
                .host_link = gpu.c2c.value_or(gpu.pcie).count(),
                .hopper_or_later = gpu.generation == "hopper" || gpu.generation == "blackwell"};
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    out.flops[i] = peak_flops(gpu, kDtypes[i].dtype).count();
  }
  return out;
}

}  // namespace kvsim
