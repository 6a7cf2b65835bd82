#include "sim/decoder/prompt_in_part.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "models/methods/prefill/blend.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

TraceLayer room_for(const DecoderShape& s, std::int64_t tokens) {
  const std::size_t head = index(tokens * s.head_dim);
  return {.q = std::vector<float>(head * index(s.n_heads)),
          .k = std::vector<float>(head * index(s.n_kv_heads)),
          .v = std::vector<float>(head * index(s.n_kv_heads))};
}

/// Computes every chunk separately, at its positions in the prompt.
std::vector<TraceLayer> rows_of_chunks(const Decoder& decoder, const PromptInPart& prompt) {
  const DecoderShape& s = decoder.shape();
  const auto n = std::ssize(prompt.tokens);
  std::vector<TraceLayer> layers(index(s.n_layers), room_for(s, n));
  for (std::size_t c = 0; c < prompt.starts.size(); ++c) {
    const std::int64_t first = prompt.starts[c];
    const std::int64_t end = c + 1 < prompt.starts.size() ? prompt.starts[c + 1] : prompt.reused;
    std::vector<float> x = decoder.embed(prompt.tokens.subspan(index(first), index(end - first)));
    for (std::int32_t l = 0; l < s.n_layers; ++l) {
      TraceLayer& rows = layers[index(l)];
      decoder.project(l, decoder.normed(l, x), first, n, rows);
      decoder.finish(l, decoder.attend(rows, first, end - first, n, first), x);
    }
  }
  return layers;
}

/// Calls `run(first, count, at)` for each run of consecutive tokens; `at`: index of the first.
template <class Run>
void each_run(std::span<const std::int32_t> tokens, Run&& run) {
  for (std::size_t at = 0; at < tokens.size();) {
    std::size_t end = at + 1;
    while (end < tokens.size() && tokens[end] == tokens[end - 1] + 1) ++end;
    run(std::int64_t{tokens[at]}, static_cast<std::int64_t>(end - at), at);
    at = end;
  }
}

/// Computes attention of the prompt's tokens over the keys that `pattern` selects: one query head,
/// q, keys and values [n, d], into columns of out [n, width].
void attend_pattern(const PrefillPattern& pattern, const PrefillHead& head,
                    std::span<const float> values, std::span<float> out, std::size_t width) {
  const std::size_t d = index(head.head_dim);
  std::vector<std::uint8_t> computed;
  std::vector<double> weights, sums(d);
  for (std::int64_t t = 0; t < head.prompt; ++t) {
    computed.assign(index(t + 1), 0);
    pattern.row(t, computed);
    weights.assign(computed.size(), -std::numeric_limits<double>::infinity());
    const std::span<const float> q = head.query(t);
    double max = weights.front();
    for (std::size_t i = 0; i < computed.size(); ++i) {
      if (computed[i] == 0) continue;
      const std::span<const float> key = head.key(static_cast<std::int64_t>(i));
      double sum = 0;
      for (std::size_t c = 0; c < d; ++c) {
        sum += static_cast<double>(q[c]) * static_cast<double>(key[c]);
      }
      weights[i] = sum * head.scale;
      max = std::max(max, weights[i]);
    }
    double total = 0;
    sums.assign(d, 0);
    for (std::size_t i = 0; i < computed.size(); ++i) {
      if (computed[i] == 0) continue;
      const double weight = std::exp(weights[i] - max);
      total += weight;
      for (std::size_t c = 0; c < d; ++c) {
        sums[c] += weight * static_cast<double>(values[i * d + c]);
      }
    }
    for (std::size_t c = 0; c < d; ++c) {
      out[index(t) * width + c] = static_cast<float>(sums[c] / total);
    }
  }
}

