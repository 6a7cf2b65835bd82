#include "traces/synthetic/generate.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "traces/synthetic/synthetic_draw.hpp"
#include "traces/synthetic/synthetic_extras.hpp"
#include "traces/synthetic/synthetic_latents.hpp"
#include "traces/synthetic/synthetic_layer.hpp"
#include "traces/synthetic/synthetic_rotation.hpp"
#include "traces/synthetic/synthetic_text.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

// ---- Options ----

void require(bool holds, std::string_view option, std::string_view range, std::string_view got) {
  if (!holds) throw InputError{option, range, got};
}

void require_range(std::string_view option, std::int64_t value, std::int64_t low,
                   std::int64_t high) {
  require(value >= low && value <= high, option, fmt::format("an integer in [{}, {}]", low, high),
          fmt::format("{}", value));
}

constexpr std::int64_t kSmallestModel = 16;

GenerateOptions checked(GenerateOptions o) {
  require_range("layers", o.layers, 1, 1024);
  require_range("heads", o.heads, 1, 1024);
  require_range("kv_heads", o.kv_heads, 1, 1024);
  require(o.heads % o.kv_heads == 0, "heads",
          fmt::format("a multiple of kv_heads ({})", o.kv_heads), fmt::format("{}", o.heads));
  require_range("head_dim", o.head_dim, 8, 1024);
  require(o.head_dim % 2 == 0, "head_dim", "an even integer", fmt::format("{}", o.head_dim));
  require_range("tokens", o.tokens, 2, 1 << 20);
  require_range("prompt_tokens", o.prompt_tokens, 1, o.tokens - 1);
  if (o.d_model == 0) {
    o.d_model = static_cast<std::int32_t>(
        std::max<std::int64_t>(std::int64_t{o.heads} * o.head_dim, kSmallestModel));
  }
  require_range("d_model", o.d_model, kSmallestModel, 1 << 20);
  require(o.dtype == Dtype::kFp32 || o.dtype == Dtype::kFp16 || o.dtype == Dtype::kBf16, "dtype",
          "fp32, fp16 or bf16", name_of(o.dtype));
  require(o.rope_theta > 1 && o.rope_theta <= 1e9, "rope_theta", "a number in (1, 1e9]",
          fmt::format("{}", o.rope_theta));
  if (o.with_repeat) {
    require(o.prompt_tokens >= 2, "prompt_tokens", "an integer >= 2 with a repeat",
            fmt::format("{}", o.prompt_tokens));
    require(o.tokens == 2 * o.prompt_tokens + 1, "tokens",
            fmt::format("{} (2 * prompt_tokens + 1) with a repeat", 2 * o.prompt_tokens + 1),
            fmt::format("{}", o.tokens));
  }
  return o;
}

// ---- The file ----

TensorType type_of(Dtype dtype) {
  if (dtype == Dtype::kFp32) return TensorType::kF32;
  return dtype == Dtype::kFp16 ? TensorType::kF16 : TensorType::kBF16;
}

std::string_view word_of(Dtype dtype) {
  if (dtype == Dtype::kFp32) return "float32";
  return dtype == Dtype::kFp16 ? "float16" : "bfloat16";
}

std::vector<TensorPlan> plan_of(const GenerateOptions& o) {
  const TensorType type = type_of(o.dtype);
  const std::int64_t t = o.tokens, d = o.head_dim;
  std::vector<TensorPlan> plan;
  for (std::int32_t layer = 0; layer < o.layers; ++layer) {
    const auto add = [&](std::string_view name, TensorType as, std::vector<std::int64_t> shape) {
      plan.push_back({fmt::format("layers.{}.{}", layer, name), as, std::move(shape)});
    };
    add("q", type, {t, o.heads, d});
    add("k", type, {t, o.kv_heads, d});
    add("v", type, {t, o.kv_heads, d});
    if (o.with_hidden) add("hidden", type, {t, o.d_model});
    if (o.with_output_projection) add("wo", type, {o.d_model, o.heads * d});
    // Scores span decades below the smallest number of fp16.
    if (o.with_scores) {
      for (const auto* name : {"score.kvzip", "score.kvzip_plus", "score.kvzap"}) {
        add(name, TensorType::kF32, {t, o.kv_heads});
      }
    }
    if (o.with_decisions) {
      for (const auto* name : {"decision.alpha", "decision.omega", "decision.evict"}) {
        add(name, TensorType::kF32, {t, o.kv_heads});
      }
    }
  }
  plan.push_back({"tokens", TensorType::kI32, {t}});
  return plan;
}

