#include "models/cost/layer/step_graphs.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "models/cost/layer/collectives.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

Segment segment(OpGraph graph, std::int32_t first_layer = -1) {
  return {.graph = std::make_shared<const OpGraph>(std::move(graph)), .first_layer = first_layer};
}

}  // namespace

OpGraph prefill_layer(const CostInput& in, std::int32_t layer, const PrefillState& moment) {
  KVSIM_CHECK(moment.prompt >= 1 && moment.score_rows >= 1, "prefill of {} tokens in {} rows",
              moment.prompt, moment.score_rows);
  const PromptPart part = prompt_part(in, layer);
  if (part.is_whole()) return LayerBuilder{in, layer, moment.prompt}.prefill(moment);
  PrefillState of_part = moment;
  of_part.prompt = part.attended_of(moment.prompt);
  of_part.kept = std::min(moment.kept, of_part.prompt);
  const std::int64_t computed = part.computed_of(moment.prompt);
  return LayerBuilder{in, layer, part.chooses ? of_part.prompt : computed}.prefill(of_part);
}

std::vector<OpGraph> prefill_layers(const CostInput& in, std::int32_t layer,
                                    const PrefillState& moment,
                                    std::span<const std::int64_t> kept) {
  KVSIM_CHECK(prompt_part(in, layer).is_whole(),
              "layer {} computes as much of a prompt as it keeps", layer);
  LayerBuilder all{in, layer, moment.prompt};
  const LayerBuilder::Prefilled before = all.prefill_whole(moment);
  std::vector<OpGraph> graphs;
  graphs.reserve(kept.size());
  for (const std::int64_t entries : kept) {
    LayerBuilder one = all;
    graphs.push_back(one.prefill_kept(before, moment.prompt, entries));
  }
  return graphs;
}

OpGraph decode_layer(const CostInput& in, std::int32_t layer, const DecodeState& moment) {
  return LayerBuilder{in, layer, 1}.decode(moment);
}

OpGraph decode_layer_middle(const CostInput& in, std::int32_t layer, const DecodeState& moment) {
  return LayerBuilder{in, layer, 1}.decode(moment, false);
}

OpGraph compress_layer(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                       std::int64_t kept) {
  return LayerBuilder{in, layer, prompt}.compress(prompt, kept);
}

OpGraph embed_tokens(const CostInput& in, std::int64_t tokens) {
  const Dtype dtype = activation_dtype(in.weight_dtype);
  const std::int64_t elements = in.batch * tokens * in.llm->d_model;
  const double bytes = static_cast<double>(bytes_of(elements, dtype).count());
  OpGraph graph;
  const OpIndex op = graph.add(
      {.name = "embedding",
       .family = OpFamily::kEmbedding,
       .bytes_read = static_cast<double>(matrix_bytes(*in.llm, in.weights(), WeightPart::kEmbedding,
                                                      in.batch * tokens, in.llm->d_model)
                                             .count()),
       .bytes_written = bytes,
       .dtype = dtype});
  const Product size = rows_product(in, tokens).times(in.llm->d_model).in(dtype);
  graph.hold("input embeddings", Owner::kActivations, size, allocator_rounded(in, size.bytes()),
             op);
  return graph;
}

OpGraph embed_prompt(const CostInput& in, std::int64_t prompt) {
  return embed_tokens(in, split_part(in).computed_of(prompt));
}

