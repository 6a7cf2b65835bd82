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

/// Relative errors below it are rounding: fp32 against itself in another order of sums.
inline constexpr double kRoundingError = 1e-5;

/// Most entries of a method for which the rule that keeps each is recorded.
inline constexpr std::int64_t kMaxWhy = 200'000;

/// Most layers, KV heads or decode steps that a sample may have.
inline constexpr std::int64_t kMaxSample = 1'000'000;

/// What replay is to do beyond the totals, and how.
struct ReplayOptions {
  std::int32_t threads = 0;  // 0: as many as the machine has; no result depends on it
  std::int64_t memory = 0;   // bytes that recorded vectors may take; 0: a quarter of the machine
  bool per_step = false;     // keep the series over steps
  bool per_head = false;     // keep the means per (layer, head)
  /// Keep the reason for each entry at the end, unless a method has more than kMaxWhy entries.
  bool why_kept = false;
  bool kept_positions = false;  // keep the final kept positions per (layer, stored head)
  std::vector<std::int64_t> block_sizes{};  // of a paged cache to report on, entries
  std::uint64_t seed = 0;
  TraceSplit split = TraceSplit::kRecorded;  // by run_replay_job
  std::function<void(double)> progress{};    // called with the fraction done
  /// Names of methods that are left out, with the reason, if their store cannot hold the trace's
  /// rows. Others end the replay.
  std::set<std::string> may_fail{};
  // A sample (Trace::sample), drawn by `seed`: by run_replay_job.
  std::int32_t layers = 0, heads = 0;  // layers, and KV heads of each; 0: all
  std::int64_t steps = 0;  // decode steps whose errors are measured (StepSample); 0: all
  /// More layers are taken until each method's standard error of rel_error_mean, widened as
  /// Student's t of as many layers is, is so small a share of it.
  std::optional<double> until{};
};