std::map<std::string, std::string> metadata_of(const GenerateOptions& o) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  const bool half = o.rope_style == RopeStyle::kHalfSplit;
  std::map<std::string, std::string> m{
      {"format", "kv-attention-trace"},
      {"version", "1"},
      {"model", "synthetic"},
      {"num_layers", text(o.layers)},
      {"num_q_heads", text(o.heads)},
      {"num_kv_heads", text(o.kv_heads)},
      {"head_dim", text(o.head_dim)},
      {"prompt_len", text(o.prompt_tokens)},
      {"num_tokens", text(o.tokens)},
      {"trained_context", "none: synthetic"},
      {"rope", fmt::format("rotary on {}, theta={}, positions 0..T-1; q and k are stored after "
                           "rotation",
                           half ? "pairs (i,i+d/2)" : "interleaved pairs (2i,2i+1)", o.rope_theta)},
      {"rope_style", half ? "half_split" : "interleaved"},
      {"rope_theta", text(o.rope_theta)},
      {"softmax_scale", text(1.0 / std::sqrt(static_cast<double>(o.head_dim)))},
      {"mask", "causal"},
      {"gqa", "query head h uses kv head h // (num_q_heads // num_kv_heads)"},
      {"dtype", std::string{word_of(o.dtype)}},
      {"sampling", "none: token ids drawn from the seed"},
      {"source",
       fmt::format(
           "synthetic, drawn by kvsim (generator 1): seed {}, {} layers, {}/{} heads of {}, "
           "{} tokens, d_model {}",
           o.seed, o.layers, o.heads, o.kv_heads, o.head_dim, o.tokens, o.d_model)}};
  if (o.with_repeat) {
    m["repeat_start"] = text(o.prompt_tokens + 2);
    m["repeat_len"] = text(o.prompt_tokens - 1);
    m["repeat_of"] = "tokens 1..context-1";
  }
  return m;
}

void write_hidden(const GenerateOptions& o, const std::vector<float>& latents, std::int64_t layer,
                  SafetensorsWriter& writer) {
  const std::int64_t m = synthetic::latent_size(o);
  const std::vector<float> map =
      synthetic::random_map(o, synthetic::Stream::kHiddenMap, layer, o.d_model);
  std::vector<float> row(static_cast<std::size_t>(o.d_model));
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    synthetic::apply_map({latents.data() + t * m, static_cast<std::size_t>(m)}, map, row);
    writer.write(std::span<const float>{row});
  }
}

void write_output_projection(const GenerateOptions& o, std::int64_t layer,
                             SafetensorsWriter& writer) {
  const std::int64_t width = std::int64_t{o.heads} * o.head_dim;
  const float unit = 1.0F / std::sqrt(static_cast<float>(width));
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < o.d_model; ++i) {
    const synthetic::Draw draw{o.seed, synthetic::Stream::kOutput, layer, 0, i};
    for (std::int64_t j = 0; j < width; ++j)
      row[static_cast<std::size_t>(j)] = unit * draw.normal(j);
    writer.write(std::span<const float>{row});
  }
}

}  // namespace

void generate_trace(const GenerateOptions& options, const std::filesystem::path& path) {
  const GenerateOptions o = checked(options);
  const synthetic::Text text = synthetic::draw_text(o);
  synthetic::Rotation rope{o};
  const synthetic::Attractors attractors = synthetic::attractors_of(o, rope);
  SafetensorsWriter writer{path, plan_of(o), metadata_of(o)};
  synthetic::Layer layer;
  const auto rows = static_cast<std::size_t>(o.tokens);
  const auto pairs = rows * static_cast<std::size_t>(o.kv_heads);
  layer.q.resize(rows * static_cast<std::size_t>(o.heads) * static_cast<std::size_t>(o.head_dim));
  layer.k.resize(pairs * static_cast<std::size_t>(o.head_dim));
  layer.v.resize(layer.k.size());
  layer.key_cosine.resize(pairs);
  layer.key_square.resize(pairs);
  for (std::int32_t i = 0; i < o.layers; ++i) {
    const auto progress = [&](double share) {
      if (o.progress) o.progress((static_cast<double>(i) + share) / static_cast<double>(o.layers));
    };
    progress(0);
    const std::vector<float> latents = synthetic::draw_latents(o, text, i);
    synthetic::fill_keys(o, latents, attractors, i, rope, layer);
    progress(0.4);
    synthetic::fill_queries(o, text, attractors, i, rope, layer);
    progress(0.7);
    for (const auto* tensor : {&layer.q, &layer.k, &layer.v}) {
      writer.write(std::span<const float>{*tensor});
    }
    if (o.with_hidden) write_hidden(o, latents, i, writer);
    if (o.with_output_projection) write_output_projection(o, i, writer);
    if (!o.with_scores && !o.with_decisions) continue;
    const std::vector<float> kvzip = synthetic::kvzip_scores(o, layer);
    if (o.with_scores) {
      const std::vector<float> plus = synthetic::weighted_by_values(o, layer, kvzip);
      writer.write(std::span<const float>{kvzip});
      writer.write(std::span<const float>{plus});
      writer.write(std::span<const float>{synthetic::predicted(o, i, plus)});
    }
    if (o.with_decisions) {
      const synthetic::Decisions d = synthetic::decide(o, layer, kvzip);
      for (const auto* tensor : {&d.alpha, &d.omega, &d.evict}) {
        writer.write(std::span<const float>{*tensor});
      }
    }
  }
  writer.write(std::span<const std::int32_t>{text.tokens});
  writer.finish();
  if (o.progress) o.progress(1);
}

}  // namespace kvsim
