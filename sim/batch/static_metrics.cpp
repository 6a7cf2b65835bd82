#include "sim/batch/static_metrics.hpp"

#include <array>

namespace kvsim {
namespace {

using Point = StaticPoint;
using Row = Metric<StaticPoint>;
using Kind = MetricKind;
using Part = MetricPart;

/// The value of a member of the result.
template <auto Member>
MetricValue of(const Point& p) {
  return p.result.*Member;
}
/// A member of the run's intervals; nullopt without them.
template <auto Member>
auto interval(const Point& p) {
  return p.result.intervals ? (*p.result.intervals).*Member : std::nullopt;
}
/// The same as a value, and as ends.
template <auto Member>
MetricValue end(const Point& p) {
  return interval<Member>(p);
}
template <auto Member>
MetricEnds ends(const Point& p) {
  return interval<Member>(p);
}
std::optional<Interval> run_interval(const Point& p) {
  const auto prefill = interval<&RunIntervals::prefill>(p);
  const auto decode = interval<&RunIntervals::decode>(p);
  if (!prefill || !decode) return std::nullopt;
  return Interval{.low = prefill->low + decode->low, .high = prefill->high + decode->high};
}
/// Rates are highest if times are lowest.
MetricEnds rate_ends(const Point& p, const std::optional<Interval>& time) {
  if (!time) return {};
  const double tokens =
      static_cast<double>(p.spec.batch) * static_cast<double>(p.spec.output_tokens);
  return {tokens / time->high.count(), tokens / time->low.count()};
}

constexpr auto kMetrics = std::to_array<Metric<Point>>({
    Row(Kind::kBytes, "peak_hbm_bytes", "B",
        "peak memory of the run, up to the OOM if there is one", of<&StaticResult::peak_hbm>,
        {.words = "peak HBM",
         .aliases = "peak, memory",
         .page = {1, "peak HBM", "B"},
         .sweep = {4, "peak GiB", "GiB"},
         .is_published = true},
        ends<&RunIntervals::peak>),
    Row(Kind::kBytes, "kv_bytes", "B",
        "cache and side data of the whole batch at the end, or at the last moment before the OOM; "
        "from the size law, which is exact",
        of<&StaticResult::kv_bytes>,
        {.words = "cache",
         .aliases = "kv, cache",
         .summary = {3, "KV", "GiB"},
         .page = {2, "KV cache", "B"},
         .sweep = {9, "cache GiB", "GiB"},
         .is_published = true},
        [](const Point& /*p*/) -> MetricEnds { return {}; }),
    Row(Kind::kRate, "throughput_tok_s", "tok/s",
        "output tokens of the batch over prefill and decode; null after an OOM",
        of<&StaticResult::throughput_tok_s>,
        {.words = "output tokens per second",
         .aliases = "throughput, all",
         .summary = {.place = 6, .header = "all", .unit = "tok/s", .verbose = true},
         .page = {5, "whole run", "tok/s"},
         .sweep = {1, "tok/s", "tok/s"},
         .higher_is_better = true,
         .is_published = true},
        [](const Point& p) { return rate_ends(p, run_interval(p)); }),
    Row(Kind::kRate, "decode_tok_s", "tok/s", "the same over decode only; null after an OOM",
        of<&StaticResult::decode_tok_s>,
        {.aliases = "decode, tok/s, output, output tok/s",
         .summary = {5, "decode", "tok/s"},
         .page = {4, "decode", "tok/s"},
         .higher_is_better = true,
         .is_published = true},
        [](const Point& p) { return rate_ends(p, interval<&RunIntervals::decode>(p)); }),
    Row(
        Kind::kTime, "latency_s", "s", "time of prefill and decode; null after an OOM",
        [](const Point& p) -> MetricValue {
          if (!p.result.prefill_time || !p.result.decode_time) return {};
          return *p.result.prefill_time + *p.result.decode_time;
        },
        {.words = "latency",
         .aliases = "latency, e2e",
         .sweep = {5, "latency s", "s"},
         .is_published = true},
        [](const Point& p) -> MetricEnds { return run_interval(p); }),
    Row(Kind::kTime, "prefill_s", "s",
        "time to first token of the whole batch, whose prompts are computed at once; null after an "
        "OOM in prefill or before",
        of<&StaticResult::prefill_time>,
        {.aliases =
             "ttft, time to first token, prefill, compute % ttft, memory % ttft, overhead % ttft",
         .summary = {4, "TTFT", "s"},
         .page = {3, "prefill", "s"},
         .is_published = true},
        ends<&RunIntervals::prefill>),
    Row(Kind::kTime, "decode_s", "s", "time of all decode steps; null after an OOM",
        of<&StaticResult::decode_time>, {}, ends<&RunIntervals::decode>),
    Row(Kind::kCount, "oom_tokens_low", "tokens",
        "length of a sequence at which memory runs out, at the upper end of the memory interval; "
        "null if it does not run out or if there is no interval. A point with this value and "
        "without `oom` may run out",
        end<&RunIntervals::oom_low>),
    Row(Kind::kCount, "oom_tokens_high", "tokens",
        "likewise at the lower end of the memory interval", end<&RunIntervals::oom_high>),
    Row(Kind::kBytes, "kv_bytes_wanted", "B",
        "cache and side data at full length, whether or not they fit; null if only a replay can "
        "measure them",
        [](const Point& p) -> MetricValue { return p.kv_bytes_wanted; }, {.is_published = true}),
    Row(
        Kind::kCount, "largest_batch", "sequences",
        "the largest batch of this prompt and output that fits. 0 if not even one sequence fits; "
        "65,536 is the largest size tried. Null in scenarios of more than 100 points",
        [](const Point& p) -> MetricValue {
          return p.result.fit_range ? MetricValue{p.result.fit_range->batch} : MetricValue{};
        },
        {.aliases = "most, most batch", .higher_is_better = true},
        [](const Point& p) -> MetricEnds {
          const FitRange fit = p.result.fit_range.value_or(FitRange{});
          return {fit.batch_low, fit.batch_high};
        })
        .in(Part::kFit),
    Row(
        Kind::kCount, "fewest_gpus", "GPUs",
        "the fewest tensor-parallel GPUs on which this batch fits. Only numbers that divide the "
        "heads and columns evenly are tried; null if it does not fit on 64, and in scenarios of "
        "more than 100 points",
        [](const Point& p) -> MetricValue { return p.result.fit_range.value_or(FitRange{}).gpus; },
        {.aliases = "fewest"},
        [](const Point& p) -> MetricEnds {
          const FitRange fit = p.result.fit_range.value_or(FitRange{});
          return {fit.gpus_low, fit.gpus_high};
        })
        .in(Part::kFit),
    Row(Kind::kBytes, "prefill_peak_bytes", "B", "peak memory of prefill",
        of<&StaticResult::prefill_peak>,
        {.aliases = "prefill peak", .summary = {1, "prefill", "GiB"}, .is_published = true})
        .in(Part::kPhases),
    Row(Kind::kBytes, "decode_peak_bytes", "B",
        "peak memory of the decode steps; null if no step was run",
        [](const Point& p) -> MetricValue {
          if (p.result.decode_peak <= Bytes{}) return {};
          return p.result.decode_peak;
        },
        {.aliases = "decode peak", .summary = {2, "decode", "GiB"}, .is_published = true})
        .in(Part::kPhases),
    Row(Kind::kBytes, "usable_hbm_bytes", "B", "memory of the GPU that the stack may use",
        of<&StaticResult::usable_hbm>)
        .in(Part::kUsable),
    Row(Kind::kBytes, "reserved_hbm_bytes", "B",
        "with `allocator: simulate`: the CUDA context plus the peak memory reserved by the caching "
        "allocator; otherwise absent",
        [](const Point& p) -> MetricValue {
          if (!p.result.allocator) return NoMetric{};
          return p.spec.stack->context + p.result.allocator->end.reserved_peak;
        },
        {.is_published = true})
        .in(Part::kReserved),
    Row(Kind::kCount, "flops_total", "FLOP", "whole run, up to the OOM", of<&StaticResult::flops>)
        .in(Part::kWork),
    Row(Kind::kBytes, "bytes_moved_total", "B", "likewise", of<&StaticResult::bytes_moved>)
        .in(Part::kWork),
});

}  // namespace

MetricTable<StaticPoint> static_metrics() { return kMetrics; }

}  // namespace kvsim
