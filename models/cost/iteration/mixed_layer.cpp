#include "models/cost/iteration/mixed_layer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/cost/rates/kernel_use.hpp"
#include "models/methods/resolve/prompt_share.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Member = double StepTraffic::*;
constexpr std::array<Member, 15> kMembers{
    &StepTraffic::attention_read,  &StepTraffic::append_write, &StepTraffic::score_row_read,
    &StepTraffic::score_row_write, &StepTraffic::side_read,    &StepTraffic::side_write,
    &StepTraffic::move_read,       &StepTraffic::move_write,   &StepTraffic::link_read,
    &StepTraffic::link_write,      &StepTraffic::extra_flops,  &StepTraffic::rotated,
    &StepTraffic::repacked,        &StepTraffic::recopied,     &StepTraffic::scratch};

// Numbers of entries at which traffic is fitted by a line, and at which the line is verified: small
// and large, not round, so that traffic in pages or groups, or constant above a budget, is
// detected.
constexpr double kBase = 1000;
constexpr double kFar = 1777;
constexpr std::array<double, 14> kChecks{1,       2,    17,    129,   513.5,  1025,   2999,
                                         4097.25, 8191, 16411, 65537, 131101, 300007, 1000003};

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-11 * std::max(std::abs(a), std::abs(b));
}

}  // namespace

MixedColumns mixed_columns(const Llm& llm, const Method& method) {
  MixedColumns out;
  const std::vector<LayerGroup> groups = layer_groups(llm, method);
  const bool layers_equal = method.has_equal_layers();
  struct Key {
    std::int32_t first_equal, layer_class;
    bool operator==(const Key&) const = default;
  };
  std::vector<Key> keys;  // of columns
  // First layers of layer classes, if the method's layers hold equal numbers: layers of one class
  // have equal caches and one method kind.
  std::vector<std::int32_t> held;
  const auto equal_caches = [&](std::int32_t a, std::int32_t b) {
    const LayerSpec& one = llm.layers[static_cast<std::size_t>(a)];
    const LayerSpec& other = llm.layers[static_cast<std::size_t>(b)];
    return one.attention == other.attention && one.state == other.state &&
           method.layer_kind(a) == method.layer_kind(b);
  };
  for (const LayerGroup& group : groups) {
    for (std::int32_t l = group.first; l < group.first + group.count; ++l) {
      const auto same =
          layers_equal ? std::find_if(held.begin(), held.end(),
                                      [&](std::int32_t other) { return equal_caches(l, other); })
                       : held.end();
      const auto layer_class = static_cast<std::int32_t>(same - held.begin());
      if (same == held.end()) {
        held.push_back(l);
        out.classes.push_back({.layer = l, .layers = 0});
      }
      ++out.classes[static_cast<std::size_t>(layer_class)].layers;
      const Key key{.first_equal = group.first_equal, .layer_class = layer_class};
      const auto known = std::find(keys.begin(), keys.end(), key);
      const auto column = static_cast<std::int32_t>(known - keys.begin());
      if (known == keys.end()) {
        keys.push_back(key);
        out.columns.push_back({.first = l, .layer_class = layer_class, .layers = 0});
        std::size_t like = 0;
        while (keys[like].first_equal != key.first_equal ||
               method.prompt_part(out.columns[like].first) != method.prompt_part(l)) {
          ++like;  // ends at the new column
        }
        out.columns.back().first_equal = static_cast<std::int32_t>(like);
      }
      ++out.columns[static_cast<std::size_t>(column)].layers;
      out.of_layer.push_back(column);
    }
  }
  return out;
}

