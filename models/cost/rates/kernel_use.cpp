#include "models/cost/rates/kernel_use.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <variant>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr bool is_16_bit(Dtype dtype) { return bits_of(dtype) == 16; }

/// Returns the measured format of weights, by bits per weight, and whether the product computes in
/// that format or unpacks it first.
const KernelFormat* weight_format(double bits, Dtype compute, bool blocks = false) {
  static const auto known = [](std::string_view word) {
    return &shared_format(parse_kernel_format(word));
  };
  static const std::array all{known("bf16"),    known("fp32"),     known("fp8"),
                              known("sq"),      known("int8_wo"),  known("nvfp4"),
                              known("int4_wo"), known("fp8_block")};
  const bool packed = bits_of(compute) < 16;
  if (bits > 24) return all[1];
  if (bits > 10) return all[0];
  if (bits > 6.5 && packed && blocks) return all[7];
  if (bits > 6.5) return !packed ? all[4] : compute == Dtype::kInt8 ? all[3] : all[2];
  return packed && compute == Dtype::kFp4 ? all[5] : all[6];
}

}  // namespace

KernelUse gemm_use(std::int64_t rows, std::int64_t out, std::int64_t in, double weight_bytes,
                   Dtype compute, std::int32_t passes, bool blocks) {
  const auto values = static_cast<double>(out) * static_cast<double>(in);
  return {.call = GemmCall{.m = static_cast<double>(rows) / passes,
                           .n = static_cast<double>(out),
                           .k = static_cast<double>(in)},
          .format = weight_format(8 * weight_bytes / values, compute, blocks),
          .times = static_cast<double>(passes)};
}

KernelUse moe_use(const CostInput& in, const MlpSpec& mlp, const ExpertShare& share,
                  std::int32_t passes) {
  constexpr double kSkew = 1.2;
  const Llm& llm = *in.llm;
  const double ranks = in.stack->expert_parallel;
  // Experts that are not distributed are sharded like the rest of the model.
  const double cut = ranks > 1 ? in.tensor_parallel / std::min<double>(ranks, in.tensor_parallel)
                               : in.tensor_parallel * in.stack->prefill_context;
  const MatrixPlace place{WeightPart::kExperts, mlp.format};
  const std::int64_t columns = mlp.latent_dim > 0 ? mlp.latent_dim : llm.d_model;
  const auto weights =
      static_cast<double>(matrix_bytes(llm, in.weights(), place, columns, share.width).count());
  const double values = static_cast<double>(columns) * static_cast<double>(share.width);
  static const KernelFormat* const mxfp4 = &shared_format(parse_kernel_format("mxfp4"));
  const WeightFormat* packing = packing_of(llm, in.weights(), place);
  // gpt-oss as published has no packing: only its experts are in four bits.
  const bool unpacks_fp4 = packing != nullptr
                               ? packing->packed == Dtype::kFp4 && packing->weight_only
                               : llm.outside_experts_dtype && in.weight_dtype == Dtype::kFp4;
  const KernelFormat* format =
      unpacks_fp4 ? mxfp4
                  : weight_format(8 * weights / values, product_dtype(llm, in.weights(), place),
                                  is_block_scaled(llm, in.weights(), place));
  return {.call = MoeCall{.tokens = share.tokens / passes,
                          .hidden = static_cast<double>(columns),
                          .inter = static_cast<double>(mlp.d_ff) * in.tensor_parallel,
                          .top_k = static_cast<double>(mlp.top_k),
                          .experts = static_cast<double>(mlp.n_experts),
                          .tp = cut,
                          .ep = ranks,
                          .skew = kSkew,
                          .busiest = ranks > 1 ? in.stack->expert_imbalance : 0},
          .format = format,
          .times = static_cast<double>(passes)};
}

KernelUse collective_use(CollectiveKind kind, double bytes, std::int32_t gpus,
                         std::int32_t passes) {
  return {
      .call =
          CollectiveCall{.kind = kind, .bytes = bytes / passes, .gpus = static_cast<double>(gpus)},
      .format = weight_format(16, Dtype::kBf16),
      .times = static_cast<double>(passes)};
}