namespace {

/// Simultaneously alive rows.
struct RowProducts {
  Product normed, logits;
};

OpGraph output_logits(const CostInput& in, const HeadRows& of, const RowProducts& held) {
  const Llm& llm = *in.llm;
  const Dtype dtype = activation_dtype(in.weight_dtype);
  const MatrixPlace head{WeightPart::kHead, llm.head_format};
  const Dtype dense = product_dtype(llm, in.weights(), head);
  const auto size = [](std::int64_t n, Dtype d) {
    return static_cast<double>(bytes_of(n, d).count());
  };
  const std::int64_t hidden = of.normed * llm.d_model;
  const std::int64_t logit_rows = of.logits;
  const std::int64_t logits = logit_rows * llm.vocab_size;
  const std::int64_t whole_vocab = in.vocab_size > 0 ? in.vocab_size : llm.vocab_size;

  OpGraph graph;
  const auto hold = [&](std::string_view name, Owner owner, Product rows, std::int64_t width,
                        const char* unit, Dtype element, OpIndex first) {
    rows.times(width, unit).in(element);
    return graph.hold(name, owner, rows, allocator_rounded(in, rows.bytes()), first);
  };
  const std::size_t x =
      hold("hidden states", Owner::kActivations, held.normed, llm.d_model, "", dtype, 0);
  const OpIndex norm = graph.add({.name = "final norm",
                                  .family = OpFamily::kNorm,
                                  .bytes_read = size(hidden, dtype),
                                  .bytes_written = size(hidden, dtype),
                                  .launches = in.stack->norm_launches,
                                  .dtype = dtype});
  const std::size_t normed =
      hold("final norm output", Owner::kActivations, held.normed, llm.d_model, "", dtype, norm);
  if (!in.stack->keeps_inputs) graph.release(x, norm);
  if (in.hand_overs > 0) {
    graph.add({.name = "hidden states to the next GPU",
               .family = OpFamily::kCollective,
               .bytes_read = size(hidden, dtype) * in.hand_overs,
               .launches = in.hand_overs,
               .dtype = dtype},
              {norm});
  }
  OpIndex before = norm;
  if (const std::int32_t parts = in.stack->prefill_context; parts > 1) {
    before = graph.add(collective_op("gather hidden states", CollectiveKind::kAllGather,
                                     parts * size(hidden, dtype), parts, dtype, 1),
                       {norm});
  }
  if (of.logits == 0 && of.sampled == 0) return graph;
  const std::int64_t weights = static_cast<std::int64_t>(llm.d_model) * llm.vocab_size;
  OpIndex last = graph.add(
      {.name = "logits",
       .family = OpFamily::kLogits,
       .flops = FlopCount{2.0 * static_cast<double>(logit_rows) * static_cast<double>(weights)},
       .bytes_read =
           static_cast<double>(
               matrix_bytes(llm, in.weights(), head, llm.d_model, llm.vocab_size).count()) +
           size(logit_rows * llm.d_model, dtype),
       .bytes_written = size(logits, dtype),
       .dtype = dense,
       .kernel =
           gemm_use(logit_rows, llm.vocab_size, llm.d_model,
                    static_cast<double>(
                        matrix_bytes(llm, in.weights(), head, llm.d_model, llm.vocab_size).count()),
                    dense)},
      {before});
  hold("logits", Owner::kLogits, held.logits, llm.vocab_size, "words", dtype, last);
  if (in.tensor_parallel > 1) {
    const double ranks = in.tensor_parallel;
    last = graph.add({.name = "all-gather of logits",
                      .family = OpFamily::kCollective,
                      .bytes_read = size(logit_rows * whole_vocab, dtype) * (ranks - 1) / ranks,
                      .dtype = dtype},
                     {last});
    hold("gathered logits", Owner::kLogits, held.logits, whole_vocab, "words", dtype, last);
  }
  if (in.stack->logits_fp32 && dtype != Dtype::kFp32) {
    last = graph.add({.name = "logits to fp32",
                      .family = OpFamily::kElementwise,
                      .bytes_read = size(logit_rows * whole_vocab, dtype),
                      .bytes_written = size(logit_rows * whole_vocab, Dtype::kFp32),
                      .dtype = Dtype::kFp32},
                     {last});
    hold("fp32 logits", Owner::kLogits, held.logits, whole_vocab, "words", Dtype::kFp32, last);
  }
  graph.release(normed, last);
  if (of.sampled == 0) return graph;
  // Sorting or searching the logits is part of sampling, so sampling remains one operator.
  const CutoffTimes cutoff = in.stack->samples_cutoff ? in.stack->cutoff : CutoffTimes{};
  const double launch = in.stack->launch_overhead.count();
  const auto launches =
      launch > 0 ? static_cast<std::int32_t>(std::lround(cutoff.step.count() / launch)) : 0;
  graph.add({.name = "sampling",
             .family = OpFamily::kElementwise,
             .bytes_read = size(of.sampled * whole_vocab, dtype) +
                           cutoff.bytes_per_logit * static_cast<double>(of.sampled * whole_vocab),
             .bytes_written = static_cast<double>(of.sampled) * 8,
             .launches = 1 + launches,
             .dtype = Dtype::kFp32},
            {last});
  return graph;
}

}  // namespace

