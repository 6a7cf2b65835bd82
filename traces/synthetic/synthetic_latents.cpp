#include "traces/synthetic/synthetic_latents.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvsim::synthetic {
namespace {

constexpr std::array kMemory{0.0F, 0.6F, 0.9F, 0.97F};              // band 0 is the embedding
constexpr std::array kFresh{1.0F, 0.8F, 0.43588989F, 0.24310492F};  // sqrt(1 - memory^2)
constexpr std::int64_t kContentLimit = 96;

}  // namespace

std::int64_t latent_size(const GenerateOptions& o) {
  return kContentAt +
         std::min<std::int64_t>(kContentLimit, o.d_model - kContentAt) / kBands * kBands;
}

std::vector<float> draw_latents(const GenerateOptions& o, const Text& text, std::int64_t layer) {
  const std::int64_t m = latent_size(o), band = (m - kContentAt) / kBands;
  std::vector<float> rows(static_cast<std::size_t>(o.tokens * m));
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    float* row = rows.data() + t * m;
    const std::int64_t origin = text.origin[static_cast<std::size_t>(t)];
    if (origin != t) {  // a repeat has the hidden rows of the tokens that it repeats
      std::copy_n(rows.data() + origin * m, m, row);
      continue;
    }
    row[0] = 1;
    if (t == 0) row[kSinkAt] = 1;
    const Draw heavy{o.seed, Stream::kHeavy, layer, 0, t};
    for (std::int64_t kind = 0; kind < kHeavyKinds && t > 0; ++kind) {
      if (heavy.uniform(2 * kind) < kHeavyShare) {
        row[kHeavyAt + kind] = 1 + 0.25F * heavy.normal(2 * kind + 1);
      }
    }
    const Draw embedding{o.seed, Stream::kEmbedding, 0, 0,
                         text.tokens[static_cast<std::size_t>(t)]};
    const Draw context{o.seed, Stream::kContext, layer, 0, t};
    for (std::int64_t j = 0; j < m - kContentAt; ++j) {
      const auto b = static_cast<std::size_t>(j / band);
      float* at = row + kContentAt + j;
      if (b == 0) {
        *at = embedding.normal(j);
      } else {
        *at = t == 0 ? context.normal(j) : kMemory[b] * at[-m] + kFresh[b] * context.normal(j);
      }
    }
  }
  // The first token has little content: its key is the sink's and its value is small, as in trained
  // models.
  for (std::int64_t j = kContentAt; j < m; ++j) rows[static_cast<std::size_t>(j)] *= 0.2F;
  return rows;
}

void apply_map(std::span<const float> row, const std::vector<float>& map, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t j = 0; j < row.size(); ++j) {
    const float x = row[j];
    if (x == 0) continue;
    const float* from = map.data() + j * out.size();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += x * from[i];
  }
}

std::vector<float> random_map(const GenerateOptions& o, Stream stream, std::int64_t layer,
                              std::int64_t columns) {
  const std::int64_t m = latent_size(o);
  std::vector<float> map(static_cast<std::size_t>(m * columns));
  const float unit = 1.0F / std::sqrt(static_cast<float>(m - kContentAt));
  for (std::int64_t row = 0; row < m; ++row) {
    const Draw draw{o.seed, stream, layer, 0, row};
    for (std::int64_t i = 0; i < columns; ++i) {
      map[static_cast<std::size_t>(row * columns + i)] = unit * draw.normal(i);
    }
  }
  return map;
}

}  // namespace kvsim::synthetic
