#include "sim/serve/account/serve_intervals.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {
namespace {

using Choose = const double& (*)(const double&, const double&);
constexpr Choose kLower = std::min<double>, kHigher = std::max<double>;

/// The lesser (or the larger) of each number; of one that only one run has, that one.
MetricValue chosen(const MetricValue& a, const MetricValue& b, Choose choose) {
  if (a.distribution() != nullptr && b.distribution() != nullptr) {
    Distribution out = *a.distribution();
    for (double Distribution::*member :
         {&Distribution::mean, &Distribution::p50, &Distribution::p90, &Distribution::p95,
          &Distribution::p99}) {
      out.*member = choose(out.*member, b.distribution()->*member);
    }
    return out;
  }
  if (a.number() && b.number()) return choose(*a.number(), *b.number());
  return b.distribution() != nullptr ? b : a;
}

std::vector<MetricValue> varying_metrics(const ServeResult& result) {
  std::vector<MetricValue> out;
  for (const Metric<ServeResult>& metric : service_metrics()) {
    out.push_back(metric.info.varies_with_times ? metric.value(result) : MetricValue{});
  }
  return out;
}

/// The residual model's name of a metric: of latencies the key without its unit, of rates
/// "throughput"; empty: none.
std::string_view residual_name(const MetricInfo& info) {
  if (!info.varies_with_times) return {};
  if (info.kind == MetricKind::kRate) return "throughput";
  constexpr std::string_view kSeconds = "_s";
  const std::string_view key = info.key;
  if (info.kind != MetricKind::kLatency || !key.ends_with(kSeconds)) return {};
  return key.substr(0, key.size() - kSeconds.size());
}

/// `value` times an end of its class.
MetricValue scaled(const MetricValue& value, double factor) {
  if (const Distribution* of = value.distribution()) {
    Distribution out = *of;
    for (double* part : {&out.mean, &out.p50, &out.p90, &out.p95, &out.p99}) *part *= factor;
    return out;
  }
  if (const auto number = value.number()) return *number * factor;
  return value;
}

void widen_to_residuals(ServeIntervals& out, const ServeSpec& spec, const ServeResult& result) {
  std::size_t at = 0;
  for (const Metric<ServeResult>& metric : service_metrics()) {
    const std::size_t i = at++;
    const std::string_view name = residual_name(metric.info);
    if (name.empty()) continue;
    const ResidualClass* of = residual_of(spec, result, name);
    if (of == nullptr) continue;
    const MetricValue value = metric.value(result);
    out.low[i] = chosen(out.low[i], scaled(value, of->low), kLower);
    out.high[i] = chosen(out.high[i], scaled(value, of->high), kHigher);
  }
}

}  // namespace

bool is_queued(const ServeResult& result) { return result.queue.mean > 0.5 * result.ttft.mean; }

const ResidualClass* residual_of(const ServeSpec& spec, const ServeResult& result,
                                 std::string_view metric) {
  if (spec.method.name != "full" || !spec.stack->defaults) return nullptr;
  return ServiceResiduals::builtin().find({.metric = std::string{metric},
                                           .stack = spec.stack->name,
                                           .complete = spec.settings_stated,
                                           .is_queued = is_queued(result)});
}

MetricEnds ServeIntervals::ends(std::string_view key) const {
  const auto* metric = find_metric(service_metrics(), key);
  KVSIM_CHECK(metric != nullptr, "no metric of services is called {}", key);
  const auto at = static_cast<std::size_t>(metric - service_metrics().data());
  return {low.at(at), high.at(at)};
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
  out.low = out.high = varying_metrics(result);
  const std::array factors{out.faster, out.slower};
  std::array<std::vector<MetricValue>, 2> others;
  parallel_for(factors.size(), threads, [&](std::size_t i) {
    others[i] = varying_metrics(
        run_serve(spec, {.max_samples = 2, .keep_gaps = false, .time_scale = factors[i]}));
  });
  for (const std::vector<MetricValue>& other : others) {
    for (std::size_t i = 0; i < other.size(); ++i) {
      out.low[i] = chosen(out.low[i], other[i], kLower);
      out.high[i] = chosen(out.high[i], other[i], kHigher);
    }
  }
  widen_to_residuals(out, spec, result);
  for (const char* metric : {"ttft", "throughput"}) {
    const ResidualClass* of = residual_of(spec, result, metric);
    if (of == nullptr) continue;
    out.basis +=
        fmt::format("; {}: also x{:.2f} to x{:.2f}, errors of measured services, {} documents",
                    of->key.words(), of->low, of->high, of->documents);
  }
  return out;
}

}  // namespace kvsim
