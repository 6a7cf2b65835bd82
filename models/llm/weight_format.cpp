#include "models/llm/weight_format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::array kFormats{
    WeightFormat{.name = "awq-int4",
                 .summary = "AWQ: 4-bit values, groups of 128 with a 16-bit scale and a 4-bit zero",
                 .source =
                     "mit-han-lab/llm-awq and casper-hansen/AutoAWQ WQLinear_GEMM: qweight int32 "
                     "[in, out/8], qzeros int32 [in/128, out/8], scales fp16 [in/128, out]; "
                     "embeddings, norms and lm_head are unchanged",
                 .packed = Dtype::kInt4,
                 .group = 128,
                 .group_bits = 20},
    WeightFormat{
        .name = "gptq-int4",
        .summary = "GPTQ: 4-bit values, groups of 128 with a 16-bit scale and a 4-bit zero",
        .source = "AutoGPTQ QuantLinear: qweight, qzeros, scales fp16 and g_idx int32 [in]; "
                  "embeddings, norms and lm_head are unchanged",
        .packed = Dtype::kInt4,
        .group = 128,
        .group_bits = 20,
        .input_bits = 32},
    WeightFormat{
        .name = "gptq-int8",
        .summary = "GPTQ: 8-bit values, groups of 128 with a 16-bit scale and an 8-bit zero",
        .source = "AutoGPTQ QuantLinear with bits = 8: qweight, qzeros, scales fp16, g_idx int32",
        .packed = Dtype::kInt8,
        .group = 128,
        .group_bits = 24,
        .input_bits = 32},
    WeightFormat{
        .name = "int8-channel",
        .summary = "weight-only 8 bit with a 16-bit scale per output channel, lm_head too",
        .source = "meta-pytorch/gpt-fast quantize.py, WeightOnlyInt8Linear: weight int8 [out, in], "
                  "scales bf16 [out]; replaces every nn.Linear, including the output",
        .packed = Dtype::kInt8,
        .column_bits = 16,
        .head = true},
    WeightFormat{
        .name = "int4-g32",
        .summary = "weight-only 4 bit, groups of 32 with 16-bit scale and zero, lm_head too",
        .source = "meta-pytorch/gpt-fast quantize.py, WeightOnlyInt4Linear: scales_and_zeros bf16 "
                  "[in/group, out, 2]; replaces every nn.Linear, including the output",
        .packed = Dtype::kInt4,
        .group = 32,
        .group_bits = 32,
        .head = true},
    WeightFormat{
        .name = "int4-g64",
        .summary = "weight-only 4 bit, groups of 64 with 16-bit scale and zero, lm_head too",
        .source = "pytorch/ao int4_weight_only(group_size=64): scale and zero bf16 of a group",
        .packed = Dtype::kInt4,
        .group = 64,
        .group_bits = 32,
        .head = true},
    WeightFormat{.name = "w8a8-int8",
                 .summary = "8-bit weights and activations, an fp32 scale per output channel",
                 .source = "vllm-project/llm-compressor, W8A8 (SmoothQuant and GPTQ): weight int8, "
                           "weight_scale per channel; lm_head is ignored",
                 .packed = Dtype::kInt8,
                 .column_bits = 32,
                 .weight_only = false},
    WeightFormat{
        .name = "fp8-tensor",
        .summary = "fp8 weights and activations, one fp32 scale per matrix",
        .source = "NVIDIA TensorRT-Model-Optimizer and vLLM Fp8LinearMethod: weight float8_e4m3fn, "
                  "weight_scale and input_scale fp32 per tensor; lm_head and embeddings 16 bit",
        .packed = Dtype::kFp8E4m3,
        .matrix_bits = 64,
        .weight_only = false},
    WeightFormat{
        .name = "fp8-block",
        .summary = "fp8 weights and activations, an fp32 scale for each block of 128 x 128",
        .source = "DeepSeek-V3 and Qwen3-FP8 config.json: weight_block_size [128, 128], "
                  "weight_scale_inv fp32; lm_head and embeddings 16 bit",
        .packed = Dtype::kFp8E4m3,
        .group = 128 * 128,
        .group_bits = 32,
        .weight_only = false,
        .blocks = true},
    WeightFormat{.name = "fp8-channel",
                 .summary = "fp8 weights and activations, an fp32 scale per output channel",
                 .source =
                     "vllm-project/llm-compressor FP8_DYNAMIC and Meta's fbgemm_fp8: weight "
                     "float8_e4m3fn, weight_scale fp32 [out, 1]; lm_head and embeddings 16 bit",
                 .packed = Dtype::kFp8E4m3,
                 .column_bits = 32,
                 .weight_only = false},
    WeightFormat{.name = "mxfp8",
                 .summary = "MXFP8: fp8 weights and activations, an 8-bit scale for each 32",
                 .source = "OCP Microscaling Formats 1.0, section 5.2",
                 .packed = Dtype::kFp8E4m3,
                 .group = 32,
                 .group_bits = 8,
                 .weight_only = false},
    WeightFormat{
        .name = "nvfp4",
        .summary = "NVFP4: 4-bit values and activations, an fp8 scale for each 16",
        .source =
            "NVIDIA TensorRT-Model-Optimizer and vLLM ModelOptNvFp4LinearMethod: weight uint8 "
            "[out, in/2], weight_scale fp8 [out, in/16], weight_scale_2 and input_scale fp32",
        .packed = Dtype::kFp4,
        .group = 16,
        .group_bits = 8,
        .matrix_bits = 64,
        .weight_only = false},
    WeightFormat{.name = "nvfp4-w4a16",
                 .summary = "NVFP4 of weights only: 4-bit values, an fp8 scale for each 16",
                 .source = "vLLM CompressedTensorsW4A16Fp4: weight_packed, weight_scale fp8, "
                           "weight_global_scale fp32",
                 .packed = Dtype::kFp4,
                 .group = 16,
                 .group_bits = 8,
                 .matrix_bits = 32},
    WeightFormat{
        .name = "w4a16",
        .summary = "4-bit values, symmetric, groups of 128 with a 16-bit scale",
        .source =
            "compressed-tensors pack-quantized: weight_packed int32 [out, in/8], weight_scale "
            "bf16 [out, in/128]",
        .packed = Dtype::kInt4,
        .group = 128,
        .group_bits = 16},
    WeightFormat{
        .name = "w4a16-zeros",
        .summary = "4-bit values, groups of 128 with a 16-bit scale and a 4-bit zero",
        .source = "compressed-tensors pack-quantized with symmetric false: weight_zero_point int32 "
                  "[out/8, in/128]",
        .packed = Dtype::kInt4,
        .group = 128,
        .group_bits = 20},
    WeightFormat{
        .name = "w8a16",
        .summary = "8-bit values, symmetric, groups of 128 with a 16-bit scale",
        .source = "compressed-tensors pack-quantized, num_bits 8: weight_packed int32 [out, in/4], "
                  "weight_scale bf16 [out, in/128]",
        .packed = Dtype::kInt8,
        .group = 128,
        .group_bits = 16},
    WeightFormat{
        .name = "mxfp4",
        .summary = "MXFP4 of the routed experts: 4-bit values, an 8-bit scale for each 32",
        .source = "OCP Microscaling Formats 1.0, section 5.2; openai/gpt-oss model card: the rest "
                  "is bf16",
        .packed = Dtype::kFp4,
        .group = 32,
        .group_bits = 8,
        .experts_only = true},
    WeightFormat{.name = "nf4",
                 .summary = "bitsandbytes NF4: 4-bit values, an fp32 absmax for each 64",
                 .source =
                     "bitsandbytes functional.quantize_4bit, blocksize 64 (QLoRA, Dettmers et al. "
                     "2023, section 3, without double quantisation)",
                 .packed = Dtype::kInt4,
                 .group = 64,
                 .group_bits = 32},
    WeightFormat{
        .name = "nf4-double",
        .summary = "bitsandbytes NF4 with its scales quantised: 8 bits for each 64 and an fp32 for "
                   "each 256 of those",
        .source = "QLoRA, Dettmers et al. 2023, section 3: 0.127 bits per parameter",
        .packed = Dtype::kInt4,
        .group = 64 * 256,
        .group_bits = 8 * 256 + 32},
    WeightFormat{
        .name = "flexgen-int4",
        .summary = "FlexGen group-wise 4 bit: groups of 64 with a 16-bit minimum and scale",
        .source = "FlexGen, Sheng et al. 2023, section 5 (group size 64); FMInference/FlexLLMGen "
                  "compression.py: all weights, including embeddings",
        .packed = Dtype::kInt4,
        .group = 64,
        .group_bits = 32,
        .head = true,
        .embeddings = true},
};

