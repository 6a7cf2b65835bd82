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

/// The effect of a knob on whatever makes a plan impossible, as tried.
struct KnobEffect {
  std::string knob;    // "hbm", "kv_dtype", …
  std::string change;  // "x 1.1", "bf16 -> fp8_e4m3"
  double need = 0;     // after the change; possible at 1 and below
  /// Percent by which the need falls if the knob moves one percent; for knobs without a ratio, the
  /// relative fall for the whole change.
  double elasticity = 0;
  std::string enough;  // "x 1.5", the smallest step that is enough; empty if none is
};

struct Impossible {
  std::string constraint;         // "weights", "kv_capacity", "activations", "positions", "ttft",
                                  // "tpot", "e2e", "quality", "layout", "overflow"
  std::string text;               // a sentence
  double need = 0;                // required over available; above 1. 0: not known
  std::vector<KnobEffect> knobs;  // most effective first; of the nearest candidate of its group
};

/// An operating point: one candidate at one load.
struct OperatingPoint {
  double load = 0;      // sequences of a batch; requests per second of the whole service
  double gpus = 1;      // of the whole service
  double tokens_s = 0;  // output tokens per second of all its GPUs
  // For a batch, with all prompts computed at once; for a service, PlanResult::percentile of its
  // requests.
  double ttft_s = 0;
  double tpot_s = 0;
  double latency_s = 0;         // from arrival to last token
  double cost = 0;              // per million output tokens: in the currency, or in GPU hours
                                // without prices
  std::optional<double> error;  // 0 if nothing is lost; absent: not measured
  double size = 0;              // context for longest_context, which is then one more criterion
  bool on_front = false;
};

struct ServiceTimes {  // seconds, at the worse end of the intervals
  Distribution ttft{}, tpot{}, e2e{};
};

/// A candidate's answer as predicted and at both ends of the interval that covers the range's share
/// of cases (range_confidence). An end is absent if not even the smallest size fits, or if not even
/// the largest number of GPUs is enough.
struct AnswerRange {
  std::optional<double> safe;  // memory and times at their worse end
  std::optional<double> predicted;
  std::optional<double> optimistic;  // at their better end
  bool is_known = false;  // false if the errors of predictions are unknown; the ends are then empty
  double max_tried = 0;   // for min_gpus: largest number of GPUs tried
};

/// The sizes of a static batch.
struct RunSizes {
  std::int64_t batch = 0, prompt_tokens = 0, output_tokens = 0;
};

/// For a static batch: the run at the answer, as predicted.
struct RunAtAnswer {
  Bytes peak, usable;       // per GPU
  double ttft_s = 0;        // of all prompts of the batch, computed at once
  double ttft_one_s = 0;    // of a single request with that prompt on an idle engine
  double decode_tok_s = 0;  // of the batch, over all decode steps
  RunSizes sizes{};
  std::string peak_phase{};
  std::vector<PeakTerm> terms{};  // they sum to the peak
  /// Free memory if the run needs as much more as the confidence assumes.
  Bytes free_at_confidence{};
};

/// For a static batch: the next size, which does not fit.
struct NextRun {
  Impossible why{};  // without knobs
  RunSizes sizes{};
  std::optional<OomEvent> oom{};  // with the memory at the confidence
};

/// Share of a bound that a service's answer uses, at the attained share of requests.
struct BoundShare {
  std::string bound;  // "ttft", "tpot", "e2e"
  Seconds limit;
  double share = 0;
};

/// One method on one type and number of GPUs, and the limits of that combination.
struct PlanCandidate {
  PlanQuestion question{};
  std::size_t group = 0;
  std::size_t point = 0;  // of the scenario from which the candidate is made
  MethodSpec method;      // with the chosen budget
  std::string label;      // its differences from the other candidates of its group
  std::string gpu;
  std::int64_t gpus_each = 1;      // GPUs that share the model; for a service, all GPUs that it
                                   // describes
  std::string layout;              // of a service, "TP 4, PP 2"; empty if the scenario sets tensor
                                   // parallelism
  std::int64_t replicas = 1;       // groups of `gpus_each` in one simulation
  std::string simulated;           // for a service: engines, and the router in front of them
  std::int64_t max_model_len = 0;  // set by the plan for a service; 0: not set
  std::optional<double> answer;    // tokens, sequences, requests per second, or GPUs
  AnswerRange range{};             // `answer` is its `safe` if a confidence is requested, otherwise
                                   // its `predicted`
  std::optional<RunAtAnswer> at_answer{};
  std::optional<NextRun> runs_out{};  // for a static batch with an answer
  std::vector<BoundShare> bounds{};   // for a service at its answer
  std::optional<double> next{};       // for a service: the next value tried, which exceeds the
                                      // bounds
  bool at_most = false;               // whether the search range, not memory, limits the answer
  bool monotone = true;
  std::size_t probes = 0;
  std::int64_t positions = 0;  // of the model, if the answer exceeds them (beyond_positions)
  std::string pruned;          // why it was not searched
  std::optional<Impossible> impossible;
  std::vector<OperatingPoint> points;  // the last is the answer's
  std::optional<ServiceTimes> times;   // at the answer
  MemoryMargin memory{};               // at the requested confidence
  double time_factor = 1;
  std::string time_basis;
  /// Probability that a service meets its bounds at its answer; nullopt if the errors of times are
  /// unknown.
  std::optional<double> slo_probability{};
  std::vector<std::string> notes;
};

/// Candidates that answer one question for one model, stack, and batch, context or workload.
struct PlanGroup {
  PlanQuestion question{};
  std::string of;  // "llama-3.1-8b on vllm, 32,768 prompt and 512 output tokens"
  nlohmann::ordered_json keys;
  std::vector<std::size_t> candidates;
  std::optional<std::size_t> best;  // index of a candidate; absent if impossible
};

struct PlanResult {
  std::vector<PlanCandidate> candidates;
  std::vector<PlanGroup> groups;
  std::optional<QualityReport> quality;
  int percentile = 90;  // percentile of a service's requests whose times tables and figures show
  bool priced = false;
  std::string cost_unit;  // "USD", or "GPU h"
  std::vector<std::string> notes;
  std::size_t not_searched = 0;  // candidates skipped because of PlanOptions::stop

  /// Whether any group has no answer.
  [[nodiscard]] bool impossible() const;
};

/// Whether one of its operating points is on the front.
[[nodiscard]] bool is_on_front(const PlanCandidate& one);
/// Candidates of `group` that tables show. For many layouts: the best, those on the front, then
/// others with an answer, at most ten in total; otherwise all.
[[nodiscard]] std::vector<std::size_t> listed_candidates(const PlanResult& result,
                                                         const PlanGroup& group);

/// Marks the points that no other point of their group dominates: one that is at least as good in
/// cost, TTFT, TPOT, latency, throughput, error and context, and better in one of them. The
/// throughput of a service is its offered rate, of a batch its output tokens per second. Points
/// without an error do not compete.
void mark_pareto(PlanResult& result);

}  // namespace kvsim