MixedLayer::MixedLayer(const CostInput& in, std::int32_t layer)
    : in_{in},
      stack_{*in.stack},
      spec_{in.llm->layers[static_cast<std::size_t>(layer)]},
      a_{spec_.attention},
      work_{attention_work(a_)},
      rows_{in, layer},
      layer_{layer},
      limit_{entry_limit(a_)},
      dtype_{activation_dtype(in.weight_dtype)},
      element_bytes_{bits_of(dtype_) / 8.0},
      fused_{stack_.attention == AttentionExec::kFused},
      math_{stack_.attention == AttentionExec::kMath},
      parts_{work_.is_latent ? 1 : 2},
      decode_format_{shared_attention_format(dtype_, in.kv_dtype)},
      prefill_format_{shared_attention_format(dtype_, dtype_)},
      extra_launches_{has_rows() ? method_operators(*in.method, *in.stack) : 0},
      mixes_{!mixer_operators(spec_, {}).empty()} {
  KVSIM_CHECK(in.batch == 1, "a mixed layer of a batch of {}", in.batch);
  const bool plain = rows_.plain();
  by_copy_ = stack_.growth == CacheGrowth::kConcatLayer || stack_.growth == CacheGrowth::kConcatAll;
  const bool holds_rows = has_rows() && work_.holds_rows;
  concats_ = plain && by_copy_ && holds_rows;
  expands_ = stack_.expands_kv_heads && !work_.is_latent;
  // As in LayerBuilder::prefill: the projected tensors are the cache itself, unless it is stored
  // elsewhere or in another format, or partly loaded from elsewhere.
  part_ = prompt_part(in, layer);
  writes_chunks_ = holds_rows && (part_.reused || is_preallocated(stack_) || !plain ||
                                  bits_of(rows_.dtype()) != bits_of(dtype_) ||
                                  rows_.stored_heads() != rows_.shape().n_kv_heads);
  if (plain) {
    // Eight entries on each rank, so that formats narrower than a byte have whole bytes.
    const std::int64_t n = std::int64_t{8} * work_.context_ranks;
    entry_bytes_ = {static_cast<double>(rows_.keys(n).count()) / static_cast<double>(n),
                    static_cast<double>(rows_.values(n).count()) / static_cast<double>(n)};
  }
  // Enough entries that formats which pack groups of rows have whole groups.
  const std::int64_t many = (std::int64_t{1} << 12U) * work_.context_ranks;
  stored_entry_bytes_ = static_cast<double>((rows_.keys(many) + rows_.values(many)).count()) /
                        static_cast<double>(many);
  kv_elements_ = static_cast<double>(work_.cached_elements());
  other_written_ = written_per_token(rows_.items());
  kv_attended_ = static_cast<double>(work_.prompt_elements);
  // Latents are expanded to activations first. A prompt's cache is compressed at its end; until
  // then its earlier parts are read uncompressed.
  const Dtype cached = plain ? rows_.dtype() : in.kv_dtype;
  prefix_entry_bytes_ =
      kv_attended_ *
      (work_.is_latent ? element_bytes_ : bits_of(cached) / 8.0 / work_.context_ranks);
  const MethodNeeds needs = in.method->needs();
  column_sums_ = needs.prompt_scores == PromptScoreClass::kColumnSums;
  score_copies_ = std::max(0, needs.score_copies - 1);
  // A latent serves all heads, and so do blocks across heads, in which a sequence has one length:
  // entries evicted by some heads are still held for others.
  const bool apart = stack_.growth != CacheGrowth::kPaged || stack_.per_head_blocks;
  if (!work_.is_latent && apart) {
    streaming_ = streaming_heads(*in.method, in.llm->n_layers(), rows_.stored_heads());
  }
  if (!has_rows()) return;
  lines_ = {line(false), line(true)};
  prompt_share_ = prompt_attention_share(*in.method, in.prompt);
}

StepTraffic MixedLayer::traffic_of_method(double attended, bool evicts) const {
  return in_.method->decode_traffic(layer_, rows_.shape(), in_.kv_dtype,
                                    attended / work_.context_ranks, evicts);
}

MixedLayer::Line MixedLayer::line(bool evicts) const {
  Line line{.base = traffic_of_method(kBase, evicts),
            .slope = traffic_of_method(kFar, evicts),
            .holds = true};
  for (const Member f : kMembers) {
    line.slope.*f = (line.slope.*f - line.base.*f) / (kFar - kBase);
    line.base.*f -= line.slope.*f * kBase;
  }
  for (const double n : kChecks) {
    const StepTraffic exact = traffic_of_method(n, evicts);
    for (const Member f : kMembers) {
      line.holds = line.holds && near(exact.*f, line.base.*f + line.slope.*f * n);
    }
  }
  return line;
}