bool covers(const WeightFormat& format, WeightPart part) {
  switch (part) {
    case WeightPart::kEmbedding:
      return format.embeddings;
    case WeightPart::kHead:
      return format.head;
    case WeightPart::kLinear:
      return !format.experts_only;
    case WeightPart::kExperts:
      return true;
    case WeightPart::kPlain:
      return false;
  }
  return false;
}

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace

const WeightFormat* packing_of(const Llm& llm, const WeightStore& store, const MatrixPlace& place) {
  if (store.format != nullptr) return covers(*store.format, place.part) ? store.format : nullptr;
  return llm.unpacked_dtype && store.base == llm.published_dtype ? place.format : nullptr;
}

Bytes matrix_bytes(const Llm& llm, const WeightStore& store, const MatrixPlace& place,
                   std::int64_t in, std::int64_t out, std::int64_t count) {
  const std::int64_t values = in * out;
  const WeightFormat* packing = packing_of(llm, store, place);
  if (packing == nullptr) {
    if (store.format != nullptr) return bytes_of(values * count, store.base);
    if (place.part == WeightPart::kExperts && llm.outside_experts_dtype) {
      return expert_weight_bytes(llm, values * count, store.base);
    }
    return bytes_of(values * count, dense_weight_dtype(llm, store.base));
  }
  const WeightFormat& f = *packing;
  std::int64_t bits = values * bits_of(f.packed) + in * f.input_bits + out * f.column_bits +
                      std::int64_t{f.matrix_bits};
  if (f.blocks) {
    const auto side = std::llround(std::sqrt(f.group));
    bits += divide_up(in, side) * divide_up(out, side) * f.group_bits;
  } else if (f.group > 0) {
    bits += divide_up(values, f.group) * f.group_bits;
  }
  return Bytes{divide_up(bits, 8) * count};
}

