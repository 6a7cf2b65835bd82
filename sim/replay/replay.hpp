#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/resolve/measured.hpp"
#include "models/methods/session/kept_entry.hpp"
#include "sim/memory/block_allocator.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Relative errors below this are rounding errors: fp32 with a different order of summation.
inline constexpr double kRoundingError = 1e-5;

/// Maximum number of entries of a method for which the rule that keeps each is recorded.
inline constexpr std::int64_t kMaxWhy = 200'000;

/// Maximum number of layers, KV heads or decode steps of a sample.
inline constexpr std::int64_t kMaxSample = 1'000'000;

/// Options of a replay: outputs in addition to the totals, memory, sampling.
struct ReplayOptions {
  std::int32_t threads = 0;  // 0: all of the machine; no result depends on it
  std::int64_t memory = 0;   // bytes for recorded vectors; 0: a quarter of the machine's memory
  bool per_step = false;     // keep the series over steps
  bool per_head = false;     // keep the means per (layer, head)
  /// Keep the reason for each entry at the end, unless a method has more than kMaxWhy entries.
  bool why_kept = false;
  bool kept_positions = false;  // keep the final kept positions per (layer, stored head)
  std::vector<std::int64_t> block_sizes{};  // in entries: block sizes of a paged cache to report
  std::uint64_t seed = 0;
  TraceSplit split = TraceSplit::kRecorded;  // for run_replay_job
  std::function<void(double)> progress{};    // called with the fraction done
  /// Names of methods that are skipped, with the reason, if their store cannot hold the trace's
  /// rows. Other methods end the replay with an error.
  std::set<std::string> may_fail{};
  // A sample (Trace::sample) drawn with `seed`; for run_replay_job.
  std::int32_t layers = 0, heads = 0;  // layers, and KV heads of each; 0: all
  std::int64_t steps = 0;  // decode steps whose errors are measured (StepSample); 0: all
  /// Adds layers until the standard error of each method's rel_error_mean, widened by Student's t
  /// for that number of layers, is at most this share of it.
  std::optional<double> until{};
};

/// One step, summed or averaged over heads and layers, or over the heads of one layer.
struct ReplayStep {
  std::int64_t step = 0;          // 1-based decode step
  std::int64_t tokens = 0;        // tokens up to and including this one
  std::int64_t entries_held = 0;  // sum over layers and stored heads, after compression
  std::int64_t entries_attended = 0;
  double entries_read = 0;          // of the attended entries: all, except for methods that read
                                    // only a part
  std::int64_t bytes_held = 0;      // K, V and side
  std::int64_t bytes_attended = 0;  // K and V of the attended entries
  std::int64_t side_bytes = 0;
  std::int64_t host_bytes = 0;  // in host memory, not part of bytes_held
  double link_bytes = 0;        // between host and GPU
  double bytes_read = 0, bytes_written = 0, extra_flops = 0;
  // Means over layers and query heads; NaN at steps that were not measured.
  double rel_error = 0, cosine = 0;
  std::optional<double> retained_mass;
};

/// One layer at one step; one head if per_head is requested.
struct ReplayCell {
  std::int32_t layer = 0;
  std::int32_t head = -1;  // stored head; -1: the whole layer
  std::int64_t entries_final = 0;
  std::int64_t bytes_final = 0;
  double rel_error_mean = 0, cosine_mean = 0;
  std::optional<double> retained_mass_mean, best_mass_mean;
};

/// Entries of one layer that are kept at the end for one reason, over all its stored heads.
struct ReplayKept {
  std::int32_t layer = 0;
  KeptRole role = KeptRole::kWhole;
  std::int64_t entries = 0;
  std::int64_t tokens = 0;                            // that the entries represent
  std::optional<double> score_lowest, score_highest;  // of the entries that have a score
};

/// A paged cache at one moment of the replay.
struct ReplayPaged {
  std::string moment;  // "prefill": after compression of the prompt; "end": after the last step
  PagedReport report;
};

/// Mean relative error over the decode steps in a segment of the trace.
struct ReplaySegment {
  std::string name;
  std::int64_t start = 0, end = 0;       // tokens; `end` is exclusive
  std::int64_t steps = 0;                // decode steps in it
  std::optional<double> rel_error_mean;  // absent without steps
};

/// Effect of a round trip through a tier on the prompt's oldest tokens.
struct ReplayTier {
  std::int64_t page_bytes = 0;  // on the GPU
  std::int64_t link_bytes = 0;  // on the link, in one direction
  /// Squared error over squared values of the returned rows; 0 if all are 0.
  double key_error = 0, value_error = 0;
};

/// The prompt's own attention, for methods that compute only part of it.
struct ReplayPrefill {
  double pairs_share = 0;         // computed pairs of a query and a key over all causal pairs
  double flops_share = 0;         // FLOPs, including the selection of pairs, over those of all
                                  // pairs
  double rel_error_mean = 0;      // of the prompt's outputs against full causal attention
  double retained_mass_mean = 0;  // share of the full attention on the computed pairs
};

/// Standard errors of a method's means over the sampled layers, heads and steps. One that the
/// sample cannot show (of a single layer) is absent.
struct ReplayStderr {
  std::optional<double> rel_error_mean, cosine_mean, retained_mass_mean, best_mass_mean;
  std::optional<double> answer_error_mean;
};

