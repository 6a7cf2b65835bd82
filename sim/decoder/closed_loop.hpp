#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "sim/decoder/checkpoint.hpp"
#include "sim/decoder/prompts.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Results of one method over the prompts of one task, or of all.
struct LoopScore {
  std::string task;
  std::int64_t prompts = 0, answer_tokens = 0;
  double accuracy = 0;         // share of prompts whose entire answer is the most likely one
  double accuracy_stderr = 0;  // binomial
  double token_agreement = 0;  // share of answer tokens for which the prediction equals that of the
                               // full cache
  double kl_mean = 0;          // KL divergence from the full cache's next-token distribution to the
                               // method's, nats
  double perplexity = 0;       // of the answers
};

struct LoopMethod {
  std::string name;
  std::optional<double> budget;  // as requested; absent for methods without one
  Params params;                 // as resolved for the first prompt
  double budget_reached = 1;     // K and V bytes after compression over those of the full cache
  /// Mean relative error of the attention output over layers, heads and steps in the same prompts
  /// with the queries, keys and values of the full cache, that is, without drift.
  double rel_error_mean = 0;  // over the steps after compression
  /// Over the steps that predict the answer, weighted by retrieval as in a replay's
  /// answer_error_mean.
  double answer_error_mean = 0;
  LoopScore all;
  std::vector<LoopScore> tasks;  // in order of first appearance, if there are several
};

/// A method that did not run and the reason.
struct LoopSkipped {
  std::string name, reason;
};

struct LoopResult {
  std::string model;
  std::int64_t prompts = 0;
  std::vector<LoopMethod> methods;
  std::vector<LoopSkipped> skipped;
};

struct LoopOptions {
  std::int32_t threads = 0;  // 0: all of the machine; no result depends on it
  std::uint64_t seed = 0;    // for methods with random choices
  /// kQuestionAgnostic compresses at question_start. Otherwise all tokens of a prompt except the
  /// last are compressed, so that the first token of an answer already depends on the method.
  TraceSplit split = TraceSplit::kRecorded;
  std::function<void(double)> progress{};  // called with the fraction done
};

/// Runs a decoder with each method's cache in the loop. The compressed part of a prompt is computed
/// with full attention. Every later token attends to the method's cache, and its output enters the
/// next layer and the next token. Answers are teacher-forced: an answer is correct if each of its
/// tokens is the most likely one, which is the case exactly if greedy decoding produces it.
///
/// Errors: InputError if no method can run, for question-agnostic compression of a prompt without
/// question_start, and for a method or value that does not exist.
[[nodiscard]] LoopResult run_closed_loop(const Checkpoint& checkpoint,
                                         std::span<const LoopPrompt> prompts,
                                         const std::vector<MethodSpec>& methods,
                                         const LoopOptions& options);

}  // namespace kvsim
