#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/units/units.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/quality.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// What keeps a plan from being possible: what a knob does to it, as tried.
struct KnobEffect {
  std::string knob;    // "hbm", "kv_dtype", …
  std::string change;  // "x 1.1", "bf16 -> fp8_e4m3"
  double need = 0;     // after the change; possible at 1 and below
  /// Percent that the need falls where the knob is moved one percent: of knobs that have no
  /// percents, of the change as a whole.
  double elasticity = 0;
  std::string enough;  // "x 1.5", the least of the steps tried that is; empty: none of them
};

struct Impossible {
  std::string constraint;         // "weights", "kv_capacity", "activations", "positions", "ttft",
                                  // "tpot", "e2e", "quality", "layout", "overflow"
  std::string text;               // a sentence
  double need = 0;                // what is wanted over what there is; above 1. 0: not known
  std::vector<KnobEffect> knobs;  // most effective first; of the nearest candidate of its group
};

/// A way to run: of one candidate, at one load.
struct OperatingPoint {
  double load = 0;      // sequences of a batch; requests a second of the whole service
  double gpus = 1;      // of the whole service
  double tokens_s = 0;  // output tokens of all its GPUs
  // Of a batch, whose prompts are computed at once; of a service's requests PlanResult::percentile.
  double ttft_s = 0;
  double tpot_s = 0;
  double latency_s = 0;         // from arrival to last token
  double cost = 0;              // a million output tokens: in the currency, else in GPU hours
  std::optional<double> error;  // 0 if nothing is lost; absent: not measured
  double size = 0;              // context of longest_context, which counts in addition to the
                                // others
  bool on_front = false;
};

struct ServiceTimes {  // seconds, the worse end of intervals
  Distribution ttft{}, tpot{}, e2e{};
};

/// A candidate's answer as predicted, and at both ends of the interval that holds the range's share
/// of cases (range_confidence). An end without a value does not exist: not even the smallest size
/// fits, or not even the most GPUs are enough.
struct AnswerRange {
  std::optional<double> safe;  // memory and times at their worse end
  std::optional<double> predicted;
  std::optional<double> optimistic;  // at their better end
  bool is_known = false;  // false: nothing says how far predictions may be off, the ends are empty
  double max_tried = 0;   // of min_gpus: the most GPUs that the search tried
};

/// The sizes of a static batch.
struct RunSizes {
  std::int64_t batch = 0, prompt_tokens = 0, output_tokens = 0;
};

/// Of a static batch: the run at the answer, as predicted.
struct RunAtAnswer {
  Bytes peak, usable;       // of one GPU
  double ttft_s = 0;        // of all prompts of the batch, computed at once
  double ttft_one_s = 0;    // of one request of that prompt on an idle engine
  double decode_tok_s = 0;  // of the batch, over all decode steps
  RunSizes sizes{};
  std::string peak_phase{};
  std::vector<PeakTerm> terms{};  // they sum to the peak
  /// Memory left if the run needs as much more as the confidence assumes.
  Bytes free_at_confidence{};
};

/// Of a static batch: the next size, which does not fit.
struct NextRun {
  Impossible why{};  // without knobs
  RunSizes sizes{};
  std::optional<OomEvent> oom{};  // at the confidence's memory
};

/// How much of a bound the answer of a service takes: where the attained share of requests is.
struct BoundShare {
  std::string bound;  // "ttft", "tpot", "e2e"
  Seconds limit;
  double share = 0;
};

/// One method on one kind and number of GPUs, and how far it goes.
struct PlanCandidate {
  PlanQuestion question{};
  std::size_t group = 0;
  std::size_t point = 0;  // of the scenario, which it is made from
  MethodSpec method;      // with the budget that was chosen
  std::string label;      // its difference from the others of its group
  std::string gpu;
  std::int64_t gpus_each = 1;      // that share the model; of a service all that it describes
  std::string layout;              // of a service, "TP 4, PP 2"; empty: tensor parallelism, given
  std::int64_t replicas = 1;       // of these, in one simulation
  std::string simulated;           // of a service: engines, and the router between them
  std::int64_t max_model_len = 0;  // of a service: that the plan sets; 0: it sets none
  std::optional<double> answer;    // tokens, sequences, requests a second, GPUs
  AnswerRange range{};             // `answer` is its `safe` at a confidence, else its `predicted`
  std::optional<RunAtAnswer> at_answer{};
  std::optional<NextRun> runs_out{};  // of a static batch with an answer
  std::vector<BoundShare> bounds{};   // of a service at its answer
  std::optional<double> next{};       // of a service: what was tried next and keeps them no longer
  bool at_most = false;               // the search ended there, not the memory
  bool monotone = true;
  std::size_t probes = 0;
  std::int64_t positions = 0;  // of the model, if the answer exceeds them (beyond_positions)
  std::string pruned;          // why it was not looked into
  std::optional<Impossible> impossible;
  std::vector<OperatingPoint> points;  // the answer's is the last
  std::optional<ServiceTimes> times;   // at the answer
  MemoryMargin memory{};               // at the requested confidence
  double time_factor = 1;
  std::string time_basis;
  /// That a service keeps its bounds at its answer; nullopt where nothing says how far times may be
  /// off.
  std::optional<double> slo_probability{};
  std::vector<std::string> notes;
};

/// Candidates that answer one question for one model, stack, batch, context or workload.
struct PlanGroup {
  PlanQuestion question{};
  std::string of;  // "llama-3.1-8b on vllm, 32,768 prompt and 512 output tokens"
  nlohmann::ordered_json keys;
  std::vector<std::size_t> candidates;
  std::optional<std::size_t> best;  // candidate; absent: impossible
};

struct PlanResult {
  std::vector<PlanCandidate> candidates;
  std::vector<PlanGroup> groups;
  std::optional<QualityReport> quality;
  int percentile = 90;  // of a service's requests: whose times tables and figures show
  bool priced = false;
  std::string cost_unit;  // "USD", or "GPU h"
  std::vector<std::string> notes;
  std::size_t not_searched = 0;  // candidates that PlanOptions::stop left out

  /// Whether some group has no answer.
  [[nodiscard]] bool impossible() const;
};

/// Whether one of its ways to run is on the front.
[[nodiscard]] bool is_on_front(const PlanCandidate& one);
/// Candidates of `group` that tables show: of many layouts the best, those on the front, then the
/// others with an answer, at most ten; else all.
[[nodiscard]] std::vector<std::size_t> listed_candidates(const PlanResult& result,
                                                         const PlanGroup& group);

/// Marks the points that no other point of their group beats: as good in cost, TTFT, TPOT, latency,
/// throughput, error and context, and better in one of them. The throughput of a service is the
/// rate that it is given, of a batch its output tokens per second. What has no error does not
/// compete.
void mark_pareto(PlanResult& result);

}  // namespace kvsim
