#include "sim/serve/account/serve_intervals.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

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

/// Widens both ends of `of` to the errors of its metric.
void widen_to_residual(Distribution& low, Distribution& high, const Distribution& of,
                       std::string_view metric, const ServeSpec& spec, const ServeResult& result) {
  if (of.n == 0) return;
  const ResidualClass* centre = residual_of(spec, result, metric, false);
  const ResidualClass* tail = residual_of(spec, result, metric, true);
  const auto one = [&](double Distribution::*value, const ResidualClass* residual) {
    if (residual == nullptr) return;
    low.*value = std::min(low.*value, of.*value * residual->low);
    high.*value = std::max(high.*value, of.*value * residual->high);
  };
  one(&Distribution::mean, centre);
  one(&Distribution::p50, centre);
  one(&Distribution::p90, tail);
  one(&Distribution::p95, tail);
  one(&Distribution::p99, tail);
}

void widen_to_residuals(ServeIntervals& out, const ServeSpec& spec, const ServeResult& result) {
  const auto times = [&](Distribution ServeMetrics::*member, const Distribution& of,
                         std::string_view metric) {
    widen_to_residual(out.low.*member, out.high.*member, of, metric, spec, result);
  };
  times(&ServeMetrics::ttft, result.ttft, "ttft");
  times(&ServeMetrics::tpot, result.tpot, "tpot");
  times(&ServeMetrics::itl, result.itl, "itl");
  times(&ServeMetrics::e2e, result.e2e, "e2e");
  const ResidualClass* rate = residual_of(spec, result, "throughput", false);
  if (rate == nullptr) return;
  const auto rates = [&](double ServeMetrics::*member, double of) {
    out.low.*member = std::min(out.low.*member, of * rate->low);
    out.high.*member = std::max(out.high.*member, of * rate->high);
  };
  rates(&ServeMetrics::request_s, result.request_s);
  rates(&ServeMetrics::output_tok_s, result.output_tok_s);
  rates(&ServeMetrics::total_tok_s, result.total_tok_s);
}

const ResidualClass* residual_of(const ServeSpec& spec, bool queued, std::string_view metric,
                                 bool is_tail) {
  if (spec.method.name != "full" || !spec.stack->defaults) return nullptr;
  return Residuals::builtin().find({.metric = std::string{metric},
                                    .is_tail = is_tail,
                                    .stack = spec.stack->name,
                                    .complete = spec.settings_stated,
                                    .is_queued = queued});
}

}  // namespace

bool is_queued(const ServeResult& result) { return result.queue.mean > 0.5 * result.ttft.mean; }

const ResidualClass* residual_of(const ServeSpec& spec, const ServeResult& result,
                                 std::string_view metric, bool is_tail) {
  return residual_of(spec, is_queued(result), metric, is_tail);
}

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
  if (const ResidualClass* measured = residual_of(spec, false, "tpot", false)) {
    return TimeEnds{.faster = std::min(1.0, measured->low),
                    .slower = std::max(1.0, measured->high),
                    .basis = fmt::format(
                        "90 % of measured services' values are {:.2f} to {:.2f} times the "
                        "predicted: {}, {} documents (validate served)",
                        measured->low, measured->high, measured->key.words(), measured->documents)};
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
  widen_to_residuals(out, spec, result);
  return out;
}

}  // namespace kvsim