/// The sample of a trace that was replayed.
struct ReplaySample {
  std::vector<std::int32_t> layers;  // their numbers in the trace
  std::int32_t of_layers = 0, kv_heads = 0, of_kv_heads = 0;
  std::vector<std::vector<std::int32_t>> heads;  // [layer]: numbers of its KV heads
  std::vector<std::int32_t> layers_by_stratum;   // as in TraceInfo
};

/// Decode steps at which errors were measured; sizes and traffic cover all steps.
struct ReplaySteps {
  std::int64_t measured = 0, of = 0;
};

struct ReplayMethod {
  std::string name;
  std::map<std::string, ParamValue> params;  // all parameters, resolved
  std::optional<double> budget;              // as requested; absent for methods without one
  std::optional<double>
      budget_reached;                   // K and V bytes at the end of prefill over the full cache's
  std::int64_t steps = 0;               // decode steps
  std::int64_t entries_held_final = 0;  // sum over layers and stored heads
  std::int64_t bytes_held_final = 0;    // K, V and side
  std::int64_t bytes_full_final = 0;    // full cache's K and V at the same dtype
  std::int64_t side_bytes_final = 0;
  std::int64_t host_bytes_final = 0;
  double link_bytes_total = 0;
  double bytes_read_total = 0, bytes_written_total = 0, extra_flops_total = 0;  // decode steps
  double bytes_full_read_total = 0;  // read by the full cache in these steps
  double entries_read_share = 1;     // entries read over entries attended to, over the decode steps
  double rel_error_mean = 0, rel_error_p99 = 0, cosine_mean = 0;  // over (layer, query head, step)
  // Mean over the decode steps that predict tokens of answers; null if there are none, as in a
  // trace without answer_start. If the trace is split at the answer, the prompt predicts its first
  // token. The weight of each (layer, query head, step) is the largest probability that it assigns
  // to one token of the context under full attention (largest_in_context); weights are equal if all
  // are zero.
  std::optional<double> answer_error_mean;
  std::optional<double> retained_mass_mean;  // null for merges
  // The largest mass that the same number of entries could retain, chosen separately at each step.
  std::optional<double> best_mass_mean;
  std::optional<std::int64_t> closed_form_bytes_final;
  std::optional<ReplayTier> tier;           // for methods with a tier whose rows returned
  std::optional<ReplayPrefill> prefill;     // for methods that compute only part of the prompt's
                                            // attention
  std::optional<MeasuredLaw> measured_law;  // if there is no closed form
  std::optional<ReplayStderr> standard_errors;  // for a sample
  std::vector<ReplayCell> layers;
  std::vector<ReplayCell> heads;                      // if per_head
  std::vector<ReplayStep> series;                     // if per_step
  std::vector<std::vector<ReplayStep>> layer_series;  // if per_step: [layer][step]
  /// kept[layer][stored head]: entries, ordered by first member; each lists its member positions,
  /// ascending.
  std::vector<std::vector<std::vector<std::vector<std::int32_t>>>> kept;
  std::vector<ReplayKept> kept_by_role;                  // by layer, then in the order of KeptRole
  std::vector<std::vector<std::vector<KeptEntry>>> why;  // if why_kept: [layer][stored head]
  std::vector<ReplaySegment> segments;                   // of the trace
  std::vector<ReplayPaged> paged;                        // for each requested block size
  std::map<std::string, double> counts;  // counted by the method itself, over all heads
  std::vector<std::string> notes;
};

/// A skipped method.
struct ReplayFailure {
  std::size_t method = 0;  // index in the requested methods
  std::string reason;
};

struct ReplayResult {
  std::string trace;
  std::int64_t prompt_tokens = 0;      // length to which budgets apply
  std::string source;                  // "2.6M-parameter model, 384 + 128 tokens"
  std::string model;                   // from which the trace was recorded, as named in its
                                       // metadata
  std::optional<double> parameters;    // of that model
  std::optional<ReplaySample> sample;  // nullopt: all of the trace
  std::optional<ReplaySteps> steps;    // nullopt: all decode steps
  std::vector<ReplayMethod> methods;   // in the requested order
  std::vector<ReplayFailure> failed;   // methods of may_fail that failed, likewise; not in
                                       // `methods`

  /// Numbers in the trace of the replayed layer `layer` and of one of its `stored` heads.
  [[nodiscard]] std::int32_t layer_number(std::size_t layer) const {
    return sample ? sample->layers.at(layer) : static_cast<std::int32_t>(layer);
  }
  [[nodiscard]] std::int32_t head_number(std::size_t layer, std::size_t head,
                                         std::size_t stored) const {
    return sample ? stored_head_number(sample->heads.at(layer), head, stored)
                  : static_cast<std::int32_t>(head);
  }
};

/// Returns the properties of the trace that a method may use.
[[nodiscard]] MethodContext site_of(const TraceInfo& info);

/// Resolves `spec` for a trace. Errors: InputError as in make_method, or if the trace does not
/// contain data that the method needs.
[[nodiscard]] std::shared_ptr<const Method> resolve_for_trace(const MethodSpec& spec,
                                                              const TraceInfo& info);

/// Replays `trace` through each of `methods`, teacher-forced: queries, keys and values are the
/// recorded ones. An error is therefore that of one layer and one step, without drift through
/// layers and tokens. Errors: InputError if a method that may not fail cannot run on this trace.
[[nodiscard]] ReplayResult replay(const Trace& trace, const std::vector<MethodSpec>& methods,
                                  const ReplayOptions& options);

}  // namespace kvsim
