#include "models/methods/learn/oracle.hpp"

#include <algorithm>

#include "models/math/attention/repeat_scores.hpp"
#include "models/units/check.hpp"

namespace kvsim {

TraceInputs oracle_inputs(const OracleSettings& settings) {
  TraceInputs inputs;
  inputs.repeat = true;
  inputs.output_projection = settings.plus;
  inputs.hidden = settings.plus && !settings.residual_norm;
  if (settings.plus && settings.residual_norm) inputs.per_head = {kResidualNorm};
  return inputs;
}

std::vector<double> recorded_scores(const PromptScores& scores, const std::string& name,
                                    std::size_t head) {
  const LayerVectors& layer = scores.layer();
  const auto found = layer.per_head.find(name);
  KVSIM_CHECK(found != layer.per_head.end(), "layer {} has no {}", layer.layer, name);
  const auto heads = layer.heads.size();
  const auto tokens = static_cast<std::size_t>(scores.heads().front().tokens);
  KVSIM_CHECK(found->second.size() == tokens * heads, "{} {} for {} tokens and {} heads",
              found->second.size(), name, tokens, heads);
  std::vector<double> column(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    column[t] = static_cast<double>(
        found->second[t * heads + static_cast<std::size_t>(scores.first_head()) + head]);
  }
  return column;
}

std::vector<double> oracle_scores(const PromptScores& scores, const OracleSettings& settings) {
  const LayerVectors& layer = scores.layer();
  const HeadVectors& head = scores.heads().front();
  std::vector<double> key_weights;
  std::vector<double> query_weights;
  if (settings.plus) {
    const auto columns = static_cast<std::int64_t>(layer.heads.size()) * head.group * head.head_dim;
    KVSIM_CHECK(!layer.output_projection.empty(), "layer {} has no output projection", layer.layer);
    key_weights = projected_value_norms(
        head.values, head.prompt, head.head_dim, head.group, layer.output_projection, columns,
        static_cast<std::int64_t>(scores.first_head()) * head.group * head.head_dim);
    if (settings.residual_norm) {
      const std::vector<double> norms = recorded_scores(scores, kResidualNorm);
      query_weights.assign(norms.begin() + layer.repeat_start,
                           norms.begin() + layer.repeat_start + layer.repeat_tokens);
    } else {
      query_weights =
          row_norms(layer.hidden, layer.d_model, layer.repeat_start, layer.repeat_tokens);
    }
    for (double& norm : query_weights) norm = norm > 0 ? 1.0 / norm : 0.0;
  }
  return repeat_scores({.q = head.q,
                        .keys = head.keys,
                        .group = head.group,
                        .head_dim = head.head_dim,
                        .tokens = head.tokens,
                        .prompt = head.prompt,
                        .repeat_start = layer.repeat_start,
                        .repeat_tokens = layer.repeat_tokens,
                        .scale = head.scale,
                        .chunk = settings.chunk,
                        .sinks = settings.sinks,
                        .subsample = settings.subsample,
                        .key_weights = key_weights,
                        .query_weights = query_weights});
}

PrefillExtra oracle_cost(const OracleSettings& settings, const LayerShape& shape,
                         std::int32_t d_model, std::int64_t prompt) {
  const double heads = shape.n_heads;
  const double d = shape.head_dim;
  PrefillExtra extra;
  double fed_tokens = 0;
  const std::int64_t chunk = std::min(settings.chunk, prompt);
  for (std::int64_t first = 0; first < prompt; first += chunk) {
    const auto m = static_cast<double>(std::min(chunk, prompt - first));
    const double fed = m + static_cast<double>(settings.carry_over);
    fed_tokens += fed;
    extra.flops += 2.0 * heads * fed * (m + fed) * d;
    extra.launches += 4;  // product, softmax, maximum, store
  }
  extra.prefill_repeats = fed_tokens / static_cast<double>(prompt);
  if (settings.plus) extra.flops += 2.0 * heads * static_cast<double>(prompt) * d * d_model;
  const std::int64_t fed = chunk + settings.carry_over;
  extra.transient = Bytes{static_cast<std::int64_t>(shape.n_heads) * fed * (chunk + fed) * 4 +
                          static_cast<std::int64_t>(shape.n_kv_heads) * prompt * 4};
  extra.written = static_cast<double>(shape.n_kv_heads) * static_cast<double>(prompt) * 4.0;
  extra.read = extra.written;
  return extra;
}

}  // namespace kvsim
