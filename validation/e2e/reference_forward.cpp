#include "validation/e2e/reference_forward.hpp"

#include <cmath>
#include <utility>

#include "models/math/counter_random.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// [rows, n]: x [rows, k] times the transpose of w [n, k].
std::vector<double> product(const std::vector<double>& x, std::span<const float> w,
                            std::int64_t rows, std::int64_t n, std::int64_t k) {
  std::vector<double> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        sum += x[at(r * k + i)] * static_cast<double>(w[at(j * k + i)]);
      }
      out.push_back(sum);
    }
  }
  return out;
}

std::vector<double> normed(const std::vector<double>& x, std::span<const float> weight,
                           double epsilon) {
  const auto width = std::ssize(weight);
  std::vector<double> out;
  for (std::int64_t r = 0; r < std::ssize(x) / width; ++r) {
    double squares = 0;
    for (std::int64_t i = 0; i < width; ++i) squares += x[at(r * width + i)] * x[at(r * width + i)];
    const double by = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::int64_t i = 0; i < width; ++i) {
      out.push_back(x[at(r * width + i)] * by * static_cast<double>(weight[at(i)]));
    }
  }
  return out;
}

void add(std::vector<double>& to, const std::vector<double>& x) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += x[i];
}

}  // namespace

ReferenceForward::ReferenceForward(const E2ePlan& plan, std::vector<float> weights)
    : plan_{plan},
      weights_{std::move(weights)},
      rope_{static_cast<std::int32_t>(plan.loop.model.head_dim), plan.loop.model.rope_theta, false},
      streams_(at(plan.loop.model.n_layers * plan.loop.cache_rows())),
      layers_(at(plan.loop.model.n_layers)) {
  for (std::int64_t layer = 0; layer < plan.loop.model.n_layers; ++layer) {
    for (std::int64_t row = 0; row < plan.loop.cache_rows(); ++row) {
      begin(streams_[index(layer, row)], layer, row);
    }
  }
}

/// Creates the prompt and the method's cache of it.
void ReferenceForward::begin(HeadStream& stream, std::int64_t layer, std::int64_t row) {
  const kernels::LoopSpec& s = plan_.loop;
  const std::int64_t group = s.model.n_heads / s.model.n_kv_heads;
  const std::int64_t tokens = s.prompt + s.steps;
  const std::int64_t d = s.model.head_dim;
  const std::uint64_t key =
      counter_key({s.seed, 7, static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(row)});
  std::uint64_t drawn = 0;
  const auto draw = [&](std::vector<float>& to, std::int64_t rows) {
    to.assign(at(rows * tokens * d), 0.0F);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < s.prompt * d; ++i) {
        to[at(r * tokens * d + i)] = static_cast<float>(2 * counter_uniform(key, ++drawn) - 1);
      }
    }
  };
  draw(stream.q, group);
  draw(stream.keys, 1);
  draw(stream.values, 1);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const HeadVectors head{.q = stream.q,
                         .keys = stream.keys,
                         .values = stream.values,
                         .group = static_cast<std::int32_t>(group),
                         .head_dim = static_cast<std::int32_t>(d),
                         .tokens = tokens,
                         .prompt = s.prompt,
                         .scale = scale};
  const ComposedMethod& method = as_composed(*plan_.method);
  const auto first_head = static_cast<std::int32_t>(row % s.model.n_kv_heads);
  stream.session = std::make_unique<CacheSession>(
      method,
      SessionPlace{.layer = static_cast<std::int32_t>(layer),
                   .n_layers = static_cast<std::int32_t>(s.model.n_layers),
                   .first_head = first_head,
                   .first_query_head = first_head * static_cast<std::int32_t>(group),
                   .group = static_cast<std::int32_t>(group),
                   .head_dim = static_cast<std::int32_t>(d),
                   .tokens = static_cast<std::int32_t>(tokens),
                   .scale = scale,
                   .seed = s.seed,
                   .rope = nullptr},
      std::vector<HeadVectors>{head});
  PromptScores scores{head};
  stream.session->learn(scores);
  stream.session->prefill(
      scores, {.entries = *method.parts().budget->entries(static_cast<std::int32_t>(layer))});
  KVSIM_CHECK(stream.session->entries().size() == s.held(0), "{} entries after the prompt, not {}",
              stream.session->entries().size(), s.held(0));
}

