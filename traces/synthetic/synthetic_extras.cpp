#include "traces/synthetic/synthetic_extras.hpp"

#include <algorithm>
#include <cmath>

#include "traces/synthetic/synthetic_draw.hpp"

namespace kvsim::synthetic {
namespace {

constexpr std::int64_t kScoreRows = 128;

}  // namespace

std::vector<float> kvzip_scores(const GenerateOptions& o, const Layer& layer) {
  const std::int64_t d = o.head_dim, group = o.heads / o.kv_heads;
  const std::int64_t first = o.with_repeat ? o.prompt_tokens + 2 : 0;
  const std::int64_t n = std::min(kScoreRows, o.tokens - first);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<float> scores(static_cast<std::size_t>(o.tokens * o.kv_heads));
  std::vector<double> p(static_cast<std::size_t>(o.tokens));
  for (std::int64_t i = 1; i <= n; ++i) {
    const std::int64_t t = first + i * (o.tokens - first) / n - 1;
    for (std::int64_t head = 0; head < o.heads; ++head) {
      const std::int64_t kv = head / group;
      const float* q = layer.q.data() + (t * o.heads + head) * d;
      double highest = -1e300, sum = 0;
      for (std::int64_t s = 0; s <= t; ++s) {
        const float logit = dot(q, layer.k.data() + (s * o.kv_heads + kv) * d, d);
        p[static_cast<std::size_t>(s)] = static_cast<double>(logit) * scale;
        highest = std::max(highest, p[static_cast<std::size_t>(s)]);
      }
      for (std::int64_t s = 0; s <= t; ++s) {
        double& x = p[static_cast<std::size_t>(s)];
        x = std::exp(x - highest);
        sum += x;
      }
      for (std::int64_t s = 0; s <= t; ++s) {
        float& best = scores[static_cast<std::size_t>(s * o.kv_heads + kv)];
        best = std::max(best, static_cast<float>(p[static_cast<std::size_t>(s)] / sum));
      }
    }
  }
  return scores;
}

std::vector<float> weighted_by_values(const GenerateOptions& o, const Layer& layer,
                                      std::vector<float> scores) {
  const std::int64_t d = o.head_dim;
  std::vector<float> length(scores.size());
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    double mean = 0;
    for (std::int64_t t = 0; t < o.tokens; ++t) {
      const std::int64_t at = t * o.kv_heads + head;
      const float* v = layer.v.data() + at * d;
      length[static_cast<std::size_t>(at)] = std::sqrt(dot(v, v, d));
      mean += static_cast<double>(length[static_cast<std::size_t>(at)]);
    }
    mean /= static_cast<double>(o.tokens);
    for (std::int64_t t = 0; t < o.tokens; ++t) {
      const auto at = static_cast<std::size_t>(t * o.kv_heads + head);
      scores[at] *= length[at] / static_cast<float>(mean);
    }
  }
  return scores;
}

std::vector<float> predicted(const GenerateOptions& o, std::int64_t layer,
                             std::vector<float> scores) {
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    const Draw draw{o.seed, Stream::kScore, layer, 0, t};
    for (std::int64_t head = 0; head < o.kv_heads; ++head) {
      float& x = scores[static_cast<std::size_t>(t * o.kv_heads + head)];
      x = std::log(x + 1e-6F) + 0.3F * draw.normal(head);
    }
  }
  return scores;
}

Decisions decide(const GenerateOptions& o, const Layer& layer, const std::vector<float>& scores) {
  Decisions out{std::vector<float>(scores.size()), std::vector<float>(scores.size(), 1.0F),
                std::vector<float>(scores.size())};
  constexpr std::int64_t kNeverEvicted = 4;
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    const auto at = [&](std::int64_t t) { return static_cast<std::size_t>(t * o.kv_heads + head); };
    std::vector<std::int64_t> order;
    for (std::int64_t t = 1; t < o.tokens; ++t) order.push_back(t);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return layer.key_cosine[at(a)] > layer.key_cosine[at(b)];
    });
    for (std::int64_t i = 0; i < o.tokens / 4; ++i)
      out.alpha[at(order[static_cast<std::size_t>(i)])] = 1;
    for (std::int64_t t = 1; t < o.tokens; ++t) {
      const float here = layer.key_square[at(t)], before = layer.key_square[at(t - 1)];
      out.omega[at(t)] = here / (here + before);
    }
    order.clear();
    for (std::int64_t t = kNeverEvicted; t < o.tokens; ++t) order.push_back(t);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return scores[at(a)] < scores[at(b)]; });
    const auto evicted = std::min(std::ssize(order), o.tokens / 2);
    for (std::int64_t i = 0; i < evicted; ++i)
      out.evict[at(order[static_cast<std::size_t>(i)])] = 1;
  }
  return out;
}

}  // namespace kvsim::synthetic
