#include "sim/decoder/closed_loop.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "models/math/attention/causal_attention.hpp"
#include "models/math/attention/rope.hpp"
#include "models/methods/composed.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/decoder/decoder.hpp"
#include "sim/decoder/prompt_in_part.hpp"
#include "sim/decoder/sessions.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/retrieval.hpp"

namespace kvsim {
namespace {

std::size_t index(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Sums over prompts, from which a LoopScore is computed.
struct Sums {
  std::int64_t prompts = 0, right = 0, tokens = 0, agree = 0;
  double kl = 0, loss = 0;

  Sums& operator+=(const Sums& o) {
    prompts += o.prompts;
    right += o.right;
    tokens += o.tokens;
    agree += o.agree;
    kl += o.kl;
    loss += o.loss;
    return *this;
  }
  [[nodiscard]] LoopScore score(std::string task) const {
    const auto n = static_cast<double>(prompts);
    const auto t = static_cast<double>(tokens);
    const double p = static_cast<double>(right) / n;
    return {.task = std::move(task),
            .prompts = prompts,
            .answer_tokens = tokens,
            .accuracy = p,
            .accuracy_stderr = std::sqrt(p * (1 - p) / n),
            .token_agreement = static_cast<double>(agree) / t,
            .kl_mean = kl / t,
            .perplexity = std::exp(loss / t)};
  }
};

/// Results of one method for one prompt.
struct PromptOutcome {
  Sums sums;
  double error = 0, answer_error = 0;  // sums over layers, query heads and steps
  double answer_weight = 0;            // total weight of answer_error
  std::int64_t errors = 0;
  double held = 0, full = 0;  // K and V bytes after compression
};

/// Log-probabilities of a row of logits.
std::vector<double> log_softmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  const double shift = max + std::log(sum);
  std::vector<double> out(logits.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(logits[i]) - shift;
  return out;
}

std::size_t most_likely(std::span<const double> row) {
  return static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

/// One prompt and its answer: the pass with the full cache and those of methods.
class PromptRun {
 public:
  PromptRun(const Decoder& decoder, const LoopPrompt& prompt, const Rope* rope,
            std::int64_t compressed)
      : decoder_{decoder}, prompt_{prompt}, compressed_{compressed} {
    tokens_ = prompt.tokens;
    tokens_.insert(tokens_.end(), prompt.answer.begin(), prompt.answer.end() - 1);
    const DecoderShape& s = decoder.shape();
    info_.name = s.model;
    info_.n_layers = s.n_layers;
    info_.n_heads = s.n_heads;
    info_.n_kv_heads = s.n_kv_heads;
    info_.head_dim = s.head_dim;
    info_.d_model = static_cast<std::int32_t>(s.d_model);
    info_.tokens = static_cast<std::int64_t>(tokens_.size());
    info_.prompt_tokens = compressed;
    info_.softmax_scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
    info_.dtype = Dtype::kFp16;
    info_.has_hidden = true;
    const auto answer = static_cast<std::int64_t>(prompt.tokens.size());
    info_.question_start = prompt.question_start;
    info_.answer_start = answer;
    info_.segments = {{.name = "answer", .start = answer, .end = info_.tokens + 1}};
    run_full(rope);
  }

  [[nodiscard]] PromptOutcome run(const ComposedMethod& method, std::uint64_t seed) {
    PromptOutcome out;
    if (const auto& prefill = method.parts().prefill) {
      compute_in_part(*prefill);
      // The rows exist: the rest is the cache of a prompt that was computed completely.
      Composition parts = method.parts();
      parts.prefill = nullptr;
      const ComposedMethod as_computed{std::move(parts)};
      compare_outputs(as_computed, seed, out);
      loop(as_computed, seed, out);
    } else {
      compare_outputs(method, seed, out);
      loop(method, seed, out);
    }
    restore();
    return out;
  }

 private:
  /// Returns the index of the first token whose logits predict a token of the answer.
  [[nodiscard]] std::int64_t first_predicting() const {
    return static_cast<std::int64_t>(prompt_.tokens.size()) - 1;
  }
  [[nodiscard]] std::int64_t width() const { return std::int64_t{info_.n_heads} * info_.head_dim; }

  void run_full(const Rope* rope) {
    const std::int64_t n = info_.tokens;
    std::vector<LayerRows> layers;
    std::vector<float> x = decoder_.embed(tokens_);
    const std::int64_t d = decoder_.shape().d_model;
    for (std::int32_t l = 0; l < info_.n_layers; ++l) {
      LayerRows& one = layers.emplace_back();
      const auto row = index(n * info_.head_dim);
      one.rows.q.resize(row * index(info_.n_heads));
      one.rows.k.resize(row * index(info_.n_kv_heads));
      one.rows.v.resize(row * index(info_.n_kv_heads));
      one.hidden = decoder_.normed(l, x);
      one.output_projection = decoder_.output_projection(l);
      decoder_.project(l, one.hidden, 0, n, one.rows);
      const std::vector<float> attended = decoder_.attend(one.rows, 0, n, n);
      full_outputs_.emplace_back(
          attended.begin() + static_cast<std::ptrdiff_t>(compressed_ * width()), attended.end());
      decoder_.finish(l, attended, x);
    }
    const std::int64_t from = first_predicting();
    keep_predictions(decoder_.logits(std::span{x}.subspan(index(from * d))));
    full_rows_.reserve(layers.size());
    for (const LayerRows& one : layers) full_rows_.push_back(one.rows);
    block_ = std::make_unique<LayerBlock>(info_, std::move(layers), rope);
    find_retrieved();
  }

  /// Finds the largest probability that the full cache's heads assign to one token of the context
  /// at the steps that predict the answer.
  void find_retrieved() {
    const std::int64_t first = first_predicting();
    const std::int64_t steps = info_.tokens - first;
    const std::int32_t group = info_.n_heads / info_.n_kv_heads;
    const std::size_t of_head = index(steps * group);
    const std::optional<RetrievalMarks> marks = retrieval_marks(info_);
    retrieved_.assign(index(info_.n_layers * steps * info_.n_heads), 1.0F);
    if (!marks) return;
    std::vector<float> out(of_head * index(info_.head_dim)), largest(of_head);
    std::vector<double> log_sum(of_head);
    for (std::int32_t l = 0; l < info_.n_layers; ++l) {
      for (std::int32_t h = 0; h < info_.n_kv_heads; ++h) {
        const HeadVectors& head = block_->layer(l).heads[index(h)];
        RunningAttention attention{head.group, head.head_dim, head.scale};
        attend_causally(attention, {head.q, head.keys, head.values, head.head_dim, head.tokens},
                        first, index(steps), out, log_sum);
        largest_in_context(head, *marks, first, steps, log_sum, largest);
        for (std::int64_t i = 0; i < steps; ++i) {
          for (std::int32_t g = 0; g < group; ++g) {
            retrieved(l, first + i, h * group + g) = largest[index(i * group + g)];
          }
        }
      }
    }
    const bool any = std::any_of(retrieved_.begin(), retrieved_.end(),
                                 [](float weight) { return weight > 0.0F; });
    if (!any) std::fill(retrieved_.begin(), retrieved_.end(), 1.0F);
  }
  [[nodiscard]] float& retrieved(std::int32_t layer, std::int64_t token, std::int32_t head) {
    const std::int64_t steps = info_.tokens - first_predicting();
    return retrieved_[index((layer * steps + token - first_predicting()) * info_.n_heads + head)];
  }

  void keep_predictions(const std::vector<float>& logits) {
    const auto vocab = index(decoder_.shape().vocab);
    for (std::size_t i = 0; i < prompt_.answer.size(); ++i) {
      full_.push_back(log_softmax(std::span{logits}.subspan(i * vocab, vocab)));
    }
  }

  /// Replaces the rows of the compressed part with those that `rule` computes.
  void compute_in_part(const PrefillRule& rule) {
    const std::span<const std::int32_t> tokens = std::span{tokens_}.first(index(compressed_));
    const std::int64_t question = prompt_.question_start.value_or(compressed_);
    const std::vector<TraceRows> layers = rows_in_part(
        decoder_,
        {.tokens = tokens, .starts = prompt_.chunks, .reused = std::min(question, compressed_)},
        rule);
    const std::size_t from = index(compressed_ * info_.head_dim);
    const std::size_t to = index(info_.tokens * info_.head_dim);
    for (std::int32_t l = 0; l < info_.n_layers; ++l) {
      const auto put = [&](const std::vector<float>& rows, std::vector<float>& all) {
        for (std::size_t h = 0; h < index(info_.n_kv_heads); ++h) {
          std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(h * from), from,
                      all.begin() + static_cast<std::ptrdiff_t>(h * to));
        }
      };
      put(layers[index(l)].k, block_->rows(l).k);
      put(layers[index(l)].v, block_->rows(l).v);
    }
  }

  /// Open loop: the method's outputs with the rows of the full cache.
  void compare_outputs(const ComposedMethod& method, std::uint64_t seed, PromptOutcome& out) {
    MethodSessions sessions{method, *block_, seed};
    const CacheBytes held = sessions.bytes();
    out.held = static_cast<double>(held.kv.count());
    out.full = static_cast<double>(info_.n_layers) * info_.n_kv_heads * info_.head_dim * 2.0 *
               static_cast<double>(compressed_) * bits_of(info_.dtype) / 8.0;
    std::vector<float> attended(index(width()));
    const auto d = index(info_.head_dim);
    for (std::int64_t t = compressed_; t < info_.tokens; ++t) {
      sessions.begin_step();
      for (std::int32_t l = 0; l < info_.n_layers; ++l) {
        sessions.attend(l, attended);
        const float* want = full_outputs_[index(l)].data() + (t - compressed_) * width();
        for (std::int32_t h = 0; h < info_.n_heads; ++h) {
          double difference = 0, norm = 0;
          for (std::size_t j = index(h) * d; j < (index(h) + 1) * d; ++j) {
            const double w = static_cast<double>(want[j]);
            difference +=
                (static_cast<double>(attended[j]) - w) * (static_cast<double>(attended[j]) - w);
            norm += w * w;
          }
          const double error =
              norm > 0 ? std::sqrt(difference / norm) : (difference > 0 ? 1.0 : 0.0);
          out.error += error;
          ++out.errors;
          if (t < first_predicting()) continue;
          const auto weight = static_cast<double>(retrieved(l, t, h));
          out.answer_error += weight * error;
          out.answer_weight += weight;
        }
      }
      sessions.end_step();
    }
  }

  /// Closed loop: the output for each token enters the next layer and the next token.
  void loop(const ComposedMethod& method, std::uint64_t seed, PromptOutcome& out) {
    MethodSessions sessions{method, *block_, seed};
    std::vector<float> attended(index(width()));
    bool right = true;
    for (std::int64_t t = compressed_; t < info_.tokens; ++t) {
      std::vector<float> x = decoder_.embed({&tokens_[index(t)], 1});
      sessions.begin_step();
      for (std::int32_t l = 0; l < info_.n_layers; ++l) {
        decoder_.project(l, decoder_.normed(l, x), t, info_.tokens, block_->rows(l));
        sessions.attend(l, attended);
        decoder_.finish(l, attended, x);
      }
      sessions.end_step();
      if (t < first_predicting()) continue;
      const auto i = index(t - first_predicting());
      const std::vector<double> got = log_softmax(decoder_.logits(x));
      const std::vector<double>& want = full_[i];
      const auto answer = index(prompt_.answer[i]);
      const std::size_t best = most_likely(got);
      right = right && best == answer;
      out.sums.agree += best == most_likely(want) ? 1 : 0;
      ++out.sums.tokens;
      out.sums.loss -= got[answer];
      for (std::size_t v = 0; v < got.size(); ++v) {
        out.sums.kl += std::exp(want[v]) * (want[v] - got[v]);
      }
    }
    out.sums.prompts = 1;
    out.sums.right = right ? 1 : 0;
  }

  /// Restores the rows that a loop has overwritten.
  void restore() {
    const auto put = [&](const std::vector<float>& from, std::vector<float>& to) {
      std::copy(from.begin(), from.end(), to.begin());  // views point into `to`
    };
    for (std::int32_t l = 0; l < info_.n_layers; ++l) {
      put(full_rows_[index(l)].q, block_->rows(l).q);
      put(full_rows_[index(l)].k, block_->rows(l).k);
      put(full_rows_[index(l)].v, block_->rows(l).v);
    }
  }

  const Decoder& decoder_;
  const LoopPrompt& prompt_;
  std::int64_t compressed_;
  std::vector<std::int32_t> tokens_;  // all but the last token of the answer, which no token
                                      // follows
  TraceInfo info_;
  std::unique_ptr<LayerBlock> block_;
  std::vector<TraceLayer> full_rows_;
  std::vector<std::vector<float>> full_outputs_;  // [layer][step][n_heads * head_dim]
  std::vector<float> retrieved_;                  // [layer][predicting token][n_heads]
  std::vector<std::vector<double>> full_;         // log-probabilities [answer token][vocab]
};

std::int64_t compressed_tokens(const LoopPrompt& prompt, TraceSplit split, std::size_t number) {
  if (split != TraceSplit::kQuestionAgnostic) {
    return static_cast<std::int64_t>(prompt.tokens.size()) - 1;
  }
  if (!prompt.question_start) {
    throw InputError{fmt::format("prompt {}: expected question_start for --split {}, got none",
                                 number, kTraceSplits[static_cast<std::size_t>(split)])};
  }
  return *prompt.question_start;
}

MethodContext context_of(const DecoderShape& s) {
  return {.recorded = Dtype::kFp16,
          .shape = {.n_heads = s.n_heads, .n_kv_heads = s.n_kv_heads, .head_dim = s.head_dim},
          .windows = {},
          .n_layers = s.n_layers,
          .d_model = static_cast<std::int32_t>(s.d_model),
          .recorded_inputs = TraceInputs{.hidden = true,
                                         .output_projection = true,
                                         .rope = !s.scales_rope,
                                         .repeat = false,
                                         .token_ids = false,
                                         .separator_ids = false,
                                         .reused = true,
                                         .per_head = {},
                                         .predicted = {}}};
}

/// Returns what a method needs and a loop cannot provide; empty if nothing.
std::string reason_against(const ComposedMethod& method, const DecoderShape& shape,
                           std::span<const LoopPrompt> prompts) {
  const TraceInputs needs = method.needs().inputs;
  if (needs.repeat) return "it needs a repeat of the prompt, which a closed loop does not run";
  if (needs.rope && shape.scales_rope) return "it rotates keys, and this model scales its rotation";
  if (needs.token_ids) return "it needs a trace's token ids";
  const bool in_chunks = std::none_of(prompts.begin(), prompts.end(),
                                      [](const LoopPrompt& p) { return p.chunks.empty(); });
  if (needs.reused && !in_chunks) return "it needs prompts in chunks (key \"chunks\" of each)";
  if (!needs.per_head.empty() || !needs.predicted.empty()) return "it needs recorded scores";
  const std::string select = describe_method(method.name()).axes.at("select");
  if (select == "oracle-future") return "it reads tokens that do not exist yet";
  return "";
}

}  // namespace

LoopResult run_closed_loop(const Checkpoint& checkpoint, std::span<const LoopPrompt> prompts,
                           const std::vector<MethodSpec>& specs, const LoopOptions& options) {
  const Decoder decoder{checkpoint};
  const DecoderShape& shape = decoder.shape();
  const MethodContext site = context_of(shape);
  std::optional<Rope> rope;
  if (!shape.scales_rope) rope.emplace(shape.head_dim, shape.rope_theta, false);
  std::vector<std::int64_t> compressed;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    compressed.push_back(compressed_tokens(prompts[i], options.split, i + 1));
  }

