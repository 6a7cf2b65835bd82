#include "traces/synthetic/synthetic_layer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "traces/synthetic/synthetic_draw.hpp"
#include "traces/synthetic/synthetic_latents.hpp"
#include "traces/synthetic/synthetic_mixture.hpp"

namespace kvsim::synthetic {
namespace {

constexpr float kSinkKey = 1.5F, kHeavyKey = 1.5F;  // relative to the length of an ordinary key

/// Keys before RoPE as a map of latents: [latent_size, kv_heads * head_dim].
std::vector<float> key_map(const GenerateOptions& o, const Attractors& attractors,
                           std::int64_t layer) {
  const std::int64_t m = latent_size(o), d = o.head_dim, band = (m - kContentAt) / kBands;
  std::vector<float> map(static_cast<std::size_t>(m * o.kv_heads * d));
  const float length = std::sqrt(static_cast<float>(d));
  const float unit = 1.0F / std::sqrt(static_cast<float>(m - kContentAt));
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    const Draw shape{o.seed, Stream::kProfile, layer, head, -1};
    // Bands that a head's keys contain; energies that sum to 4, so that an ordinary key has length
    // sqrt(d).
    std::array<float, kBands> energy{};
    float sum = 0;
    for (std::size_t b = 0; b < energy.size(); ++b) {
      energy[b] = 0.3F + static_cast<float>(shape.uniform(static_cast<std::int64_t>(b)));
      sum += energy[b];
    }
    for (std::int64_t row = 0; row < m; ++row) {
      float* to = map.data() + (row * o.kv_heads + head) * d;
      const Draw draw{o.seed, Stream::kKeyMap, layer, head, row};
      for (std::int64_t j = 0; j < d; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const float slow = attractors.sink_query[at] != 0 || attractors.sink_key[at] != 0 ||
                                   attractors.heavy_query[at] != 0
                               ? 0.3F  // keeps content out of the attractors' directions
                               : 1.0F;
        if (row == 0) {
          to[j] = 0.1F * slow * draw.normal(j);
        } else if (row == kSinkAt) {
          to[j] = kSinkKey * length * attractors.sink_key[at];
        } else if (row < kContentAt) {
          // Every head recognises two of the four kinds.
          const bool knows = (row - kHeavyAt + head) % 2 == 0;
          to[j] = knows ? kHeavyKey * length * attractors.heavy_key[at] : 0.0F;
        } else {
          const auto b = static_cast<std::size_t>((row - kContentAt) / band);
          to[j] = std::sqrt(kBands * energy[b] / sum) * unit * slow * draw.normal(j);
        }
      }
    }
  }
  return map;
}

}  // namespace

void fill_keys(const GenerateOptions& o, const std::vector<float>& latents,
               const Attractors& attractors, std::int64_t layer, Rotation& rope, Layer& out) {
  const std::int64_t m = latent_size(o), d = o.head_dim, width = o.kv_heads * d;
  const std::vector<float> keys = key_map(o, attractors, layer);
  const std::vector<float> values = random_map(o, Stream::kValueMap, layer, width);
  std::vector<float> before(static_cast<std::size_t>(width)), now(before.size());
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    const std::span<const float> row{latents.data() + t * m, static_cast<std::size_t>(m)};
    const auto wide = static_cast<std::size_t>(width);
    apply_map(row, values, std::span{out.v}.subspan(static_cast<std::size_t>(t) * wide, wide));
    apply_map(row, keys, now);
    rope.stand_at(t);
    for (std::int64_t head = 0; head < o.kv_heads; ++head) {
      const auto at = static_cast<std::size_t>(t * o.kv_heads + head);
      const float* key = now.data() + head * d;
      out.key_square[at] = dot(key, key, d);
      if (t > 0) {
        const float other = out.key_square[at - static_cast<std::size_t>(o.kv_heads)];
        out.key_cosine[at] =
            dot(key, before.data() + head * d, d) / std::sqrt(out.key_square[at] * other);
      }
      float* to = out.k.data() + t * width + head * d;
      std::copy_n(key, d, to);
      rope.turn(to);
    }
    std::swap(now, before);
  }
}

void fill_queries(const GenerateOptions& o, const Text& text, const Attractors& attractors,
                  std::int64_t layer, Rotation& rope, Layer& out) {
  const std::int64_t d = o.head_dim, group = o.heads / o.kv_heads;
  // q . k * scale is the logit: a query of length gain / (|k| * scale) along k gives `gain`.
  const double per_logit = std::sqrt(static_cast<double>(d));
  const auto along_sink = static_cast<float>(1.0 / static_cast<double>(kSinkKey));
  const auto along_heavy = static_cast<float>(1.0 / static_cast<double>(kHeavyKey));
  std::vector<Gains> gains;
  for (std::int64_t head = 0; head < o.heads; ++head) gains.push_back(gains_of(o, layer, head));
  std::vector<float> sink(static_cast<std::size_t>(d)), heavy(sink.size());
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    rope.stand_at(t);
    sink = attractors.sink_query;
    heavy = attractors.heavy_query;
    rope.turn(sink.data());
    rope.turn(heavy.data());
    const std::int64_t answer = text.answer[static_cast<std::size_t>(t)];
    for (std::int64_t head = 0; head < o.heads; ++head) {
      const Draw draw{o.seed, Stream::kQuery, layer, head, t};
      const Gains& gain = gains[static_cast<std::size_t>(head)];
      // The shares of each token's targets vary slightly at random.
      const float to_sink = along_sink * (static_cast<float>(gain.sink) + 0.4F * draw.normal(d));
      const float to_heavy =
          along_heavy * (static_cast<float>(gain.heavy) + 0.4F * draw.normal(d + 1));
      const std::int64_t kv = head / group;
      const auto aim = [&](std::int64_t at, double logit, float jitter) {
        const float square = out.key_square[static_cast<std::size_t>(at * o.kv_heads + kv)];
        return static_cast<float>(logit * per_logit) * (1 + jitter) /
               std::max(square, 0.25F * static_cast<float>(d));
      };
      const float to_here = aim(t, gain.local, 0.1F * draw.normal(d + 2));
      const float to_answer =
          answer < 0 ? 0 : aim(answer, gain.induction, 0.1F * draw.normal(d + 3));
      const float* here = out.k.data() + (t * o.kv_heads + kv) * d;
      const float* there = out.k.data() + (std::max<std::int64_t>(answer, 0) * o.kv_heads + kv) * d;
      float* q = out.q.data() + (t * o.heads + head) * d;
      for (std::int64_t j = 0; j < d; ++j) {
        const auto at = static_cast<std::size_t>(j);
        q[j] = to_sink * sink[at] + to_heavy * heavy[at] + to_here * here[j] +
               to_answer * there[j] + 0.3F * draw.normal(j);
      }
    }
  }
}

}  // namespace kvsim::synthetic
