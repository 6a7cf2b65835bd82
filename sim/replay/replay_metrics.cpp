#include "sim/replay/replay_metrics.hpp"

#include <algorithm>
#include <array>

namespace kvsim {
namespace {

using OfMethod = Metric<ReplayedMethod>;
using OfStep = Metric<ReplayStep>;
using OfCell = Metric<ReplayCell>;
using OfPaged = Metric<ReplayPaged>;
using Kind = MetricKind;

/// Returns a member of the method.
template <auto Member>
MetricValue of_method(const ReplayedMethod& m) {
  return m.method.*Member;
}
/// Returns a member of the row itself.
template <class Result, auto Member>
MetricValue of_row(const Result& row) {
  return row.*Member;
}

template <auto Member>
constexpr auto kStep = of_row<ReplayStep, Member>;
template <auto Member>
constexpr auto kCell = of_row<ReplayCell, Member>;
/// Returns a member of the report at a moment.
template <auto Member>
MetricValue of_paged(const ReplayPaged& p) {
  return p.report.*Member;
}
template <CompactionPolicy Policy, auto Member>
MetricValue compacted(const ReplayPaged& p) {
  return p.report.compaction[static_cast<std::size_t>(Policy)].*Member;
}

using M = ReplayMethod;
constexpr auto kMethodMetrics = std::to_array<Metric<ReplayedMethod>>({
    OfMethod(
        Kind::kShare, "budget_reached", "share",
        "share of the full cache reached at the end of prefill; null for methods without a budget",
        of_method<&M::budget_reached>),
    OfMethod(Kind::kCount, "steps", "", "decode steps", of_method<&M::steps>),
    OfMethod(Kind::kCount, "entries_held_final", "entries", "sum over layers and stored heads",
             of_method<&M::entries_held_final>, {.aliases = "entries"}),
    OfMethod(Kind::kBytes, "bytes_held_final", "B",
             "stored K, V and side data, at the dtype of the store",
             of_method<&M::bytes_held_final>,
             {.aliases = "bytes, of full, size law",
              .page = {1, "bytes held", "B"},
              .sweep = {5, "bytes held"}}),
    OfMethod(Kind::kBytes, "bytes_full_final", "B",
             "the full cache's K and V, at the trace's dtype", of_method<&M::bytes_full_final>),
    OfMethod(Kind::kBytes, "side_bytes_final", "B",
             "the part of `bytes_held_final` that is side data", of_method<&M::side_bytes_final>),
    OfMethod(Kind::kBytes, "host_bytes_final", "B",
             "kept in host memory, not part of `bytes_held_final`",
             of_method<&M::host_bytes_final>),
    OfMethod(Kind::kBytes, "link_bytes_total", "B",
             "transferred between host and GPU, over the decode steps",
             of_method<&M::link_bytes_total>),
    OfMethod(Kind::kShare, "entries_read_share", "share",
             "share of the attended entries that is read, over the decode steps: 1 except for "
             "methods that read only a part",
             of_method<&M::entries_read_share>, {.page = {5, "read", "share"}}),
    OfMethod(Kind::kBytes, "bytes_full_read_total", "B",
             "K and V that the full cache reads in the decode steps",
             of_method<&M::bytes_full_read_total>),
    OfMethod(Kind::kBytes, "bytes_read_total", "B", "over the decode steps",
             of_method<&M::bytes_read_total>, {.sweep = {6, "bytes read"}}),
    OfMethod(Kind::kBytes, "bytes_written_total", "B", "over the decode steps",
             of_method<&M::bytes_written_total>),
    OfMethod(Kind::kCount, "extra_flops_total", "FLOP",
             "beyond attention itself, over the decode steps", of_method<&M::extra_flops_total>),
    OfMethod(Kind::kError, "rel_error_mean", "",
             "relative error of the attention output against the full cache's, averaged over "
             "layers, query heads and steps",
             of_method<&M::rel_error_mean>,
             {.aliases = "error, p99", .page = {2, "mean error"}, .sweep = {1, "error"}}),
    OfMethod(Kind::kError, "answer_error_mean", "",
             "the same over the steps that predict answers, each weighted by the attention of its "
             "query to one token of the context (docs/record.md); null for a trace without "
             "`answer_start` and segments named `answer`",
             of_method<&M::answer_error_mean>, {.aliases = "answer error"}),
    OfMethod(Kind::kError, "rel_error_p99", "", "likewise", of_method<&M::rel_error_p99>,
             {.page = {3, "p99 error"}, .sweep = {2, "p99 error"}}),
    OfMethod(Kind::kError, "cosine_mean", "", "likewise", of_method<&M::cosine_mean>,
             {.sweep = {3, "cosine"}, .higher_is_better = true}),
    OfMethod(
        Kind::kError, "retained_mass_mean", "share",
        "share of the full attention's mass on the held entries; null for methods that merge "
        "entries",
        of_method<&M::retained_mass_mean>,
        {.page = {4, "mass retained", "share"}, .sweep = {4, "mass"}, .higher_is_better = true}),
    OfMethod(Kind::kError, "best_mass_mean", "share",
             "the largest share that the same number of entries could have, chosen again at each "
             "step by each query head. Its difference from `retained_mass_mean` is the distance "
             "from the optimum, never negative except for rounding (1e-6); null likewise",
             of_method<&M::best_mass_mean>),
    OfMethod(
        Kind::kError, "oracle_mass_gap", "share",
        "retained mass of `oracle-step` minus that of this method, if the oracle ran at the same "
        "budget; otherwise null. Negative if a method holds more than its budget of the prompt, as "
        "methods that only append during decoding do",
        [](const ReplayedMethod& m) -> MetricValue { return oracle_gap(m.replay, m.method).mass; }),
    OfMethod(Kind::kError, "oracle_error_ratio", "",
             "this method's `rel_error_mean` over the oracle's; null likewise",
             [](const ReplayedMethod& m) -> MetricValue {
               return oracle_gap(m.replay, m.method).error_ratio;
             }),
    OfMethod(Kind::kBytes, "closed_form_bytes_final", "B",
             "`bytes_held_final` by the size law; null if there is no closed form",
             of_method<&M::closed_form_bytes_final>),
});

using S = ReplayStep;
constexpr auto kStepMetrics = std::to_array<Metric<ReplayStep>>({
    OfStep(Kind::kCount, "step", "", "from 1", kStep<&S::step>),
    OfStep(Kind::kCount, "tokens", "tokens", "so far, including this step", kStep<&S::tokens>),
    OfStep(Kind::kCount, "entries_held", "entries",
           "sum over layers and stored heads, after compression", kStep<&S::entries_held>),
    OfStep(Kind::kCount, "entries_attended", "entries", "likewise, attended over",
           kStep<&S::entries_attended>),
    OfStep(Kind::kBytes, "bytes_held", "B", "K, V and side data", kStep<&S::bytes_held>),
    OfStep(Kind::kBytes, "bytes_attended", "B", "K and V of the entries attended over",
           kStep<&S::bytes_attended>),
    OfStep(Kind::kBytes, "side_bytes", "B", "side data", kStep<&S::side_bytes>),
    OfStep(Kind::kBytes, "host_bytes", "B", "kept in host memory", kStep<&S::host_bytes>),
    OfStep(Kind::kBytes, "link_bytes", "B", "transferred between host and GPU",
           kStep<&S::link_bytes>),
    OfStep(Kind::kCount, "entries_read", "entries", "of those attended over",
           kStep<&S::entries_read>),
    OfStep(Kind::kBytes, "bytes_read", "B", "in this step", kStep<&S::bytes_read>),
    OfStep(Kind::kBytes, "bytes_written", "B", "likewise", kStep<&S::bytes_written>),
    OfStep(Kind::kCount, "extra_flops", "FLOP", "beyond attention itself", kStep<&S::extra_flops>),
    OfStep(Kind::kError, "rel_error", "",
           "mean over layers and query heads; of `replay_layer_steps.csv` over query heads",
           kStep<&S::rel_error>),
    OfStep(Kind::kError, "cosine", "", "likewise", kStep<&S::cosine>),
    OfStep(Kind::kError, "retained_mass", "share", "null for merges", kStep<&S::retained_mass>),
});

using C = ReplayCell;
constexpr auto kCellMetrics = std::to_array<Metric<ReplayCell>>({
    OfCell(Kind::kCount, "layer", "", "from 0", kCell<&C::layer>),
    OfCell(Kind::kCount, "head", "", "stored head; only in `per_head[]`",
           [](const ReplayCell& cell) -> MetricValue {
             if (cell.head < 0) return NoMetric{};
             return cell.head;
           }),
    OfCell(Kind::kCount, "entries_final", "entries", "after the last step",
           kCell<&C::entries_final>),
    OfCell(Kind::kBytes, "bytes_final", "B", "likewise", kCell<&C::bytes_final>),
    OfCell(Kind::kError, "rel_error_mean", "", "as for the method", kCell<&C::rel_error_mean>),
    OfCell(Kind::kError, "cosine_mean", "", "likewise", kCell<&C::cosine_mean>),
    OfCell(Kind::kError, "retained_mass_mean", "share", "likewise", kCell<&C::retained_mass_mean>),
});

using P = PagedReport;
constexpr auto kPagedMetrics = std::to_array<Metric<ReplayPaged>>({
    OfPaged(Kind::kText, "moment", "",
            "`prefill`: after the prompt was compressed; `end`: after the last step",
            of_row<ReplayPaged, &ReplayPaged::moment>),
    OfPaged(Kind::kCount, "block_size", "entries", "entries per block", of_paged<&P::block_size>),
    OfPaged(Kind::kText, "layout", "",
            "`across_heads` (a block spans the stored heads of a layer and is free when all have "
            "left it) or `per_head`",
            [](const ReplayPaged& p) -> MetricValue { return name_of(p.report.layout); }),
    OfPaged(Kind::kBytes, "logical_bytes", "B", "K and V of the entries kept",
            of_paged<&P::logical>),
    OfPaged(Kind::kBytes, "allocated_bytes", "B", "blocks that hold any entry",
            of_paged<&P::allocated>),
    OfPaged(Kind::kBytes, "reclaimable_bytes", "B",
            "blocks that hold none; plus `allocated_bytes`: the size of the full cache's blocks",
            of_paged<&P::reclaimable>),
    OfPaged(Kind::kBytes, "slack_bytes", "B",
            "`allocated_bytes` minus `logical_bytes`: dropped entries, and the unused end of last "
            "blocks",
            of_paged<&P::slack>),
    OfPaged(Kind::kCount, "entries_dropped", "entries", "of all layers and stored heads",
            of_paged<&P::entries_dropped>),
    OfPaged(Kind::kCount, "blocks_total", "", "of the full cache", of_paged<&P::blocks_total>),
    OfPaged(Kind::kCount, "blocks_freed", "", "blocks that became free",
            of_paged<&P::blocks_freed>),
    OfPaged(Kind::kBytes, "compacted_bytes_none", "B", "allocated without compaction",
            compacted<CompactionPolicy::kNone, &PagedCompaction::allocated>),
    OfPaged(Kind::kBytes, "compaction_bytes_moved_none", "B", "0",
            compacted<CompactionPolicy::kNone, &PagedCompaction::bytes_moved>),
    OfPaged(Kind::kBytes, "compacted_bytes_slack", "B",
            "allocated after compaction of the layers whose slack exceeds a quarter of their "
            "allocated bytes at this moment",
            compacted<CompactionPolicy::kSlack, &PagedCompaction::allocated>),
    OfPaged(Kind::kBytes, "compaction_bytes_moved_slack", "B",
            "rows copied for it, each counted once (traffic is a read and a write). The fullest "
            "blocks stay, the others' entries move into their holes",
            compacted<CompactionPolicy::kSlack, &PagedCompaction::bytes_moved>),
    OfPaged(Kind::kBytes, "compacted_bytes_every_step", "B",
            "allocated after compaction in every step that drops entries",
            compacted<CompactionPolicy::kEveryStep, &PagedCompaction::allocated>),
    OfPaged(Kind::kBytes, "compaction_bytes_moved_every_step", "B",
            "rows copied for it; at the end a row for each entry dropped since prefill",
            compacted<CompactionPolicy::kEveryStep, &PagedCompaction::bytes_moved>),
});

}  // namespace

OracleGap oracle_gap(const ReplayResult& replay, const ReplayMethod& method) {
  OracleGap gap;
  if (!method.budget) return gap;
  const auto oracle =
      std::find_if(replay.methods.begin(), replay.methods.end(), [&](const ReplayMethod& each) {
        return each.name == "oracle-step" && each.budget == method.budget;
      });
  if (oracle == replay.methods.end()) return gap;
  if (oracle->retained_mass_mean && method.retained_mass_mean) {
    gap.mass = *oracle->retained_mass_mean - *method.retained_mass_mean;
  }
  if (oracle->rel_error_mean > 0) gap.error_ratio = method.rel_error_mean / oracle->rel_error_mean;
  return gap;
}

MetricTable<ReplayedMethod> replay_metrics() { return kMethodMetrics; }
MetricTable<ReplayStep> replay_step_metrics() { return kStepMetrics; }
MetricTable<ReplayCell> replay_cell_metrics() { return kCellMetrics; }
MetricTable<ReplayPaged> replay_paged_metrics() { return kPagedMetrics; }

}  // namespace kvsim