OpGraph output_logits(const CostInput& in, std::int64_t tokens) {
  const bool all = in.stack->logits == LogitPositions::kAll;
  tokens = prompt_part(in, in.llm->n_layers() - 1).computed_of(tokens);
  const std::int64_t rows = in.batch * tokens;
  const Product at_once = rows_product(in, tokens);
  return output_logits(
      in, {.normed = rows, .logits = all ? rows : in.batch, .sampled = in.batch},
      {.normed = at_once, .logits = all ? at_once : Product{}.times(in.batch, "batch")});
}

OpGraph output_logits(const CostInput& in, const HeadRows& rows) {
  return output_logits(
      in, rows, {Product{}.times(rows.normed, "rows"), Product{}.times(rows.logits, "rows")});
}

Step prefill_step(const CostInput& in, std::int64_t prompt,
                  const std::vector<std::int64_t>& score_rows) {
  KVSIM_CHECK(!score_rows.empty(), "a prefill without score rows");
  Step step{.host = host_time(in, false),
            .between = inter_step_overhead(in),
            .passes = prefill_passes(in, prompt)};
  step.segments.push_back(segment(embed_prompt(in, prompt)));
  const auto rows_of = [&](std::int32_t layer) {
    return score_rows[std::min(static_cast<std::size_t>(layer), score_rows.size() - 1)];
  };
  const auto add_layers = [&](bool compresses) {
    for (const LayerGroup& group : layer_groups(*in.llm, *in.method)) {
      PrefillState previous;
      for (std::int32_t l = group.first; l < group.first + group.count; ++l) {
        const PrefillState moment{.prompt = prompt,
                                  .kept = held_entries(in, l, prompt, prompt),
                                  .score_rows = rows_of(l)};
        if (compresses && moment.kept == prompt) continue;
        if (moment == previous) {
          ++step.segments.back().repeat;
        } else {
          step.segments.push_back(segment(compresses ? compress_layer(in, l, prompt, moment.kept)
                                                     : prefill_layer(in, l, moment),
                                          l));
        }
        previous = moment;
      }
    }
  };
  add_layers(false);
  step.segments.push_back(segment(output_logits(in, prompt)));
  if (in.method->prefill_peak() == PrefillPeak::kAllLayers) add_layers(true);
  return step;
}

Step decode_step(const CostInput& in, std::int64_t prompt, std::int64_t tokens) {
  Step step{.host = host_time(in, true), .between = inter_step_overhead(in)};
  step.segments.push_back(segment(embed_tokens(in, 1)));
  for (const LayerGroup& group : layer_groups(*in.llm, *in.method)) {
    DecodeState previous;
    for (std::int32_t l = group.first; l < group.first + group.count; ++l) {
      const DecodeState moment =
          decode_moment(in, l, prompt, tokens, held_entries(in, l, prompt, tokens - 1));
      if (moment == previous) {
        ++step.segments.back().repeat;
      } else {
        step.segments.push_back(segment(decode_layer(in, l, moment), l));
      }
      previous = moment;
    }
  }
  step.segments.push_back(segment(output_logits(in, 1)));
  return step;
}

}  // namespace kvsim
