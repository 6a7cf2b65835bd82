#include "models/cost/iteration/mixed.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/cost/iteration/mixed_layer.hpp"
#include "models/cost/iteration/mixed_parts.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/units/check.hpp"

namespace kvsim {

std::int64_t MixedStep::rows() const {
  std::int64_t rows = decodes * decode_tokens;
  for (const PrefillChunk& chunk : chunks) rows += chunk.tokens;
  return rows;
}

std::int64_t MixedStep::sampled() const {
  std::int64_t tokens = decodes * decode_tokens;
  for (const PrefillChunk& chunk : chunks) tokens += chunk.last ? 1 : 0;
  return tokens;
}

std::vector<PrefillChunk> attended_of(const PromptPart& part,
                                      std::span<const PrefillChunk> chunks) {
  std::vector<PrefillChunk> out{chunks.begin(), chunks.end()};
  for (PrefillChunk& chunk : out) {
    const std::int64_t end = part.attended_of(chunk.before + chunk.tokens);
    chunk.before = chunk.before > 0 ? std::min(part.attended_of(chunk.before), end - 1) : 0;
    chunk.tokens = end - chunk.before;
  }
  return out;
}

LayerRows layer_rows(const MixedStep& step, const PromptPart& part) {
  const std::int64_t rows = step.rows();
  if (part.is_whole()) return {.projected = rows, .computed = rows};
  std::int64_t attended = step.decodes * step.decode_tokens;
  std::int64_t computed = attended;
  for (const PrefillChunk& chunk : attended_of(part, step.chunks)) {
    attended += chunk.tokens;
    computed += PromptPart{.computed = part.computed / part.attended}.computed_of(chunk.tokens);
  }
  return {.projected = part.chooses ? attended : computed, .computed = computed};
}

LayerRange all_layers(const Llm& llm) { return {.first = 0, .last = llm.n_layers()}; }

Bytes stage_boundary_bytes(const CostInput& in, std::int64_t rows) {
  return bytes_of(rows * in.llm->d_model, activation_dtype(in.weight_dtype));
}

CostInput of_one_sequence(const CostInput& in) {
  CostInput one = in;
  one.batch = 1;
  return one;
}

HeadRows head_rows(const CostInput& in, const MixedStep& step) {
  const std::int64_t rows = layer_rows(step, prompt_part(in, in.llm->n_layers() - 1)).computed;
  const std::int64_t sampled = step.sampled();
  const bool all = in.stack->logits == LogitPositions::kAll;
  return {.normed = rows, .logits = all ? rows : sampled, .sampled = sampled};
}

Seconds mixed_host_time(const CostInput& in, const MixedStep& step, std::int32_t layers) {
  const Stack& stack = *in.stack;
  const double launches = step.decodes > 0 ? method_operators(*in.method, stack) : 0;
  const Seconds layer = host_per_layer(stack, step.decodes, !step.chunks.empty());
  return stack.host_per_step +
         (layer + stack.host_per_launch * launches) * static_cast<double>(layers);
}

namespace {

CostInput of_sequences(const CostInput& in, const MixedStep& step) {
  CostInput of_all = in;
  of_all.batch = step.decodes + std::ssize(step.chunks);
  return of_all;
}

}  // namespace

Seconds mixed_between(const CostInput& in, const MixedStep& step) {
  return inter_step_overhead(of_sequences(in, step));
}

Seconds mixed_hidden(const CostInput& in, const MixedStep& step) {
  return hidden_scheduling(of_sequences(in, step));
}

void check_step(const CostInput& in, const MixedStep& step, const LayerRange& layers,
                std::size_t classes) {
  KVSIM_CHECK(layers.first >= 0 && layers.first < layers.last && layers.last <= in.llm->n_layers(),
              "layers {} to {} of {}", layers.first, layers.last, in.llm->n_layers());
  KVSIM_CHECK(step.decodes >= 0 && step.rows() >= 1, "a step of {} tokens", step.rows());
  KVSIM_CHECK(step.decodes == 0 || step.loads.size() == classes, "{} loads for {} layer classes",
              step.loads.size(), classes);
  for (const PrefillChunk& chunk : step.chunks) {
    KVSIM_CHECK(chunk.tokens >= 1 && chunk.before >= 0, "a chunk of {} tokens after {}",
                chunk.tokens, chunk.before);
  }
}

namespace {

std::shared_ptr<const OpGraph> shared(OpGraph graph) {
  return std::make_shared<const OpGraph>(std::move(graph));
}

/// Appends `add`'s graph for each layer of the range; consecutive layers of one column share a
/// graph.
template <class Make>
void add_layers(Step& step, const MixedColumns& columns, const LayerRange& range, Make&& make) {
  std::int32_t previous = -1;
  for (std::int32_t l = range.first; l < range.last; ++l) {
    const std::int32_t column = columns.of_layer[static_cast<std::size_t>(l)];
    if (column == previous) {
      ++step.segments.back().repeat;
      continue;
    }
    OpGraph graph = make(l, columns.columns[static_cast<std::size_t>(column)]);
    previous = graph.size() > 0 ? column : -1;
    if (graph.size() > 0)
      step.segments.push_back({.graph = shared(std::move(graph)), .first_layer = l});
  }
}

}  // namespace

OpGraph prompt_compression(const CostInput& one, std::int32_t layer, std::int64_t prompt) {
  const std::int64_t kept = held_entries(one, layer, prompt, prompt);
  prompt = prompt_part(one, layer).attended_of(prompt);
  return LayerBuilder{one, layer, prompt}.finish(
      {.prompt = prompt, .kept = std::min(kept, prompt), .score_rows = prompt});
}

std::optional<OpGraph> late_compression(const CostInput& one, std::int32_t layer,
                                        std::int64_t prompt) {
  if (one.method->prefill_peak() != PrefillPeak::kAllLayers) return std::nullopt;
  const std::int64_t kept = held_entries(one, layer, prompt, prompt);
  if (kept == prompt) return std::nullopt;
  return compress_layer(one, layer, prompt, kept);
}

namespace {

/// Returns the iteration without further passes over its prompts.
Step mixed_pass(const CostInput& in, const MixedStep& step, const LayerRange& range) {
  const CostInput one = of_one_sequence(in);
  const MixedColumns columns = mixed_columns(*in.llm, *in.method);
  check_step(in, step, range, columns.classes.size());
  Step out{.host = mixed_host_time(in, step, range.last - range.first) +
                   (range.head ? mixed_hidden(in, step) : Seconds{}),
           .between = range.head ? mixed_between(in, step) : Seconds{}};
  if (range.embedding) {
    const std::int64_t rows = layer_rows(step, split_part(in)).computed;
    out.segments.push_back({.graph = shared(embed_tokens(one, rows))});
  }
  add_layers(out, columns, range, [&](std::int32_t l, const MixedColumn& column) {
    std::vector<Op> middle;
    const auto add = [&](const Op& op) { middle.push_back(op); };
    const MixedLayer layer{one, l};
    DecodeBatch decodes{.sequences = step.decodes,
                        .tokens = step.decode_tokens,
                        .with_prompts = !step.chunks.empty()};
    if (step.decodes > 0) decodes.load = step.loads[static_cast<std::size_t>(column.layer_class)];
    layer.write(decodes, layer.chunk_writes(step.chunks), add);
    layer.decode(decodes, add);
    layer.prefill(step.chunks, add);
    for (const PrefillChunk& chunk : step.chunks) {
      if (!chunk.last) continue;
      const OpGraph end = prompt_compression(one, l, chunk.before + chunk.tokens);
      for (OpIndex i = 0; i < end.size(); ++i) add(end.op(i));
    }
    const LayerRows of_layer = layer_rows(step, prompt_part(one, l));
    return LayerBuilder{one, l, of_layer.projected}.around(middle, of_layer.computed,
                                                           !step.chunks.empty());
  });
  if (range.head) {
    out.segments.push_back({.graph = shared(output_logits(one, head_rows(in, step)))});
  }
  for (const PrefillChunk& chunk : step.chunks) {
    if (!chunk.last) continue;
    const std::int64_t prompt = chunk.before + chunk.tokens;
    add_layers(out, columns, range, [&](std::int32_t l, const MixedColumn&) {
      return late_compression(one, l, prompt).value_or(OpGraph{});
    });
  }
  return out;
}

}  // namespace

Step mixed_step(const CostInput& in, const MixedStep& step) {
  return mixed_step(in, step, all_layers(*in.llm));
}

Step mixed_step(const CostInput& in, const MixedStep& step, const LayerRange& range) {
  Step out = mixed_pass(in, step, range);
  const CostInput one = of_one_sequence(in);
  for (const PrefillChunk& chunk : step.chunks) {
    const std::int64_t prompt = chunk.before + chunk.tokens;
    const double repeats = chunk.last ? prefill_passes(one, prompt) - 1 : 0;
    if (repeats == 0) continue;
    const PrefillChunk whole{.tokens = prompt, .before = 0, .last = true};
    Step again = mixed_pass(in, {.loads = {}, .chunks = {&whole, 1}}, range);
    for (Segment& segment : again.segments) {
      segment.passes = repeats;
      out.segments.push_back(std::move(segment));
    }
  }
  return out;
}

}  // namespace kvsim