const KernelFormat* shared_attention_format(Dtype compute, Dtype kv) {
  static const auto all = [] {
    std::array<std::array<const KernelFormat*, kDtypes.size()>, kDtypes.size()> out{};
    for (const DtypeName& c : kDtypes) {
      for (const DtypeName& k : kDtypes) {
        out[static_cast<std::size_t>(c.dtype)][static_cast<std::size_t>(k.dtype)] =
            &shared_format(attention_format(is_16_bit(c.dtype) ? Dtype::kBf16 : c.dtype,
                                            is_16_bit(k.dtype) ? Dtype::kBf16 : k.dtype));
      }
    }
    return out;
  }();
  return all[static_cast<std::size_t>(compute)][static_cast<std::size_t>(kv)];
}

std::optional<KernelUse> stream_use(OpFamily family, std::int64_t rows, double read, double written,
                                    std::int32_t launches, Dtype dtype, std::int32_t passes) {
  if (launches != 1) return std::nullopt;
  ElementwiseKind kind = ElementwiseKind::kOther;
  switch (family) {
    case OpFamily::kNorm:
      kind = ElementwiseKind::kNorm;
      break;
    case OpFamily::kRope:
      kind = ElementwiseKind::kRope;
      break;
    case OpFamily::kEmbedding:
      kind = ElementwiseKind::kEmbedding;
      break;
    case OpFamily::kElementwise:
      kind = ElementwiseKind::kActivation;
      break;
    default:
      return std::nullopt;
  }
  return KernelUse{.call = ElementwiseCall{.kind = kind,
                                           .rows = static_cast<double>(rows) / passes,
                                           .bytes_read = read / passes,
                                           .bytes_written = written / passes},
                   .format = weight_format(bits_of(dtype), dtype),
                   .times = static_cast<double>(passes)};
}

bool has_lone_heads(const Stack& stack, const AttentionSpec& attention, bool several,
                    Dtype activations, Dtype cache) {
  return stack.joint_attention && (several || is_bounded(attention)) &&
         bits_of(cache) == bits_of(activations);
}

KernelUse lone_heads_use(double batch, double entries, std::int32_t q_heads, std::int32_t kv_heads,
                         std::int32_t head_dim, Dtype dtype) {
  // The form's tiles have 128 rows, so the time is half that of a piece of 128 tokens with the
  // (query, key) pairs of a full tile: the last block of 128 keys is half full on average, and half
  // of a piece's own tokens see each of its keys.
  constexpr double kTileRows = 64, kFormRows = 128;
  return {.call = PrefillAttentionCall{.batch = batch,
                                       .new_tokens = kFormRows,
                                       .prefix = entries,
                                       .q_heads = q_heads,
                                       .kv_heads = kv_heads,
                                       .head_dim = head_dim},
          .format = shared_attention_format(dtype, dtype),
          .times = kTileRows / kFormRows};
}

KernelUse convolution_use(std::int64_t rows, std::int64_t channels, std::int32_t passes) {
  return {.call = ConvolutionCall{.tokens = static_cast<double>(rows) / passes,
                                  .channels = static_cast<double>(channels)},
          .format = weight_format(16, Dtype::kBf16),
          .times = static_cast<double>(passes)};
}

