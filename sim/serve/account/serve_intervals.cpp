#include "sim/serve/account/serve_intervals.hpp"

#include <algorithm>
#include <array>

#include "sim/batch/account/time_residual.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {
namespace {

/// `out` with the lesser (or the larger) of each figure.
template <class Choose>
void widen(ServeMetrics& out, const ServeMetrics& other, Choose choose) {
  const auto both = [&](double& a, double b) { a = choose(a, b); };
  const auto each = [&](Distribution& a, const Distribution& b) {
    if (b.n == 0) return;
    if (a.n == 0) {
      a = b;
      return;
    }
    both(a.mean, b.mean);
    both(a.p50, b.p50);
    both(a.p90, b.p90);
    both(a.p95, b.p95);
    both(a.p99, b.p99);
  };
  const auto maybe = [&](std::optional<double>& a, const std::optional<double>& b) {
    if (a && b) both(*a, *b);
  };
  each(out.ttft, other.ttft);
  each(out.tpot, other.tpot);
  each(out.itl, other.itl);
  each(out.e2e, other.e2e);
  each(out.queue, other.queue);
  both(out.request_s, other.request_s);
  both(out.output_tok_s, other.output_tok_s);
  both(out.total_tok_s, other.total_tok_s);
  both(out.makespan_s, other.makespan_s);
  both(out.mfu, other.mfu);
  both(out.mbu, other.mbu);
  both(out.busy, other.busy);
  maybe(out.goodput, other.goodput);
  maybe(out.slo_attained, other.slo_attained);
}

}  // namespace

ServeMetrics figures_of(const ServeResult& r) {
  return {.ttft = r.ttft,
          .tpot = r.tpot,
          .itl = r.itl,
          .e2e = r.e2e,
          .queue = r.queue,
          .request_s = r.request_s,
          .output_tok_s = r.output_tok_s,
          .total_tok_s = r.total_tok_s,
          .makespan_s = to_seconds(r.makespan).count(),
          .mfu = r.mfu,
          .mbu = r.mbu,
          .busy = r.busy,
          .goodput = r.goodput,
          .slo_attained = r.slo_attained};
}

std::optional<TimeEnds> time_ends(const ServeSpec& spec,
                                  const std::optional<MeanIteration>& iteration) {
  if (!iteration || !iteration->step.interval || iteration->step.time <= Seconds{}) {
    return std::nullopt;
  }
  const Interval& interval = *iteration->step.interval;
  return TimeEnds{.faster = interval.low / iteration->step.time,
                  .slower = interval.high / iteration->step.time,
                  .basis = time_residual(*spec.stack).basis};
}

std::optional<ServeIntervals> serve_intervals(const ServeSpec& spec, const ServeResult& result,
                                              const std::optional<MeanIteration>& iteration,
                                              int threads) {
  const std::optional<TimeEnds> ends = time_ends(spec, iteration);
  if (!ends) return std::nullopt;
  ServeIntervals out;
  out.faster = ends->faster;
  out.slower = ends->slower;
  out.basis = ends->basis;
  out.low = out.high = figures_of(result);
  const std::array factors{out.faster, out.slower};
  std::array<ServeMetrics, 2> others;
  parallel_for(factors.size(), threads, [&](std::size_t i) {
    others[i] = figures_of(
        run_serve(spec, {.max_samples = 2, .keep_gaps = false, .time_scale = factors[i]}));
  });
  for (const ServeMetrics& other : others) {
    widen(out.low, other, [](double a, double b) { return std::min(a, b); });
    widen(out.high, other, [](double a, double b) { return std::max(a, b); });
  }
  return out;
}

}  // namespace kvsim