std::vector<TraceRows> sparse_rows(const Decoder& decoder, const PromptInPart& prompt,
                                   const PrefillRule& rule) {
  const DecoderShape& s = decoder.shape();
  const auto n = std::ssize(prompt.tokens);
  const std::size_t d = index(s.head_dim), width = d * index(s.n_heads), row = index(n) * d;
  std::vector<float> x = decoder.embed(prompt.tokens);
  std::vector<float> attended(index(n) * width);
  std::vector<TraceRows> out;
  for (std::int32_t l = 0; l < s.n_layers; ++l) {
    TraceLayer rows = room_for(s, n);
    decoder.project(l, decoder.normed(l, x), 0, n, rows);
    for (std::int32_t h = 0; h < s.n_heads; ++h) {
      const std::size_t kv = index(h / (s.n_heads / s.n_kv_heads)) * row;
      const PrefillHead head{.q = std::span{rows.q}.subspan(index(h) * row, row),
                             .keys = std::span{rows.k}.subspan(kv, row),
                             .prompt = n,
                             .head_dim = s.head_dim,
                             .scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim))};
      attend_pattern(*rule.start(head), head, std::span{rows.v}.subspan(kv, row),
                     std::span{attended}.subspan(index(h) * d), width);
    }
    decoder.finish(l, attended, x);
    out.push_back({std::move(rows.k), std::move(rows.v)});
  }
  return out;
}

std::vector<TraceRows> blended_rows(const Decoder& decoder, const PromptInPart& prompt,
                                    const PrefillRule& rule) {
  const DecoderShape& s = decoder.shape();
  const auto n = std::ssize(prompt.tokens);
  KVSIM_CHECK(rule.check_layer() && !prompt.starts.empty() && prompt.starts.front() == 0 &&
                  prompt.starts.back() < prompt.reused && prompt.reused <= n,
              "{} chunks of {} tokens in a prompt of {}", prompt.starts.size(), prompt.reused, n);
  std::vector<TraceLayer> layers = rows_of_chunks(decoder, prompt);
  const std::size_t width = index(s.d_model);
  std::vector<float> x = decoder.embed(prompt.tokens);
  std::vector<std::int32_t> computed(index(n));
  std::iota(computed.begin(), computed.end(), 0);
  const auto project = [&](std::int32_t l, TraceLayer& rows) {
    each_run(computed, [&](std::int64_t first, std::int64_t count, std::size_t at) {
      const auto from = x.begin() + static_cast<std::ptrdiff_t>(at * width);
      const std::vector<float> run(from, from + static_cast<std::ptrdiff_t>(index(count) * width));
      decoder.project(l, decoder.normed(l, run), first, n, rows);
    });
  };
  for (std::int32_t l = 0; l < s.n_layers; ++l) {
    TraceLayer& rows = layers[index(l)];  // of the chunks, then blended
    if (l == *rule.check_layer()) {
      TraceLayer own = room_for(s, n);
      project(l, own);
      computed = rule.computed_tokens(key_differences(own.k, rows.k, n, s.head_dim, prompt.reused));
      for (std::int64_t t = prompt.reused; t < n; ++t) {
        computed.push_back(static_cast<std::int32_t>(t));
      }
      std::vector<float> chosen;
      for (const std::int32_t t : computed) {
        const auto row = x.begin() + static_cast<std::ptrdiff_t>(index(t) * width);
        chosen.insert(chosen.end(), row, row + static_cast<std::ptrdiff_t>(width));
      }
      x = std::move(chosen);
    }
    project(l, rows);
    std::vector<float> attended;
    each_run(computed, [&](std::int64_t first, std::int64_t count, std::size_t) {
      const std::vector<float> run = decoder.attend(rows, first, count, n);
      attended.insert(attended.end(), run.begin(), run.end());
    });
    if (!computed.empty()) decoder.finish(l, attended, x);
  }
  std::vector<TraceRows> out;
  for (TraceLayer& rows : layers) out.push_back({std::move(rows.k), std::move(rows.v)});
  return out;
}

}  // namespace

std::vector<TraceRows> rows_in_part(const Decoder& decoder, const PromptInPart& prompt,
                                    const PrefillRule& rule) {
  return rule.check_layer() ? blended_rows(decoder, prompt, rule)
                            : sparse_rows(decoder, prompt, rule);
}

}  // namespace kvsim