  LoopResult result{.model = shape.model,
                    .prompts = static_cast<std::int64_t>(prompts.size()),
                    .methods = {},
                    .skipped = {}};
  std::vector<const MethodSpec*> able;
  std::vector<std::string> tasks;
  for (const LoopPrompt& prompt : prompts) {
    if (std::find(tasks.begin(), tasks.end(), prompt.task) == tasks.end()) {
      tasks.push_back(prompt.task);
    }
  }
  for (const MethodSpec& spec : specs) {
    std::string reason;
    Params params;
    try {
      for (const std::int64_t n : compressed) {
        const auto method = make_method(spec, n, site);
        if (params.empty()) params = method->params();
        reason = reason_against(as_composed(*method), shape, prompts);
        if (!reason.empty()) break;
      }
    } catch (const InputError& error) {
      if (specs.size() == 1) throw;
      reason = error.what();
    }
    if (!reason.empty()) {
      result.skipped.push_back({spec.name, reason});
      continue;
    }
    able.push_back(&spec);
    LoopMethod& one = result.methods.emplace_back();
    one.name = spec.name;
    one.params = std::move(params);
    if (spec.budget) {
      one.budget = spec.budget->fraction > 0 ? spec.budget->fraction
                                             : static_cast<double>(spec.budget->entries);
    }
  }
  if (able.empty()) {
    throw InputError{fmt::format("no method can run in a closed loop: {}: {}",
                                 result.skipped.front().name, result.skipped.front().reason)};
  }

