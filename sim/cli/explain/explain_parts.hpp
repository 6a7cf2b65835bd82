#pragma once

// Internal to `kvsim explain`: functions shared by its parts, and parts with their own files.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "sim/cli/explain/explain_result.hpp"
#include "sim/metrics/metric.hpp"

namespace kvsim {

/// Kinds of results, which have different figures.
enum class ResultKind : std::uint8_t { kStatic, kServe, kReplay, kPlan };
/// The key among `keys` that `word` names: the key itself, or a column name of a table ("TTFT",
/// "decode tok/s", "TPOT p99 ms"), ignoring case. Returns `word` if it matches no key.
[[nodiscard]] std::string explained_key(std::string_view word, ResultKind kind,
                                        const std::vector<std::string>& keys);

/// The table row of a metric that has only a value, no terms, in this kind of result; nullptr if
/// there is none.
[[nodiscard]] const MetricInfo* metric_without_terms(std::string_view key, ResultKind kind);

/// The unit of a metric in explanations; empty for shares.
[[nodiscard]] std::string explained_unit(const MetricInfo& info);

/// Reads a finite number of a document.
[[nodiscard]] double explained_number(const Field& field);
[[nodiscard]] std::optional<double> maybe_number(const Field& object, std::string_view key);
[[nodiscard]] std::string text_or_none(const Field& object, std::string_view key);

/// Sets the total of the terms. Errors: InputError if they do not sum to it.
void resolve(Explanation& out, const Field& place, std::string_view of, std::string_view unit,
             double total);

/// Throws InputError: `point` does not have this figure, and why.
[[noreturn]] void fail_without(const Field& point, std::string_view key, std::string_view why);

/// Index into `labels` that `which` selects by number or label; it may be empty if there is only
/// one label. Errors: InputError at `place` with the nearest label.
[[nodiscard]] std::size_t which_of(const Field& place, std::string_view what,
                                   const std::vector<std::string>& labels, std::string_view which);

/// "12,345"; in exponent notation if it does not fit in 64 bits.
[[nodiscard]] std::string count_text(double n);
/// "12.3 %".
[[nodiscard]] std::string percent_text(double share);

/// Explains a step by its terms: a step of time_terms or a mean iteration.
[[nodiscard]] Explanation explain_step(const Field& point, const Field& step, std::string_view key);

/// Explains an iteration of a service with the mean numbers of its iterations.
[[nodiscard]] Explanation explain_iteration(const Field& point);
/// Explains the bottleneck of a service: its time by phase, the utilization of each possible bound,
/// a mean iteration by operator family, and the resource with the highest sensitivity.
[[nodiscard]] Explanation explain_bound(const Field& point);

/// Explains the latencies of a service's requests: queue, prompt and output times (if their means
/// cover the same requests), percentiles, iterations, and waiting requests. `key`: "ttft_s",
/// "tpot_s", "itl_s", "e2e_s" or "queue_s".
[[nodiscard]] Explanation explain_latency(const Field& point, std::string_view key);
/// Explains a rate: tokens or requests divided by the makespan, and the makespan by phase.
[[nodiscard]] Explanation explain_rate(const Field& point, std::string_view key);
/// Explains goodput: requests within all bounds, and the misses of each bound as far as percentiles
/// show them.
[[nodiscard]] Explanation explain_goodput(const Field& point);
/// Explains "mfu" or "mbu": the share of the makespan that the data sheet's rate accounts for.
[[nodiscard]] Explanation explain_use(const Field& point, std::string_view key);

/// The basis of the intervals of a service's point; empty if it has none.
[[nodiscard]] std::string service_basis(const Field& point);
/// Adds the makespan by phase as terms.
void add_phases(Explanation& out, const Field& point);
/// A mean iteration by operator family, longest time first.
[[nodiscard]] ExplainedTable mean_by_family(const Field& mean);

/// Questions of a plan.
[[nodiscard]] std::span<const std::string_view> plan_keys();
[[nodiscard]] bool is_plan_key(std::string_view key);
/// `plan`: the document of schema kvsim.plan/1. If there is only one answer, the request need not
/// name its best candidate.
[[nodiscard]] Explanation explain_plan(const Field& plan, const ExplainRequest& request);

/// Figures of a method of a replay.
[[nodiscard]] std::span<const std::string_view> replay_keys();
[[nodiscard]] bool is_replay_key(std::string_view key);
/// `replay`: the document of schema kvsim.replay/1.
[[nodiscard]] Explanation explain_replay(const Field& replay, const ExplainRequest& request);

}  // namespace kvsim