Dtype product_dtype(const Llm& llm, const WeightStore& store, const MatrixPlace& place) {
  const WeightFormat* packing = packing_of(llm, store, place);
  if (packing != nullptr && !packing->weight_only) return packing->packed;
  if (store.format != nullptr) return store.base;
  // gpt-oss computes with its experts in their stored format.
  const bool as_stored = place.part == WeightPart::kExperts && llm.outside_experts_dtype;
  return as_stored ? store.base : dense_weight_dtype(llm, store.base);
}

bool is_block_scaled(const Llm& llm, const WeightStore& store, const MatrixPlace& place) {
  const WeightFormat* packing = packing_of(llm, store, place);
  return packing != nullptr && packing->blocks;
}

void visit_layer_matrices(const Llm& llm, const LayerSpec& layer, const MatrixVisit& visit) {
  std::size_t i = 0;
  for (const LayerMatrix& m : mixer_matrices(layer, llm.d_model)) {
    visit({m.part, layer.formats[i++]}, m.in, m.out, m.count);
  }
  for (const LayerMatrix& m : feed_forward_matrices(layer.mlp, llm.d_model)) {
    visit({m.part, feed_forward_format(layer.mlp, m)}, m.in, m.out, m.count);
  }
}

void visit_outer_matrices(const Llm& llm, const MatrixVisit& visit) {
  if (llm.is_draft_head) return;
  visit(WeightPart::kEmbedding, llm.vocab_size, llm.d_model, 1);
  if (!llm.tied_embeddings) {
    visit({WeightPart::kHead, llm.head_format}, llm.d_model, llm.vocab_size, 1);
  }
}

Bytes loaded_weight_bytes(const Llm& llm, const WeightStore& store) {
  const bool packed_as_published = llm.unpacked_dtype && store.base == llm.published_dtype;
  if (store.format == nullptr && !packed_as_published) return loaded_weight_bytes(llm, store.base);
  Bytes total;
  std::int64_t matrices = 0;
  const auto add = [&](const MatrixPlace& place, std::int64_t in, std::int64_t out,
                       std::int64_t count) {
    total += matrix_bytes(llm, store, place, in, out, count);
    matrices += in * out * count;
  };
  visit_outer_matrices(llm, add);
  for (const LayerSpec& layer : llm.layers) visit_layer_matrices(llm, layer, add);
  const Dtype rest = store.format != nullptr ? store.base : dense_weight_dtype(llm, store.base);
  return total + bytes_of(parameters(llm) - matrices, rest);
}

std::span<const WeightFormat> builtin_weight_formats() { return kFormats; }

const WeightFormat& find_weight_format(std::string_view name) {
  std::vector<std::string> known;
  for (const WeightFormat& format : kFormats) {
    if (format.name == name) return format;
    known.emplace_back(format.name);
  }
  throw InputError{unknown_name("weight format", name, known)};
}

const WeightFormat& keep_weight_format(const std::string& name, const WeightFormat& format) {
  static std::mutex guard;
  static std::map<std::string, WeightFormat> kept;  // nodes have stable addresses
  const std::scoped_lock lock{guard};
  const auto [at, is_new] = kept.try_emplace(name, format);
  if (is_new) at->second.name = at->first;
  return at->second;
}

std::string published_formats(const Llm& llm) {
  std::vector<std::string> names;
  const auto add = [&](const MatrixPlace& place, std::int64_t, std::int64_t, std::int64_t) {
    if (place.format == nullptr) return;
    if (std::find(names.begin(), names.end(), place.format->name) == names.end()) {
      names.emplace_back(place.format->name);
    }
  };
  for (const LayerSpec& layer : llm.layers) visit_layer_matrices(llm, layer, add);
  visit_outer_matrices(llm, add);
  return fmt::format("{}", fmt::join(names, " + "));
}

Llm tensor_shard(const Llm& llm, std::int32_t ranks, std::int32_t context) {
  Llm shard = llm;
  if (ranks == 1 && context == 1) return shard;
  shard.vocab_size = (llm.vocab_size + ranks - 1) / ranks;
  for (LayerSpec& layer : shard.layers) {
    deal_entries(layer, ranks, context, llm.name);
    shard_mixers(layer, ranks, llm.name);
    MlpSpec& mlp = layer.mlp;
    mlp.d_ff = divided(mlp.d_ff, ranks, "columns of a feed-forward block", llm.name);
    mlp.shared_d_ff = divided(mlp.shared_d_ff, ranks, "columns of its shared experts", llm.name);
  }
  return shard;
}

}  // namespace kvsim
