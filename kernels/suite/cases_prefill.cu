#include "kernels/prefill_scores.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases.hpp"

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
    const auto expected = kernels::prefill_score_reference(
        shape, static_cast<double>(arguments.scale), static_cast<double>(decay), q, keys);
    c.compare("mass", mass.download(0, shape.n_kv_heads * shape.tokens), expected, 2e-5);
  });
}

}  // namespace

void prefill_score_cases(Bench& bench) {
  const auto add = [&](auto type) {
    using T = decltype(type);
    for (const std::int64_t tokens : {1, 31, 33, 129}) {
      PrefillScoreShape shape{
          .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .tokens = tokens, .first = 0};
      prefill_case<T>(bench, shape, tokens == 33 ? 0.9F : 1.0F);
      if (tokens < 33) continue;
      shape.first = tokens - 7;  // a last window, over no edge of a tile and over one
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