double MixedLayer::attended(const DecodeBatch& decodes) const {
  if (!stack_.attends_allocated) return decodes.load.attended;
  const std::int64_t all = within_limit(limit_, in_.allocated);
  return std::max(decodes.load.attended, static_cast<double>(decodes.sequences * all));
}

void MixedLayer::check(const DecodeBatch& decodes) const {
  const DecodeLoad& load = decodes.load;
  KVSIM_CHECK(load.rewriting >= 0 && load.rewriting <= load.evicting && load.sliding >= 0 &&
                  load.holes >= 0 && load.rewriting + load.holes <= load.evicting &&
                  load.evicting + load.sliding <= decodes.sequences,
              "of {} sequences {} evict, {} rewrite, {} leave holes and {} slide",
              decodes.sequences, load.evicting, load.rewriting, load.holes, load.sliding);
  KVSIM_CHECK(decodes.tokens >= 1 &&
                  load.attended >= static_cast<double>(decodes.sequences * decodes.tokens),
              "{} sequences attend {} entries with {} new tokens each", decodes.sequences,
              load.attended, decodes.tokens);
}

MixedLayer::Sums MixedLayer::sums(const DecodeBatch& decodes, double attended) const {
  const auto n = static_cast<double>(decodes.sequences);
  const auto tokens = static_cast<double>(decodes.tokens);
  const auto evicting = static_cast<double>(decodes.load.evicting);
  const auto rewriting = static_cast<double>(decodes.load.rewriting);
  Sums out;
  if (n > evicting) {
    out.all = traffic(attended / n, false) * (n - evicting);
    out.moved.move_read = out.all.move_read * tokens;
    out.moved.move_write = out.all.move_write * tokens;
  }
  if (evicting > 0) {
    const StepTraffic one = traffic(attended / n, true);
    out.all += one * evicting;
    const double in_place = evicting - rewriting - static_cast<double>(decodes.load.holes);
    out.moved.move_read += one.move_read * in_place * tokens;
    out.moved.move_write += one.move_write * in_place * tokens;
    out.gathered.move_read = one.move_read * rewriting * tokens;
    out.gathered.move_write = one.move_write * rewriting * tokens;
  }
  if (decodes.tokens > 1) {
    // The cache is read once for all tokens of a sequence; other work is done for each token.
    const double read = out.all.attention_read;
    out.all = out.all * tokens;
    out.all.attention_read = read;
  }
  return out;
}

std::optional<KernelUse> MixedLayer::decode_use(const DecodeBatch& decodes, double attended,
                                                double attention_read) const {
  if (!rows_.plain() || stack_.expands_kv_heads || stack_.attention_per_clock > 0) {
    return std::nullopt;
  }
  const auto batch = static_cast<double>(decodes.sequences);
  const std::int32_t ranks = work_.context_ranks;
  // The tokens of a sequence share its cache like the query heads of a group.
  const auto heads = static_cast<std::int32_t>(a_.n_heads * ranks * decodes.tokens);
  const double here = attended / ranks;
  if (work_.is_latent) {
    return KernelUse{
        .call = MlaCall{.decode = true, .batch = batch, .seq_len = here / batch, .heads = heads},
        .format = decode_format_};
  }
  const double whole = attended * (entry_bytes_[0] + entry_bytes_[1]);
  const double share = whole > 0 ? attention_read / whole : 1;
  if (has_lone_heads(stack_, a_, decodes.with_prompts || decodes.tokens > 1, dtype_,
                     in_.kv_dtype)) {
    return lone_heads_use(batch, here / batch * share, a_.n_heads * ranks, rows_.stored_heads(),
                          a_.head_dim, dtype_);
  }
  return KernelUse{
      .call = DecodeAttentionCall{.batch = batch,
                                  .kv_len = here / batch * share,
                                  .longest = decodes.load.longest / ranks / batch * share,
                                  .q_heads = heads,
                                  .kv_heads = rows_.stored_heads(),
                                  .head_dim = a_.head_dim},
      .format = decode_format_};
}

double MixedLayer::pairs(const PrefillChunk& chunk) const {
  const LayerKind& kind = attention_kind(a_);
  return kind.pairs(spec_, static_cast<double>(chunk.before + chunk.tokens)) -
         kind.pairs(spec_, static_cast<double>(chunk.before));
}

std::vector<PrefillChunk> MixedLayer::streamed(std::span<const PrefillChunk> chunks) const {
  const auto less = [&](const PrefillChunk& chunk) { return chunk.before > streaming_.entries; };
  if (streaming_.share == 0 || std::none_of(chunks.begin(), chunks.end(), less)) return {};
  std::vector<PrefillChunk> out{chunks.begin(), chunks.end()};
  for (PrefillChunk& chunk : out) chunk.before = std::min(chunk.before, streaming_.entries);
  return out;
}

NewTokens MixedLayer::mean_of(std::span<const PrefillChunk> chunks) {
  double tokens = 0, causal = 0;
  for (const PrefillChunk& chunk : chunks) {
    const auto n = static_cast<double>(chunk.tokens);
    tokens += n;
    causal += n * (static_cast<double>(chunk.before) + n / 2);
  }
  const double mean = tokens / static_cast<double>(chunks.size());
  return {.tokens = mean, .before = std::max(0.0, causal / tokens - mean / 2), .decodes = false};
}

/// Represents a ragged batch by the same number of equal chunks, with the mean number of tokens and
/// of (query, key) pairs. Windows shorter than a prompt have no measurements. A share of the heads
/// takes that share of the time: chunks have enough blocks to fill a GPU with some of the heads.
std::optional<KernelUse> MixedLayer::prefill_use(std::span<const PrefillChunk> chunks,
                                                 double share) const {
  for (const PrefillChunk& chunk : chunks) {
    const std::int64_t seen = chunk.before + chunk.tokens;
    if (within_limit(limit_, seen) < seen) return std::nullopt;
  }
  const auto batch = static_cast<double>(chunks.size());
  NewTokens mean = mean_of(chunks);
  // Queries of part of the tokens are modelled as a piece with the same number of keys.
  const double queried = part_.computed / part_.attended * mean.tokens;
  mean.before += (mean.tokens - queried) / 2;
  mean.tokens = queried;
  if (work_.is_latent) {
    return KernelUse{.call = MlaCall{.decode = false,
                                     .batch = batch,
                                     .seq_len = mean.tokens,
                                     .heads = a_.n_heads,
                                     .prefix = mean.before},
                     .format = prefill_format_,
                     .times = share};
  }
  return KernelUse{
      .call = PrefillAttentionCall{.batch = batch,
                                   .new_tokens = mean.tokens,
                                   .prefix = mean.before,
                                   .q_heads = a_.n_heads,
                                   .kv_heads = stack_.expands_kv_heads ? a_.n_heads : a_.n_kv_heads,
                                   .head_dim = a_.head_dim},
      .format = prefill_format_,
      .times = share};
}

MixedLayer::ChunkWrites MixedLayer::chunk_writes(std::span<const PrefillChunk> chunks) const {
  ChunkWrites out;
  std::vector<PrefillChunk> of_part;
  if (part_.attended < 1) {
    of_part = attended_of(part_, chunks);
    chunks = of_part;
  }
  // If prompts are split over GPUs, each caches the entries of all of their tokens.
  const double computed = part_.computed * stack_.prefill_context / part_.attended;
  for (const PrefillChunk& chunk : chunks) {
    out.other += other_written_ * static_cast<double>(chunk.tokens);
    if (writes_chunks_) {
      out.read += computed * size(static_cast<double>(chunk.tokens) * kv_elements_);
      out.written += computed * stored(chunk);
      out.any = true;
    }
    if (concats_ && chunk.before > 0) {
      out.copied += static_cast<double>(chunk.before + chunk.tokens);
    }
  }
  return out;
}