std::optional<KernelUse> mixer_use(const LayerSpec& layer, const MixerOp& op, double sequences,
                                   const NewTokens& span) {
  static const auto known = [](std::string_view word) {
    return &shared_format(parse_kernel_format(word));
  };
  static const std::map<StateKind, const KernelFormat*> rules{
      {StateKind::kGatedDelta, known("gated_delta")},
      {StateKind::kKimiDelta, known("kimi_delta")},
      {StateKind::kMamba2, known("mamba2")}};
  static const std::array scores{known("bf16"), known("fp8")};
  const IndexSpec& index = layer.attention.index;
  // Entries of this rank that are visible to a query; the mean for a prompt.
  const double seen = (span.decodes ? span.end() : span.before + (span.tokens + 1) / 2) /
                      std::max(1, layer.attention.ratio) / layer.attention.context_ranks;
  switch (op.kind) {
    case MixerOpKind::kRecurrence: {
      const StateSpec& s = layer.state;
      const auto rule = rules.find(s.kind);
      if (rule == rules.end()) return std::nullopt;
      // For Mamba 2 only timings of prompt scans are published.
      if (s.kind == StateKind::kMamba2 && span.decodes) return std::nullopt;
      // Verifying a draft reads each state once and stores one per token.
      const double moved = span.decodes ? (1 + span.tokens) / 2 : 1;
      return KernelUse{.call = RecurrenceCall{.decode = span.decodes,
                                              .batch = sequences * moved,
                                              .tokens = span.decodes ? 1 : span.tokens,
                                              .heads = static_cast<double>(s.n_heads),
                                              .key_dim = static_cast<double>(s.key_dim),
                                              .value_dim = static_cast<double>(s.value_dim),
                                              .state_bytes = bits_of(s.dtype) / 8.0},
                       .format = rule->second};
    }
    case MixerOpKind::kIndexScores:
      return KernelUse{.call = IndexScoresCall{.decode = span.decodes,
                                               .batch = sequences,
                                               .queries = span.tokens,
                                               .keys = seen,
                                               .heads = static_cast<double>(index.n_heads),
                                               .head_dim = static_cast<double>(index.head_dim)},
                       .format = scores[op.is_8_bit ? 1 : 0]};
    case MixerOpKind::kIndexChoice:
      return KernelUse{.call = IndexChoiceCall{.rows = sequences * span.tokens,
                                               .length = seen,
                                               .chosen = static_cast<double>(index.top_k)},
                       .format = weight_format(32, Dtype::kFp32)};
    case MixerOpKind::kCompression:
      break;
  }
  return std::nullopt;
}

namespace {

bool chooses_latents(const AttentionSpec& attention) {
  return attention.kv_lora_rank > 0 && attention.index.top_k > 0;
}

}  // namespace

std::optional<KernelUse> sparse_decode_use(const AttentionSpec& attention, double sequences,
                                           double tokens, double attended, Dtype compute,
                                           Dtype kv) {
  if (!chooses_latents(attention)) return std::nullopt;
  return KernelUse{.call = SparseAttentionCall{.decode = true,
                                               .batch = sequences,
                                               .queries = tokens,
                                               .chosen = attended / attention.context_ranks,
                                               .heads = static_cast<double>(
                                                   attention.n_heads * attention.context_ranks)},
                   .format = shared_attention_format(compute, kv)};
}

std::optional<KernelUse> sparse_prompt_use(const Stack& stack, const AttentionSpec& attention,
                                           const NewTokens& piece, double pieces, Dtype compute,
                                           Dtype kv) {
  if (!chooses_latents(attention)) return std::nullopt;
  const double max = attention.index.top_k;
  if (stack.attends_short_densely && piece.end() <= max) {
    return KernelUse{.call = MlaCall{.decode = false,
                                     .batch = pieces,
                                     .seq_len = piece.tokens,
                                     .heads = attention.n_heads,
                                     .prefix = piece.before},
                     .format = shared_attention_format(compute, compute)};
  }
  return KernelUse{.call = SparseAttentionCall{.decode = false,
                                               .batch = pieces,
                                               .queries = piece.tokens,
                                               .chosen = max / attention.context_ranks,
                                               .heads = static_cast<double>(
                                                   attention.n_heads * attention.context_ranks)},
                   .format = shared_attention_format(compute, kv)};
}

KernelCall prompt_piece(const KernelCall& call, double tokens, double before) {
  KernelCall piece = call;
  if (auto* const prompt = std::get_if<PrefillAttentionCall>(&piece)) {
    prompt->new_tokens = tokens;
    prompt->prefix += before;
    return piece;
  }
  auto* const latent = std::get_if<MlaCall>(&piece);
  KVSIM_CHECK(latent != nullptr && !latent->decode, "a piece of what is no prompt's attention");
  latent->seq_len = tokens;
  latent->prefix += before;
  return piece;
}

double microseconds(const KernelChoice& choice, const KernelUse& use) {
  double us = 0;
  visit_calls(
      use, [&](double times, const KernelCall& call) { us += times * choice.microseconds(call); });
  return us;
}

KernelCall typical_call(const KernelUse& use) {
  const double tokens = use.chunk > 0 ? length_of(use.call) : 0;
  if (tokens <= use.chunk) return use.call;
  return prompt_piece(use.call, use.chunk, (tokens - use.chunk) / 2);
}

}  // namespace kvsim
