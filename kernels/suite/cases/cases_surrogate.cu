#include <algorithm>

#include "kernels/score/surrogate.hpp"
#include "kernels/suite/cases/cases.hpp"
#include "models/math/attention/surrogate.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

template <class T>
void linear_case(Bench& bench, const kernels::SurrogateShape& shape) {
  bench.add(
      text(shape.tokens) + " tokens of " + text(shape.inputs) + ", " + text(shape.heads) + " heads",
      Stored<T>::kName, [&](Case& c) {
        const auto hidden = c.draw<T>(shape.tokens * shape.inputs);
        Surrogate surrogate;
        surrogate.inputs = static_cast<std::int32_t>(shape.inputs);
        surrogate.outputs = static_cast<std::int32_t>(shape.heads);
        surrogate.w2 = c.draw(shape.heads * shape.inputs, -0.5, 0.5);
        surrogate.b2 = c.draw(shape.heads);
        auto& scores = c.output<float>("scores", shape.heads * shape.tokens);
        auto& keeps = c.output<std::int32_t>("keeps", shape.heads * shape.tokens);
        const LinearScores<T> arguments{.hidden = c.numbers<T>("hidden", hidden).span(),
                                        .weights = c.numbers<float>("weights", surrogate.w2).span(),
                                        .biases = c.numbers<float>("biases", surrogate.b2).span(),
                                        .threshold = 0.125F,
                                        .scores = scores.span(),
                                        .keeps = keeps.span()};
        c.run(linear_score_traffic(shape, sizeof(T)),
              [=](Stream s) { linear_scores<T>(s, shape, arguments); });
        if (c.timed_alone()) return;
        const std::vector<float> by_token = surrogate.predict(hidden);
        std::vector<double> expected;
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t t = 0; t < shape.tokens; ++t) {
            expected.push_back(static_cast<double>(by_token[at(t * shape.heads + h)]));
          }
        }
        const auto got = scores.download(0, shape.heads * shape.tokens);
        c.compare("scores", got, expected, 4e-6);
        std::vector<std::int32_t> stays;
        for (const float score : got) stays.push_back(score >= arguments.threshold ? 1 : 0);
        c.compare_exactly("keeps", keeps.download(0, shape.heads * shape.tokens), stays);
      });
}

}  // namespace

void linear_score_cases(Bench& bench) {
  for (const std::int64_t tokens : {1, 31, 257}) {
    const kernels::SurrogateShape shape{.tokens = tokens, .heads = 3, .inputs = 264};
    linear_case<float>(bench, shape);
    linear_case<kv::Half>(bench, shape);
    linear_case<kv::BFloat16>(bench, shape);
  }
  if (bench.large()) linear_case<kv::BFloat16>(bench, {.tokens = 8192, .heads = 8, .inputs = 4096});
}

}  // namespace kvsim::KVSIM_EXECUTOR
