#include "sim/replay/layer_block.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

#include "models/units/check.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/replay/retrieval.hpp"

namespace kvsim {

LayerBlock::LayerBlock(const Trace& trace, std::int32_t first, std::int32_t count,
                       const TraceInputs& inputs, const Rope* rope,
                       const std::map<std::string, SurrogateFile>& surrogates,
                       std::optional<HeadRange> heads)
    : info_{trace.info()},
      first_{first},
      range_{heads.value_or(HeadRange{0, trace.info().n_kv_heads})},
      rope_{rope} {
  layers_.reserve(static_cast<std::size_t>(count));  // views point into it
  if (inputs.token_ids) token_ids_ = trace.read_tokens();
  for (std::int32_t layer = first; layer < first + count; ++layer) {
    Layer& each = layers_.emplace_back();
    each.rows = trace.read_heads(layer, range_.first, range_.count);
    if (inputs.reused) each.reused = trace.read_reused(layer, range_.first, range_.count);
    each.view.layer = info_.number_of(layer);
    each.view.n_layers = info_.model_layers();
    each.view.rope = rope;
    if (inputs.hidden) {
      each.hidden = trace.read_hidden(layer);
      each.view.hidden = each.hidden;
      each.view.d_model = info_.d_model;
    }
    if (inputs.output_projection) {
      each.output_projection = trace.read_output_projection(layer);
      each.view.output_projection = each.output_projection;
      each.view.d_model = static_cast<std::int32_t>(
          each.output_projection.size() / static_cast<std::size_t>(info_.n_heads * info_.head_dim));
    }
    if (inputs.repeat && info_.repeat_start) {
      each.view.repeat_start = *info_.repeat_start;
      each.view.repeat_tokens = info_.repeat_tokens.value_or(0);
    }
    if (info_.samples_heads()) {
      each.view.head_numbers = info_.head_numbers[static_cast<std::size_t>(layer)];
    }
    each.view.token_ids = token_ids_;
    each.view.separator_ids = info_.separator_ids;
    for (const std::string& name : inputs.per_head) {
      constexpr std::string_view kIndex = "index.";
      each.per_head[name] = name.starts_with(kIndex)
                                ? trace.read_index(layer, name.substr(kIndex.size()))
                                : trace.read_per_head(layer, name);
      each.view.per_head[name] = each.per_head[name];
    }
    for (const auto& [name, file] : surrogates) {
      each.per_head[name] = file.layers[static_cast<std::size_t>(layer)].predict(each.hidden);
      each.view.per_head[name] = each.per_head[name];
    }
    for (std::int32_t h = 0; h < info_.n_kv_heads; ++h) each.view.heads.push_back(head(layer, h));
  }
}

LayerBlock::LayerBlock(const TraceInfo& info, std::vector<LayerRows> layers, const Rope* rope)
    : info_{info}, first_{0}, range_{0, info.n_kv_heads}, rope_{rope} {
  layers_.reserve(layers.size());  // views point into it
  for (LayerRows& from : layers) {
    const auto layer = static_cast<std::int32_t>(layers_.size());
    Layer& each = layers_.emplace_back();
    each.rows = std::move(from.rows);
    each.hidden = std::move(from.hidden);
    each.view.layer = layer;
    each.view.n_layers = info_.n_layers;
    each.view.rope = rope;
    if (!each.hidden.empty()) {
      each.view.hidden = each.hidden;
      each.view.d_model = info_.d_model;
    }
    if (!from.output_projection.empty()) {
      each.view.output_projection = from.output_projection;
      each.view.d_model = info_.d_model;
    }
    for (std::int32_t h = 0; h < info_.n_kv_heads; ++h) each.view.heads.push_back(head(layer, h));
  }
}

HeadVectors LayerBlock::head(std::int32_t layer, std::int32_t kv_head) const {
  const TraceLayer& rows = at(layer).rows;
  const std::int32_t group = info_.n_heads / info_.n_kv_heads;
  const auto row =
      static_cast<std::size_t>(info_.tokens) * static_cast<std::size_t>(info_.head_dim);
  const bool here = kv_head >= range_.first && kv_head < range_.first + range_.count;
  const auto h = static_cast<std::size_t>(here ? kv_head - range_.first : 0);
  const auto g = static_cast<std::size_t>(group);
  if (!here) {
    return {.q = {},
            .keys = {},
            .values = {},
            .group = group,
            .head_dim = info_.head_dim,
            .tokens = info_.tokens,
            .prompt = info_.prompt_tokens,
            .scale = info_.softmax_scale};
  }
  const TraceRows& reused = at(layer).reused;
  const auto reused_row = [&](const std::vector<float>& all) {
    return all.empty() ? std::span<const float>{} : std::span{all}.subspan(h * row, row);
  };
  return {.q = std::span{rows.q}.subspan(h * g * row, g * row),
          .keys = std::span{rows.k}.subspan(h * row, row),
          .values = std::span{rows.v}.subspan(h * row, row),
          .reused_keys = reused_row(reused.k),
          .reused_values = reused_row(reused.v),
          .group = group,
          .head_dim = info_.head_dim,
          .tokens = info_.tokens,
          .prompt = info_.prompt_tokens,
          .scale = info_.softmax_scale};
}

void LayerBlock::compute_references(std::int32_t threads, const StepSample& sample) {
  const auto heads = static_cast<std::size_t>(range_.count);
  const auto group = static_cast<std::size_t>(info_.n_heads / info_.n_kv_heads);
  const auto d = static_cast<std::size_t>(info_.head_dim);
  const auto steps = static_cast<std::size_t>(info_.tokens - info_.prompt_tokens);
  const auto max = static_cast<std::int64_t>(block_steps(group));
  struct Block {
    std::size_t first = 0, count = 0;
  };
  std::vector<Block> blocks;
  for (std::int64_t step = 0; step < sample.steps();) {
    const std::int64_t end = std::min(sample.run_end(step), step + max);
    if (sample.measures(step)) {
      blocks.push_back({static_cast<std::size_t>(step), static_cast<std::size_t>(end - step)});
    }
    step = end;
  }
  const auto first_head = static_cast<std::size_t>(range_.first);
  const std::optional<RetrievalMarks> marks = retrieval_marks(info_);
  for (Layer& layer : layers_) {
    layer.references.resize(static_cast<std::size_t>(info_.n_kv_heads));
    layer.retrieved.resize(static_cast<std::size_t>(info_.n_kv_heads));
    for (std::size_t h = first_head; h < first_head + heads; ++h) {
      layer.references[h].out.resize(steps * group * d);
      layer.references[h].log_sum.resize(steps * group);
      if (marks) layer.retrieved[h].resize(steps * group);
    }
  }
  parallel_for(layers_.size() * heads * blocks.size(), threads, [&](std::size_t task) {
    Layer& layer = layers_[task / (heads * blocks.size())];
    const HeadVectors& head = layer.view.heads[first_head + task / blocks.size() % heads];
    CausalAttention& to = layer.references[first_head + task / blocks.size() % heads];
    const auto [first, count] = blocks[task % blocks.size()];
    RunningAttention attention{head.group, head.head_dim, head.scale};
    attend_causally(attention, {head.q, head.keys, head.values, head.head_dim, head.tokens},
                    head.prompt + static_cast<std::int64_t>(first), count,
                    std::span{to.out}.subspan(first * group * d, count * group * d),
                    std::span{to.log_sum}.subspan(first * group, count * group));
    if (!marks) return;
    std::vector<float>& retrieved = layer.retrieved[first_head + task / blocks.size() % heads];
    largest_in_context(head, *marks, head.prompt + static_cast<std::int64_t>(first),
                       static_cast<std::int64_t>(count),
                       std::span{to.log_sum}.subspan(first * group, count * group),
                       std::span{retrieved}.subspan(first * group, count * group));
  });
}

std::vector<DecisionUnit> LayerBlock::units(const ComposedMethod& method) const {
  const std::int32_t group = info_.n_heads / info_.n_kv_heads;
  const bool together = method.decision_scope() == DecisionScope::kLayer;
  std::vector<DecisionUnit> units;
  for (std::int32_t layer = first_; layer < first_ + count();) {
    const std::int32_t depth = method.starts_pair(layer, info_.n_layers) ? 2 : 1;
    KVSIM_CHECK(layer + depth <= first_ + count(), "layer {} has its pair in another block", layer);
    DecisionUnit all{.layer = layer, .heads = {}};
    std::vector<DecisionUnit> single;
    for (std::int32_t h = range_.first; h < range_.first + range_.count; ++h) {
      for (std::int32_t g = method.parts().query_head ? 0 : -1;
           g < (method.parts().query_head ? group : 0); ++g) {
        single.push_back({.layer = layer, .heads = {{layer, h, g}}});
        if (depth == 2) single.back().heads.push_back({layer + 1, h, g});
      }
    }
    if (together) {
      for (std::int32_t deep = 0; deep < depth; ++deep) {
        for (const DecisionUnit& one : single) {
          all.heads.push_back(one.heads[static_cast<std::size_t>(deep)]);
        }
      }
      units.push_back(std::move(all));
    } else {
      for (DecisionUnit& one : single) units.push_back(std::move(one));
    }
    layer += depth;
  }
  return units;
}

std::vector<HeadVectors> LayerBlock::vectors(const DecisionUnit& unit) const {
  std::vector<HeadVectors> all;
  for (const auto& each : unit.heads) {
    const HeadVectors whole = head(each.layer, each.kv_head);
    all.push_back(each.query < 0 ? whole : part_of(whole, each.query, 1));
  }
  return all;
}

std::vector<HeadReference> LayerBlock::references(const DecisionUnit& unit) const {
  std::vector<HeadReference> all;
  for (const auto& each : unit.heads) {
    all.push_back({.attention = &at(each.layer).references[static_cast<std::size_t>(each.kv_head)],
                   .group = info_.n_heads / info_.n_kv_heads,
                   .first_query = std::max(each.query, 0),
                   .retrieved = at(each.layer).retrieved[static_cast<std::size_t>(each.kv_head)]});
  }
  return all;
}

PromptScores LayerBlock::fresh_scores(const DecisionUnit& unit) const {
  return PromptScores{vectors(unit), unit.heads.front().kv_head, at(unit.layer).view};
}

PromptScores& LayerBlock::scores(const DecisionUnit& unit) {
  auto& found = scores_[unit.heads];
  if (!found) found.reset(new PromptScores{fresh_scores(unit)});
  return *found;
}

SessionPlace LayerBlock::place(const DecisionUnit& unit, std::uint64_t seed) const {
  const bool split = unit.heads.front().query >= 0;
  const std::int32_t head = info_.head_number_of(unit.layer, unit.heads.front().kv_head);
  return {.layer = info_.number_of(unit.layer),
          .n_layers = info_.model_layers(),
          .first_head = head,
          .first_query_head =
              head * (info_.n_heads / info_.n_kv_heads) + std::max(unit.heads.front().query, 0),
          .group = split ? 1 : info_.n_heads / info_.n_kv_heads,
          .head_dim = info_.head_dim,
          .tokens = static_cast<std::int32_t>(info_.tokens),
          .scale = info_.softmax_scale,
          .seed = seed,
          .rope = rope_};
}

}  // namespace kvsim