Op MixedLayer::attend_items(const DecodeBatch& decodes) const {
  const auto sequences = static_cast<double>(decodes.sequences);
  const auto tokens = static_cast<double>(decodes.tokens);
  const double heads = a_.n_heads;
  const double pairs =
      heads * (tokens * decodes.load.attended - sequences * tokens * (tokens - 1) / 2);
  const double rows = sequences * tokens * heads;
  return {.name = "attention to chosen entries",
          .family = OpFamily::kSparseAttention,
          .flops = FlopCount{2 * pairs * (work_.score_width + work_.value_width)},
          .bytes_read = decodes.load.attended * entry_bytes(rows_.items()) +
                        work_.context_ranks * size(rows * work_.prompt_score_width),
          .bytes_written = work_.context_ranks * size(rows * work_.prompt_value_width),
          .dtype = dtype_,
          .kernel = sparse_decode_use(a_, sequences, tokens, decodes.load.attended / sequences,
                                      dtype_, in_.kv_dtype)};
}

Op MixedLayer::attend_items(std::span<const PrefillChunk> chunks) const {
  double tokens = 0, visited = 0, cached = 0;
  for (const PrefillChunk& chunk : chunks) {
    tokens += static_cast<double>(chunk.tokens);
    visited += pairs(chunk);
    cached += entries_held(rows_.items(), chunk.before);
  }
  const double heads = a_.n_heads;
  const std::int32_t ranks = work_.context_ranks;
  const std::int32_t parts = stack_.prefill_context;
  const double rows = tokens / parts * heads;
  return {.name = "attention to chosen entries",
          .family = OpFamily::kSparseAttention,
          .flops = FlopCount{2 * heads * visited / parts *
                             (work_.prompt_score_width + work_.prompt_value_width)},
          .bytes_read = ranks * size(rows * work_.prompt_score_width) +
                        size(tokens * static_cast<double>(work_.prompt_elements)) + cached,
          .bytes_written = ranks * size(rows * work_.prompt_value_width),
          .dtype = dtype_,
          .kernel = sparse_prompt_use(*in_.stack, a_, split_span(mean_of(chunks), parts),
                                      static_cast<double>(chunks.size()), dtype_, in_.kv_dtype)};
}

double MixedLayer::stored(const PrefillChunk& chunk) const {
  if (rows_.plain()) {
    return static_cast<double>(chunk.tokens) * (entry_bytes_[0] + entry_bytes_[1]);
  }
  const auto at = [&](std::int64_t n) { return n > 0 ? rows_.keys(n) + rows_.values(n) : Bytes{}; };
  return static_cast<double>((at(chunk.before + chunk.tokens) - at(chunk.before)).count());
}

Op MixedLayer::expansion(std::int64_t rows) const {
  const Llm& llm = *in_.llm;
  const auto n = static_cast<double>(rows);
  const LayerSpec& spec = llm.layers[static_cast<std::size_t>(layer_)];
  const std::vector<LayerMatrix> matrices = mixer_matrices(spec, llm.d_model);
  std::size_t i = 0;
  while (matrices[i].role != MatrixRole::kValue) ++i;
  const MatrixPlace place{matrices[i].part, spec.formats[i]};
  const std::int64_t latent = work_.expansion_in;
  const std::int64_t wide = work_.expansion_out;
  const auto weights =
      static_cast<double>(matrix_bytes(llm, in_.weights(), place, latent, wide).count());
  const Dtype product = product_dtype(llm, in_.weights(), place);
  return {.name = "latent expansion of the prefix",
          .family = OpFamily::kGemm,
          .flops = FlopCount{2 * n * static_cast<double>(latent) * static_cast<double>(wide)},
          .bytes_read = weights + n * kv_elements_ * bits_of(in_.kv_dtype) / 8.0,
          .bytes_written = size(n * static_cast<double>(wide)),
          .dtype = product,
          .kernel = gemm_use(rows, wide, latent, weights, product, 1,
                             is_block_scaled(llm, in_.weights(), place))};
}

}  // namespace kvsim