/// Computes the attention's output from the projection's rows, one stored head at a time.
void ReferenceForward::attend(std::int64_t layer, const std::vector<double>& projected) {
  const kernels::LoopModel& m = plan_.loop.model;
  const std::int64_t d = m.head_dim;
  const std::int64_t group = m.n_heads / m.n_kv_heads;
  const std::int64_t tokens = plan_.loop.prompt + plan_.loop.steps;
  const std::int64_t t = plan_.loop.prompt + done_;
  Layer& out_layer = layers_[at(layer)];
  out_layer = {};
  const auto take = [&](std::int64_t b, std::int64_t head, bool turns) {
    const auto from = projected.begin() + b * plan_.loop.qkv_width() + head * d;
    std::vector<double> row(from, from + d);
    if (turns) rope_.rotate(std::span<double>{row}, t);
    return row;
  };
  const auto put = [&](const std::vector<double>& row, std::vector<float>& to, std::int64_t first,
                       std::vector<double>& all) {
    for (std::int64_t i = 0; i < d; ++i) to[at(first + i)] = static_cast<float>(row[at(i)]);
    all.insert(all.end(), row.begin(), row.end());
  };
  for (std::int64_t b = 0; b < plan_.loop.batch; ++b) {
    for (std::int64_t h = 0; h < m.n_kv_heads; ++h) {
      HeadStream& stream = streams_[index(layer, b * m.n_kv_heads + h)];
      for (std::int64_t g = 0; g < group; ++g) {
        put(take(b, h * group + g, true), stream.q, (g * tokens + t) * d, out_layer.q);
      }
      put(take(b, m.n_heads + h, true), stream.keys, t * d, out_layer.keys);
      put(take(b, m.n_heads + m.n_kv_heads + h, false), stream.values, t * d, out_layer.values);
      stream.session->step();
      const std::span<const double> out = stream.session->output(0);
      out_layer.attended.insert(out_layer.attended.end(), out.begin(), out.end());
    }
  }
}

void ReferenceForward::step(std::span<const std::int32_t> tokens) {
  const kernels::LoopSpec& s = plan_.loop;
  const kernels::LoopModel& m = s.model;
  const kernels::LayerWeights w = layer_weights(s);
  const std::span<const float> all{weights_};
  std::vector<double> x;
  for (const std::int32_t token : tokens) {
    for (std::int64_t i = 0; i < m.d_model; ++i) {
      x.push_back(static_cast<double>(all[at(token * m.d_model + i)]));
    }
  }
  const std::int64_t q_width = m.n_heads * m.head_dim;
  std::int64_t first = m.vocab * m.d_model;
  for (std::int64_t layer = 0; layer < m.n_layers; ++layer, first += w.size) {
    const auto part = [&](std::int64_t from, std::int64_t n) {
      return all.subspan(at(first + from), at(n));
    };
    attend(layer,
           product(normed(x, part(w.input_norm, m.d_model), m.epsilon),
                   part(w.qkv, s.qkv_width() * m.d_model), s.batch, s.qkv_width(), m.d_model));
    add(x, product(layers_[at(layer)].attended, part(w.out, m.d_model * q_width), s.batch,
                   m.d_model, q_width));
    const auto both =
        product(normed(x, part(w.feed_forward_norm, m.d_model), m.epsilon),
                part(w.gate_up, 2 * m.d_ff * m.d_model), s.batch, 2 * m.d_ff, m.d_model);
    std::vector<double> gated;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t i = 0; i < m.d_ff; ++i) {
        const double gate = both[at(b * 2 * m.d_ff + i)];
        gated.push_back(gate / (1 + std::exp(-gate)) * both[at(b * 2 * m.d_ff + m.d_ff + i)]);
      }
    }
    add(x, product(gated, part(w.down, m.d_model * m.d_ff), s.batch, m.d_model, m.d_ff));
  }
  logits_ = product(normed(x, all.subspan(at(first), at(m.d_model)), m.epsilon),
                    all.subspan(at(first + m.d_model), at(m.vocab * m.d_model)), s.batch, m.vocab,
                    m.d_model);
  ++done_;
}

}  // namespace kvsim
