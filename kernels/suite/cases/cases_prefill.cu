#include <algorithm>

#include "kernels/reference.hpp"
#include "kernels/score/eager_scores.hpp"
#include "kernels/score/prefill_scores.hpp"
#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::PrefillScoreShape;

template <class T>
void prefill_case(Bench& bench, const PrefillScoreShape& shape, float decay) {
  const std::string words = "heads " + text(shape.n_heads) + "/" + text(shape.n_kv_heads) + "x" +
                            text(shape.head_dim) + ", " + text(shape.tokens) + " tokens, from " +
                            text(shape.first) + (decay < 1 ? ", decayed" : "");
  bench.add(words, Stored<T>::kName, [&](Case& c) {
    const auto q = c.draw<T>(shape.n_heads * shape.tokens * shape.head_dim, -2, 2);
    const auto keys = c.draw<T>(shape.n_kv_heads * shape.tokens * shape.head_dim, -2, 2);
    auto& log_sum = c.output<float>("log_sum", shape.n_heads * shape.tokens);
    auto& mass = c.output<float>("mass", shape.n_kv_heads * shape.tokens);
    const PrefillScores<T> arguments{.q = c.numbers<T>("q", q).span(),
                                     .keys = c.numbers<T>("keys", keys).span(),
                                     .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
                                     .decay = decay,
                                     .log_sum = log_sum.span(),
                                     .mass = mass.span()};
    c.run(prefill_score_traffic(shape, sizeof(T)),
          [=](Stream s) { prefill_scores<T>(s, shape, arguments); });
    if (c.timed_alone()) return;
    const auto expected = kernels::prefill_score_reference(
        shape, static_cast<double>(arguments.scale), static_cast<double>(decay), q, keys);
    c.compare("mass", mass.download(0, shape.n_kv_heads * shape.tokens), expected, 2e-5);
  });
}

template <class T>
void eager_case(Bench& bench, const kernels::EagerScoreShape& shape, float decay) {
  const std::string words = "heads " + text(shape.n_heads) + "/" + text(shape.n_kv_heads) + "x" +
                            text(shape.head_dim) + ", " + text(shape.tokens) + " tokens, from " +
                            text(shape.first) + ", " + text(shape.rows) + " rows a chunk" +
                            (decay < 1 ? ", decayed" : "");
  bench.add(words, Stored<T>::kName, [&](Case& c) {
    const auto q = c.draw<T>(shape.n_heads * shape.tokens * shape.head_dim);
    const auto keys = c.draw<T>(shape.n_kv_heads * shape.tokens * shape.head_dim);
    const std::int64_t matrix = shape.n_heads * shape.rows * shape.tokens;
    auto& mass = c.output<float>("mass", shape.n_kv_heads * shape.tokens);
    const EagerScores<T> arguments{.q = c.numbers<T>("q", q).span(),
                                   .keys = c.numbers<T>("keys", keys).span(),
                                   .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
                                   .decay = decay,
                                   .logits = c.output<T>("logits", matrix).span(),
                                   .probabilities = c.output<float>("probabilities", matrix).span(),
                                   .mass = mass.span()};
    kernels::KernelTraffic traffic{Bytes{0}, Bytes{0}, 0, 0};
    kernels::EagerScoreShape chunk = shape;
    for (; chunk.first < shape.tokens; chunk.first += shape.rows) {
      chunk.rows = std::min(shape.rows, shape.tokens - chunk.first);
      traffic =
          traffic + score_matrix_traffic(chunk, sizeof(T)) +
          kernels::softmax_traffic({.rows = shape.n_heads * chunk.rows, .width = shape.tokens},
                                   sizeof(T), sizeof(float)) +
          column_sums_traffic(chunk, chunk.first > shape.first);
    }
    c.run(traffic, [=](Stream s) { eager_scores<T>(s, shape, arguments); });
    if (c.timed_alone()) return;
    const PrefillScoreShape of{.n_heads = shape.n_heads,
                               .n_kv_heads = shape.n_kv_heads,
                               .head_dim = shape.head_dim,
                               .tokens = shape.tokens,
                               .first = shape.first};
    const auto expected = kernels::prefill_score_reference(of, static_cast<double>(arguments.scale),
                                                           static_cast<double>(decay), q, keys);
    // Logits of at most 2 are rounded to T before their exponentials.
    c.compare("mass", mass.download(0, shape.n_kv_heads * shape.tokens), expected,
              2 * Stored<T>::kRounding + 1e-5);
  });
}

}  // namespace

void eager_score_cases(Bench& bench) {
  const auto add = [&](auto type) {
    using T = decltype(type);
    for (const std::int64_t tokens : {1, 31, 129}) {
      kernels::EagerScoreShape shape{
          .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .tokens = tokens, .rows = tokens};
      eager_case<T>(bench, shape, tokens == 31 ? 0.9F : 1.0F);
      if (tokens < 129) continue;
      shape.rows = 50;  // chunks, the last one shorter
      eager_case<T>(bench, shape, 0.95F);
      shape.first = tokens - 7;  // a last window
      shape.rows = 7;
      shape.head_dim = 128;
      eager_case<T>(bench, shape, 1);
    }
  };
  add(float{});
  add(kv::Half{});
  add(kv::BFloat16{});
  if (!bench.large()) return;
  for (const std::int64_t rows : {2048, 256}) {
    eager_case<kv::BFloat16>(
        bench,
        {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .tokens = 2048, .first = 0, .rows = rows},
        1);
  }
}

void prefill_score_cases(Bench& bench) {
  const auto add = [&](auto type) {
    using T = decltype(type);
    for (const std::int64_t tokens : {1, 31, 33, 129}) {
      PrefillScoreShape shape{
          .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .tokens = tokens, .first = 0};
      prefill_case<T>(bench, shape, tokens == 33 ? 0.9F : 1.0F);
      if (tokens < 33) continue;
      shape.first = tokens - 7;  // a last window, not crossing and crossing the edge of a tile
      shape.head_dim = 128;
      prefill_case<T>(bench, shape, 1);
    }
  };
  add(float{});
  add(kv::Half{});
  add(kv::BFloat16{});
  if (!bench.large()) return;
  for (const std::int64_t first : {0, 2016}) {  // all rows, and the last 32
    prefill_case<kv::BFloat16>(
        bench, {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .tokens = 2048, .first = first},
        1);
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR
