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
/// "decode tok/s", "TPOT p99 ms"), in upper or lower case. `word` itself if it names none.
[[nodiscard]] std::string explained_key(std::string_view word, ResultKind kind,
                                        const std::vector<std::string>& keys);

/// The row of a metric of this kind of result that has no terms, only a value; nullptr if there is
/// none.
[[nodiscard]] const MetricInfo* metric_without_terms(std::string_view key, ResultKind kind);

/// The unit of a metric in explanations: none of shares.
[[nodiscard]] std::string explained_unit(const MetricInfo& info);

/// A finite number of a document.
[[nodiscard]] double explained_number(const Field& field);
[[nodiscard]] std::optional<double> maybe_number(const Field& object, std::string_view key);
[[nodiscard]] std::string text_or_none(const Field& object, std::string_view key);

/// Says what the terms sum to. Errors: InputError where they do not.
void resolve(Explanation& out, const Field& place, std::string_view of, std::string_view unit,
             double total);

/// Throws InputError: there is no such figure of `point`, and why.
[[noreturn]] void fail_without(const Field& point, std::string_view key, std::string_view why);

/// Which of `labels` is meant, by number or label; a single one needs neither. Errors: InputError
/// at `place`, naming the nearest.
[[nodiscard]] std::size_t which_of(const Field& place, std::string_view what,
                                   const std::vector<std::string>& labels, std::string_view which);

/// "12,345"; what 64 bits do not hold as a power of ten.
[[nodiscard]] std::string count_text(double n);
/// "12.3 %".
[[nodiscard]] std::string percent_text(double share);

/// A step with its terms: of time_terms, or a mean iteration.
[[nodiscard]] Explanation explain_step(const Field& point, const Field& step, std::string_view key);

/// An iteration of a service with the numbers that its iterations had on average.
[[nodiscard]] Explanation explain_iteration(const Field& point);
/// The bottleneck of a service: its time by phase, possible bounds and how much of each was in use,
/// a mean iteration by operator family, and the most sensitive resource.
[[nodiscard]] Explanation explain_bound(const Field& point);

/// Where the times of a service's requests went: queue, prompt and output where means are of the
/// same requests, percentiles, iterations, what waited meanwhile. `key`: "ttft_s", "tpot_s",
/// "itl_s", "e2e_s" or "queue_s".
[[nodiscard]] Explanation explain_latency(const Field& point, std::string_view key);
/// Tokens or requests over the makespan, and the makespan by phase.
[[nodiscard]] Explanation explain_rate(const Field& point, std::string_view key);
/// Requests within all bounds, and how often each bound is missed, as far as percentiles show.
[[nodiscard]] Explanation explain_goodput(const Field& point);
/// "mfu" or "mbu": the part of the makespan that the data sheet's rate explains.
[[nodiscard]] Explanation explain_use(const Field& point, std::string_view key);

/// Of a service's point: what its intervals rest on; empty where it has none.
[[nodiscard]] std::string service_basis(const Field& point);
/// The makespan by phase, as terms.
void add_phases(Explanation& out, const Field& point);
/// A mean iteration by operator family, most time first.
[[nodiscard]] ExplainedTable mean_by_family(const Field& mean);

/// Questions of a plan.
[[nodiscard]] std::span<const std::string_view> plan_keys();
[[nodiscard]] bool is_plan_key(std::string_view key);
/// `plan`: the document of schema kvsim.plan/1. Of a lone answer the best candidate need not be
/// named.
[[nodiscard]] Explanation explain_plan(const Field& plan, const ExplainRequest& request);

/// Figures of a method of a replay.
[[nodiscard]] std::span<const std::string_view> replay_keys();
[[nodiscard]] bool is_replay_key(std::string_view key);
/// `replay`: the document of schema kvsim.replay/1.
[[nodiscard]] Explanation explain_replay(const Field& replay, const ExplainRequest& request);

}  // namespace kvsim
