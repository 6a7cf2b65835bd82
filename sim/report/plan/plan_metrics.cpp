#include "sim/report/plan/plan_metrics.hpp"

#include <array>
#include <string>

#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/plan/plan_report.hpp"

namespace kvsim {
namespace {

using OfCandidate = Metric<PlanCandidate>;
using OfWay = Metric<OperatingPoint>;
using Kind = MetricKind;
using Part = MetricPart;
using Candidate = PlanCandidate;
using Way = OperatingPoint;

template <auto Member>
MetricValue of_candidate(const Candidate& c) {
  return c.*Member;
}
template <auto Member>
MetricValue of_range(const Candidate& c) {
  return c.range.*Member;
}
/// A metric of the run at the answer; omitted without an answer.
template <auto Member>
MetricValue of_run(const Candidate& c) {
  if (!c.at_answer) return NoMetric{};
  return (*c.at_answer).*Member;
}
/// A metric of the service at the answer; omitted for static batches.
template <auto Member>
MetricValue of_times(const Candidate& c) {
  if (!c.times) return NoMetric{};
  return (*c.times).*Member;
}
template <auto Member>
MetricValue of_way(const Way& w) {
  return w.*Member;
}
MetricValue text_or_null(const std::string& text) {
  return text.empty() ? MetricValue{} : MetricValue{text};
}

constexpr auto kCandidateMetrics = std::to_array<Metric<Candidate>>({
    OfCandidate(
        Kind::kCount, "answer", "tokens, sequences, requests/s or GPUs",
        "null if impossible or pruned. Equals `predicted`, or `safe` if a `confidence` is set",
        of_candidate<&Candidate::answer>),
    OfCandidate(Kind::kCount, "predicted", "as `answer`", "the answer as predicted",
                of_range<&AnswerRange::predicted>),
    OfCandidate(Kind::kCount, "safe", "as `answer`",
                "at the worse end of memory and times ([plan.md](plan.md#prediction-and-range)); "
                "null if that end does not exist",
                of_range<&AnswerRange::safe>),
    OfCandidate(Kind::kCount, "optimistic", "as `answer`", "likewise at the better end",
                of_range<&AnswerRange::optimistic>),
    OfCandidate(Kind::kText, "range", "",
                "those ends in words, the smaller first: \"8 to 24\", \"none to 18,400\", \"8 to "
                "more than 64\"; null if the error of predictions is not known",
                [](const Candidate& c) { return text_or_null(plan_range(c)); }),
    OfCandidate(Kind::kCount, "at_most", "",
                "true: the answer is the end of the search, not a limit of memory",
                of_candidate<&Candidate::at_most>),
    OfCandidate(Kind::kText, "limited_by", "",
                "the limit that keeps the answer from being better, as `constraint`; null if none "
                "was found",
                [](const Candidate& c) { return text_or_null(limited_by(c)); }),
    OfCandidate(Kind::kCount, "beyond_positions", "",
                "true: the answer exceeds the model's positions and counts memory only",
                [](const Candidate& c) -> MetricValue { return c.positions > 0; }),
    OfCandidate(Kind::kCount, "monotone", "",
                "whether no size was possible above a size that failed",
                of_candidate<&Candidate::monotone>),
    OfCandidate(Kind::kCount, "probes", "", "number of sizes tried",
                of_candidate<&Candidate::probes>),
    OfCandidate(Kind::kCount, "time_factor", "", "factor of predicted times at this confidence",
                of_candidate<&Candidate::time_factor>)
        .in(Part::kTimes),
    OfCandidate(Kind::kText, "time_basis", "", "basis of `time_factor`",
                of_candidate<&Candidate::time_basis>)
        .in(Part::kTimes),
    OfCandidate(Kind::kShare, "slo_probability", "share",
                "of a service: probability that it meets its bounds at the answer; null if the "
                "error of times is not known",
                of_candidate<&Candidate::slo_probability>)
        .in(Part::kTimes),
    OfCandidate(Kind::kLatency, "ttft_s", "s",
                "of a service at the answer, at the worse end: time to first token",
                of_times<&ServiceTimes::ttft>, {.page = {3, "TTFT", "s"}})
        .in(Part::kTimes),
    OfCandidate(Kind::kLatency, "tpot_s", "s", "likewise: time per output token",
                of_times<&ServiceTimes::tpot>, {.page = {4, "TPOT", "s"}})
        .in(Part::kTimes),
    OfCandidate(Kind::kLatency, "e2e_s", "s", "likewise: from arrival to last token",
                of_times<&ServiceTimes::e2e>)
        .in(Part::kTimes),
    OfCandidate(Kind::kBytes, "peak_hbm_bytes", "B",
                "of static batches: the run at the answer, as predicted",
                of_run<&RunAtAnswer::peak>)
        .in(Part::kAtAnswer),
    OfCandidate(Kind::kBytes, "usable_hbm_bytes", "B", "likewise", of_run<&RunAtAnswer::usable>)
        .in(Part::kAtAnswer),
    OfCandidate(Kind::kTime, "prefill_s", "s",
                "likewise: the time to first token of all prompts computed at once",
                of_run<&RunAtAnswer::ttft_s>, {.page = {6, "TTFT, whole batch", "s"}})
        .in(Part::kAtAnswer),
    OfCandidate(Kind::kTime, "prefill_one_s", "s",
                "time to first token of a single request of that prompt",
                of_run<&RunAtAnswer::ttft_one_s>, {.page = {5, "TTFT, one request", "s"}})
        .in(Part::kAtAnswer),
    OfCandidate(Kind::kRate, "decode_tok_s", "tok/s", "of that run over its decode steps",
                of_run<&RunAtAnswer::decode_tok_s>)
        .in(Part::kAtAnswer),
});

constexpr auto kWayMetrics = std::to_array<Metric<Way>>({
    OfWay(Kind::kCount, "load", "sequences or requests/s",
          "size of the batch, or rate of the service", of_way<&Way::load>),
    OfWay(Kind::kCount, "gpus", "GPUs", "of the whole service", of_way<&Way::gpus>),
    OfWay(Kind::kRate, "output_tok_s", "tok/s", "output tokens of all its GPUs",
          of_way<&Way::tokens_s>),
    OfWay(Kind::kTime, "ttft_s", "s",
          "time to first token: of a batch, whose prompts are computed at once; of a service, the "
          "`percentile` of its requests",
          of_way<&Way::ttft_s>),
    OfWay(Kind::kTime, "tpot_s", "s", "likewise: time per output token", of_way<&Way::tpot_s>),
    OfWay(Kind::kTime, "latency_s", "s", "likewise: from arrival to last token",
          of_way<&Way::latency_s>, {.page = {2, "latency", "s"}}),
    OfWay(Kind::kCount, "cost", "`cost_unit`", "per million output tokens", of_way<&Way::cost>,
          {.page = {1, "cost"}}),
    OfWay(Kind::kError, "error", "", "of the method; null: not measured", of_way<&Way::error>),
    OfWay(Kind::kCount, "context", "tokens", "of `longest_context`; else null",
          [](const Way& w) { return w.size > 0 ? MetricValue{w.size} : MetricValue{}; }),
    OfWay(
        Kind::kCount, "on_front", "",
        "whether no other way is at least as good in cost, TTFT, TPOT, latency, throughput (`load` "
        "of a service, `output_tok_s` of a batch), error and context, and better in one of them",
        of_way<&Way::on_front>),
});

}  // namespace

MetricTable<PlanCandidate> candidate_metrics() { return kCandidateMetrics; }
MetricTable<OperatingPoint> operating_point_metrics() { return kWayMetrics; }

}  // namespace kvsim