/// One step, summed or averaged over heads and layers, or over the heads of one layer.
struct ReplayStep {
  std::int64_t step = 0;          // 1-based decode step
  std::int64_t tokens = 0;        // tokens so far, this one included
  std::int64_t entries_held = 0;  // sum over layers and stored heads, after compression
  std::int64_t entries_attended = 0;
  double entries_read = 0;          // of the attended entries: all, except for methods that read
                                    // part
  std::int64_t bytes_held = 0;      // K, V and side
  std::int64_t bytes_attended = 0;  // K and V of the entries attended
  std::int64_t side_bytes = 0;
  std::int64_t host_bytes = 0;  // kept in host memory, not part of bytes_held
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

/// Entries of one layer that are kept for one reason at the end, over all its stored heads.
struct ReplayKept {
  std::int32_t layer = 0;
  KeptRole role = KeptRole::kWhole;
  std::int64_t entries = 0;
  std::int64_t tokens = 0;                            // that they represent
  std::optional<double> score_lowest, score_highest;  // of those that have one
};

/// A paged cache at one moment of the replay.
struct ReplayPaged {
  std::string moment;  // "prefill": after the prompt was compressed; "end": after the last step
  PagedReport report;
};

/// Mean relative error over the decode steps in a segment of the trace.
struct ReplaySegment {
  std::string name;
  std::int64_t start = 0, end = 0;       // tokens; without `end`
  std::int64_t steps = 0;                // decode steps in it
  std::optional<double> rel_error_mean;  // none without steps
};

/// What a round trip through a tier did to the prompt's oldest tokens.
struct ReplayTier {
  std::int64_t page_bytes = 0;  // on the GPU
  std::int64_t link_bytes = 0;  // on the link, in one direction
  /// Squared error over squared values, of the rows that returned; 0 where all are 0.
  double key_error = 0, value_error = 0;
};

/// The prompt's own attention, of methods that compute part of it.
struct ReplayPrefill {
  double pairs_share = 0;         // computed pairs of a query and a key over the causal ones
  double flops_share = 0;         // FLOPs, the choice of pairs included, over those of all pairs
  double rel_error_mean = 0;      // of the prompt's outputs against full causal attention
  double retained_mass_mean = 0;  // of the full attention on the computed pairs
};

/// Standard errors of a method's means over layers, heads and steps, of which a sample was
/// replayed; one that the sample does not show (of a single layer) is absent.
struct ReplayStderr {
  std::optional<double> rel_error_mean, cosine_mean, retained_mass_mean, best_mass_mean;
  std::optional<double> answer_error_mean;
};

/// What was replayed of a trace.
struct ReplaySample {
  std::vector<std::int32_t> layers;  // their numbers in the trace
  std::int32_t of_layers = 0, kv_heads = 0, of_kv_heads = 0;
  std::vector<std::vector<std::int32_t>> heads;  // [layer]: numbers of its KV heads
  std::vector<std::int32_t> layers_by_stratum;   // TraceInfo's
};

/// Decode steps whose errors were measured; sizes and traffic are those of all.
struct ReplaySteps {
  std::int64_t measured = 0, of = 0;
};

struct ReplayMethod {
  std::string name;
  std::map<std::string, ParamValue> params;  // every parameter as resolved
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
  double bytes_full_read_total = 0;  // what the full cache reads in these steps
  double entries_read_share = 1;     // entries read of those there to read, over the decode steps
  double rel_error_mean = 0, rel_error_p99 = 0, cosine_mean = 0;  // over (layer, query head, step)
  // Over the decode steps that predict tokens of answers; null where there are none, as in a trace
  // without answer_start. Split at the answer, its first token is predicted by the prompt. Each
  // (layer, query head, step) counts by the largest probability that it gives to one token of the
  // context under full attention (largest_in_context), or equally where none gives any.
  std::optional<double> answer_error_mean;
  std::optional<double> retained_mass_mean;  // null for merges
  // The largest mass that as many entries as were read could retain, chosen again at each step.
  std::optional<double> best_mass_mean;
  std::optional<std::int64_t> closed_form_bytes_final;
  std::optional<ReplayTier> tier;        // of methods with a tier whose rows returned
  std::optional<ReplayPrefill> prefill;  // of methods that compute part of the prompt's attention
  std::optional<MeasuredLaw> measured_law;      // where there is no closed form
  std::optional<ReplayStderr> standard_errors;  // of a sample
  std::vector<ReplayCell> layers;
  std::vector<ReplayCell> heads;                      // with per_head
  std::vector<ReplayStep> series;                     // with per_step
  std::vector<std::vector<ReplayStep>> layer_series;  // with per_step: [layer][step]
  /// kept[layer][stored head]: entries, each its member positions ascending; entries by first
  /// member.
  std::vector<std::vector<std::vector<std::vector<std::int32_t>>>> kept;
  std::vector<ReplayKept> kept_by_role;                  // by layer, then in the order of KeptRole
  std::vector<std::vector<std::vector<KeptEntry>>> why;  // with why_kept: [layer][stored head]
  std::vector<ReplaySegment> segments;                   // of the trace
  std::vector<ReplayPaged> paged;                        // for each requested block size
  std::map<std::string, double> counts;  // what the method counted on the way, over all heads
  std::vector<std::string> notes;
};

/// A method that was left out.
struct ReplayFailure {
  std::size_t method = 0;  // its index in those requested
  std::string reason;
};

struct ReplayResult {
  std::string trace;
  std::int64_t prompt_tokens = 0;      // where a budget counts
  std::string source;                  // "2.6M-parameter model, 384 + 128 tokens"
  std::string model;                   // that the trace was recorded from, as its metadata names it
  std::optional<double> parameters;    // of that model
  std::optional<ReplaySample> sample;  // nullopt: all of the trace
  std::optional<ReplaySteps> steps;    // likewise
  std::vector<ReplayMethod> methods;   // in the requested order
  std::vector<ReplayFailure> failed;   // of those that may, likewise; not in `methods`

  /// Numbers in the trace of the replayed layer `layer`, and of one of its `stored` heads.
  [[nodiscard]] std::int32_t layer_number(std::size_t layer) const {
    return sample ? sample->layers.at(layer) : static_cast<std::int32_t>(layer);
  }
  [[nodiscard]] std::int32_t head_number(std::size_t layer, std::size_t head,
                                         std::size_t stored) const {
    return sample ? stored_head_number(sample->heads.at(layer), head, stored)
                  : static_cast<std::int32_t>(head);
  }
};

/// The facts about its trace that a method may use.
[[nodiscard]] MethodContext site_of(const TraceInfo& info);

/// Resolves `spec` for a trace. Errors: InputError as make_method, or if the trace does not have
/// data that the method needs.
[[nodiscard]] std::shared_ptr<const Method> resolve_for_trace(const MethodSpec& spec,
                                                              const TraceInfo& info);

/// Replays `trace` through each of `methods`, teacher-forced: queries, keys and values are the
/// recorded ones, so an error is one layer's and one step's; drift through layers and tokens is not
/// in it. Errors: InputError if a method cannot run on this trace and is none of those that may
/// fail.
[[nodiscard]] ReplayResult replay(const Trace& trace, const std::vector<MethodSpec>& methods,
                                  const ReplayOptions& options);

}  // namespace kvsim