  std::vector<std::vector<PromptOutcome>> outcomes(prompts.size());
  std::mutex guard;
  std::size_t done = 0;
  parallel_for(prompts.size(), options.threads, [&](std::size_t i) {
    PromptRun run{decoder, prompts[i], rope ? &*rope : nullptr, compressed[i]};
    for (const MethodSpec* spec : able) {
      const auto method = make_method(*spec, compressed[i], site);
      outcomes[i].push_back(run.run(as_composed(*method), options.seed));
    }
    if (!options.progress) return;
    const std::scoped_lock lock{guard};
    options.progress(static_cast<double>(++done) / static_cast<double>(prompts.size()));
  });

  for (std::size_t m = 0; m < able.size(); ++m) {
    LoopMethod& one = result.methods[m];
    PromptOutcome total;
    std::vector<Sums> by_task(tasks.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const PromptOutcome& out = outcomes[i][m];
      total.sums += out.sums;
      total.error += out.error;
      total.errors += out.errors;
      total.answer_error += out.answer_error;
      total.answer_weight += out.answer_weight;
      total.held += out.held;
      total.full += out.full;
      const auto task = std::find(tasks.begin(), tasks.end(), prompts[i].task);
      by_task[static_cast<std::size_t>(task - tasks.begin())] += out.sums;
    }
    one.all = total.sums.score("");
    for (std::size_t t = 0; tasks.size() > 1 && t < tasks.size(); ++t) {
      one.tasks.push_back(by_task[t].score(tasks[t]));
    }
    one.rel_error_mean = total.error / static_cast<double>(total.errors);
    one.answer_error_mean = total.answer_weight > 0 ? total.answer_error / total.answer_weight : 0;
    one.budget_reached = total.held / total.full;
  }
  return result;
}

}  // namespace kvsim
