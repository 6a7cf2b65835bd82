#include "sim/serve/account/serve_intervals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <boost/math/special_functions/erf.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/dtype.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/engine/slo_watch.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {
namespace {

constexpr double kLowShare = 0.05, kHighShare = 0.95;
constexpr std::array kPercentiles{&Distribution::p50, &Distribution::p90, &Distribution::p95,
                                  &Distribution::p99};

/// Returns "TTFT" for a time of requests whose key begins with it.
std::string latency_name(const MetricInfo& info) {
  std::string name;
  for (const char c : info.key.substr(0, info.key.find('_'))) {
    name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

/// Class of a metric: a time of requests has the class of its key's name (TTFT), otherwise that of
/// TTFT (a queue); rates and whole runs have their own classes; all others have that of step times.
struct ClassName {
  std::string middle, tail;
};
ClassName class_of(const MetricInfo& info, const ServeResiduals& residuals) {
  if (info.kind == MetricKind::kRate) return {"throughput", "throughput"};
  if (info.kind == MetricKind::kTime) return {"duration", "duration"};
  if (info.kind != MetricKind::kLatency) return {"TPOT", "TPOT"};
  std::string name = latency_name(info);
  if (residuals.find(name) == nullptr) name = "TTFT";
  return {name, name + " tail"};
}

using Drawn = std::array<double, kServeDraws>;

/// Returns the ends of one number with the response `moves`, by the errors of a class.
std::pair<double, double> class_ends(const ResidualClass& of, double value, const Response& moves,
                                     const Drawn& drawn) {
  // A class of times applied to a number that falls as times grow.
  const bool is_time = of.metric != "throughput";
  if (!is_time || drawn.back() >= drawn.front()) return residual_ends(of, value, moves);
  const double slower = std::max(0.0, of.quantile(kHighShare));
  const double faster = std::min(0.0, of.quantile(kLowShare));
  return {value * std::exp(moves.change(-slower, of.floor)),
          value * std::exp(moves.change(-faster, of.floor))};
}

/// Returns the ends of one number from its values at the draws.
std::pair<double, double> number_ends(const ServeResiduals& residuals, std::string_view name,
                                      double value, const Drawn& drawn) {
  const auto [min, max] = std::minmax_element(drawn.begin(), drawn.end());
  const std::pair all{std::min(value, *min), std::max(value, *max)};
  const std::optional<Response> moves = response(value, drawn);
  const ResidualClass* of = residuals.find(name);
  if (!moves || of == nullptr) return all;
  auto [low, high] = class_ends(*of, value, *moves, drawn);
  if (const ResidualClass* full = residuals.find_full(name)) {
    const auto ends = class_ends(*full, value, *moves, drawn);
    low = std::min(low, ends.first);
    high = std::max(high, ends.second);
  }
  return {low, high};
}

std::vector<MetricValue> varying_metrics(const ServeResult& result) {
  std::vector<MetricValue> out;
  for (const Metric<ServeResult>& metric : service_metrics()) {
    out.push_back(metric.info.varies_with_times ? metric.value(result) : MetricValue{});
  }
  return out;
}

double number_of(const MetricValue& value, double Distribution::*part) {
  if (const Distribution* of = value.distribution()) return of->*part;
  return value.number().value_or(std::numeric_limits<double>::quiet_NaN());
}

void put_ends(ServeIntervals& out, std::size_t at, const MetricInfo& info,
              const ServeResiduals& residuals,
              const std::array<std::vector<MetricValue>, kServeDraws>& drawn) {
  const MetricValue value = out.low[at];
  const ClassName names = class_of(info, residuals);
  const auto ends = [&](std::string_view name, double Distribution::*part) {
    const double here = number_of(value, part);
    Drawn values{};
    for (std::size_t i = 0; i < kServeDraws; ++i) {
      values[i] = number_of(drawn[i][at], part);
      if (std::isnan(values[i])) values[i] = here;  // nothing was served in time
    }
    const bool is_attained = info.kind == MetricKind::kAttained;
    auto of = number_ends(residuals, is_attained ? "" : name, here, values);
    if (info.kind == MetricKind::kShare) of.second = std::min(of.second, std::max(1.0, here));
    return of;
  };
  if (const Distribution* times = value.distribution()) {
    Distribution low = *times, high = *times;
    std::tie(low.mean, high.mean) = ends(names.middle, &Distribution::mean);
    for (double Distribution::*part : kPercentiles) {
      std::tie(low.*part, high.*part) =
          ends(part == &Distribution::p50 ? names.middle : names.tail, part);
    }
    // The classes differ, but percentiles of a run must be in order.
    for (std::size_t i = 1; i < kPercentiles.size(); ++i) {
      high.*kPercentiles[i] = std::max(high.*kPercentiles[i], high.*kPercentiles[i - 1]);
      const std::size_t below = kPercentiles.size() - 1 - i;
      low.*kPercentiles[below] = std::min(low.*kPercentiles[below], low.*kPercentiles[below + 1]);
    }
    out.low[at] = low;
    out.high[at] = high;
  } else if (value.number()) {
    const auto [low, high] = ends(names.middle, &Distribution::mean);
    out.low[at] = low;
    out.high[at] = high;
  }
}

/// A first token is not later than the last one, and decoding is a part of a request's time. The
/// interval of E2E therefore bounds TTFT and TPOT, whose classes may come from fewer documents.
void bound_by_e2e(ServeIntervals& out, const ServeResult& result) {
  const auto of = [&](std::string_view name) -> MetricValue& {
    const MetricTable<ServeResult> metrics = service_metrics();
    const auto is_it = [&](const Metric<ServeResult>& metric) {
      return metric.info.kind == MetricKind::kLatency && latency_name(metric.info) == name;
    };
    const auto at = std::find_if(metrics.begin(), metrics.end(), is_it);
    KVSIM_CHECK(at != metrics.end(), "no time of services is called {}", name);
    return out.high[static_cast<std::size_t>(at - metrics.begin())];
  };
  const Distribution* e2e = of("E2E").distribution();
  MetricValue& first = of("TTFT");
  MetricValue& each = of("TPOT");
  if (e2e == nullptr || first.distribution() == nullptr) return;
  Distribution ttft = *first.distribution();
  ttft.mean = std::min(ttft.mean, e2e->mean);
  for (double Distribution::*part : kPercentiles) ttft.*part = std::min(ttft.*part, e2e->*part);
  first = ttft;
  const double decoding = result.e2e.mean - result.ttft.mean;
  if (each.distribution() == nullptr || decoding <= 0) return;
  // The factor is the same for all requests, whose outputs differ in length: it does not bound
  // single requests.
  Distribution tpot = *each.distribution();
  const Distribution max = result.tpot.times(e2e->mean / decoding);
  tpot.mean = std::min(tpot.mean, max.mean);
  tpot.p50 = std::min(tpot.p50, max.p50);
  each = tpot;
}

}  // namespace

ServeResiduals::ServeResiduals(const ServeSpec& spec, const ServeResult& result,
                               const std::optional<MeanIteration>& iteration) {
  if (!iteration || !iteration->step.interval || iteration->step.time <= Seconds{}) return;
  known_ = true;
  path_ = residual_path(spec, result, iteration);
  if (!spec.calibrated && (spec.method.name != "full" || !spec.stack->defaults)) {
    // No service of this kind was measured, only runs with a fixed batch.
    is_static_ = true;
    if (spec.stack->defaults) full_path_ = path_;
    path_ = static_residual_path(*spec.stack, spec.method.name,
                                 bits_of(spec.kv_dtype) < bits_of(Dtype::kFp16));
    model_ = std::shared_ptr<const ResidualModel>{std::shared_ptr<void>{},
                                                  &ResidualModel::static_runs()};
    return;
  }
  const ResidualModel& all = ResidualModel::services();
  if (!spec.calibrated) {
    model_ = std::shared_ptr<const ResidualModel>{std::shared_ptr<void>{}, &all};
    return;
  }
  runs_ = spec.calibrated->runs;
  std::vector<ResidualClass> own;
  for (const ResidualClass& c : all.classes()) {
    if (!c.path.empty()) continue;
    const ResidualClass& before = *all.find(c.metric, path_);
    own.push_back(
        calibrated_class(before, error_of(*spec.calibrated, c.metric), spec.calibrated->runs));
  }
  model_ = std::make_shared<const ResidualModel>(std::move(own));
}

double error_of(const ServiceCalibration& calibration, std::string_view metric) {
  if (metric.starts_with("TTFT")) return calibration.ttft_error;
  if (metric.starts_with("E2E")) return calibration.e2e_error;
  if (metric == "throughput" || metric == "duration") return calibration.throughput_error;
  return calibration.tpot_error;
}

ResidualClass calibrated_class(const ResidualClass& before, double error, std::int64_t runs) {
  // A metric that is missing in the benchmark keeps its class.
  constexpr double kDeviates = 3.28970725390294;  // of a normal distribution from 5 % to 95 %
  constexpr double kRounding = 1e-3;
  if (error >= (1 - kRounding) * (before.quantile(0.95) - before.quantile(0.05)) / kDeviates) {
    return before;
  }
  ResidualClass out = before;
  out.path.clear();
  out.documents = runs;
  out.rows = runs;
  for (std::size_t i = 0; i < kResidualShares.size(); ++i) {
    const double deviate = boost::math::erf_inv(2 * kResidualShares[i] - 1) * std::sqrt(2.0);
    out.quantiles[i] = error * deviate;
  }
  return out;
}

const ResidualClass* ServeResiduals::find(std::string_view metric) const {
  if (!known_) return nullptr;
  if (is_static_)
    metric = residual_metric(metric.starts_with("TTFT") ? RunPhase::kPrefill : RunPhase::kDecode);
  return model_->find(metric, path_);
}

const ResidualClass* ServeResiduals::find_full(std::string_view metric) const {
  return full_path_.empty() ? nullptr : ResidualModel::services().find(metric, full_path_);
}

ServeResiduals::Ends ServeResiduals::ends(double share) const {
  Ends out;
  const ResidualClass* decode = find("TPOT");
  const ResidualClass* prompt = find("TTFT");
  if (share <= 0 || decode == nullptr || prompt == nullptr) return out;
  const auto at = [&](double end) {
    const bool low = end < 0.5;
    const auto one = [&](const ResidualClass& of, const ResidualClass* full) {
      const double factor = of.factor(end);
      const double other = full != nullptr ? full->factor(end) : 1;
      return low ? std::min({1.0, factor, other}) : std::max({1.0, factor, other});
    };
    const ResidualClass* full = find_full("TPOT");
    const double iteration = one(*decode, full);
    const double prompts = is_static_ ? one(*prompt, full) : iteration;
    const double first_token = one(*prompt, find_full("TTFT")) / prompts;
    return ServeTimesEnd{
        .run = {.decode = iteration, .prefill = prompts, .front_end = prompts},
        .first_token = low ? std::min(1.0, first_token) : std::max(1.0, first_token)};
  };
  return {.faster = at(0.5 * (1 - share)), .slower = at(0.5 * (1 + share))};
}

std::string ServeResiduals::basis() const {
  if (runs_ > 0) {
    return fmt::format(
        "errors remaining after calibration with {} load point{} of a benchmark of this service",
        runs_, runs_ == 1 ? "" : "s");
  }
  std::vector<std::string> parts;
  const std::string_view feature = apart_feature(path_);
  std::vector<std::string_view> without;  // metrics without a document that has the feature
  for (const char* metric : {"TTFT", "TPOT", "throughput"}) {
    const ResidualClass* of = find(metric);
    if (of == nullptr) continue;
    parts.push_back(of->words());
    if (std::find(of->path.begin(), of->path.end(), feature) == of->path.end()) {
      without.emplace_back(metric);
    }
  }
  if (is_static_) parts.resize(2);
  return fmt::format("errors of measured {}: {}{}{}", is_static_ ? "static runs" : "services",
                     fmt::join(parts, "; "),
                     full_path_.empty() ? "" : "; at least those of services without a method",
                     feature.empty() || without.empty()
                         ? ""
                         : fmt::format("; those of {} without {}, which this service has",
                                       fmt::join(without, " and "), feature));
}

MetricEnds ServeIntervals::ends(std::string_view key) const {
  const auto* metric = find_metric(service_metrics(), key);
  KVSIM_CHECK(metric != nullptr, "no metric of services is called {}", key);
  const auto at = static_cast<std::size_t>(metric - service_metrics().data());
  return {low.at(at), high.at(at)};
}

double slo_need(const ServeSpec& spec, const ServeResult& result, double share) {
  std::vector<double> needs;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    const std::array<double, 3> shares = slo_shares(spec.slo, r);
    needs.push_back(*std::max_element(shares.begin(), shares.end()));
  }
  const std::size_t rank = requests_of_share(share, result.outcomes.size());
  if (rank > needs.size()) return std::numeric_limits<double>::infinity();
  const auto at = needs.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::nth_element(needs.begin(), at, needs.end());
  return *at;
}

double slo_probability(const ServeResiduals& residuals, double need,
                       std::span<const double, kServeDraws> drawn) {
  const ResidualClass* of = residuals.find("E2E tail");
  const std::optional<Response> moves = response(need, drawn);
  if (of == nullptr || !moves) return need <= 1 ? 1 : 0;
  return of->share_below(moves->error(-std::log(need), of->floor));
}

std::optional<ServeIntervals> serve_intervals(const ServeSpec& spec, const ServeResult& result,
                                              const std::optional<MeanIteration>& iteration,
                                              int threads) {
  const ServeResiduals residuals{spec, result, iteration};
  if (!residuals.known()) return std::nullopt;
  ServeIntervals out;
  out.faster = residuals.ends().faster;
  out.slower = residuals.ends().slower;
  out.basis = residuals.basis();
  out.low = out.high = varying_metrics(result);
  std::array<std::vector<MetricValue>, kServeDraws> drawn;
  Drawn needs{};
  parallel_for(kServeDraws, threads, [&](std::size_t i) {
    const ServeResult other =
        run_serve(spec, {.max_samples = 2, .keep_gaps = false, .factors = serve_draws()[i]});
    drawn[i] = varying_metrics(other);
    needs[i] = slo_need(spec, other, kSloShare);
  });
  std::size_t at = 0;
  for (const Metric<ServeResult>& metric : service_metrics()) {
    put_ends(out, at++, metric.info, residuals, drawn);
  }
  bound_by_e2e(out, result);
  if (!spec.slo.empty()) {
    out.slo_probability = slo_probability(residuals, slo_need(spec, result, kSloShare), needs);
  }
  return out;
}

}  // namespace kvsim
