#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/residuals/residuals.hpp"
#include "sim/metrics/metric.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/serve_draws.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

/// A service's times at one end of their intervals.
struct ServeTimesEnd {
  TimeFactors run;         // of its iterations and its front end
  double first_token = 1;  // multiplies the TTFT of a run with those factors

  /// Returns the bounds that requests of that run must meet.
  [[nodiscard]] SloSpec bounds(SloSpec slo) const {
    if (slo.ttft) slo.ttft = *slo.ttft * (1 / first_token);
    return slo;
  }
  friend bool operator==(const ServeTimesEnd&, const ServeTimesEnd&) = default;
};

/// The errors of a service's metrics in runs like this one.
class ServeResiduals {
 public:
  /// For a calibrated service (ServeSpec::calibrated), the classes are those of its benchmark.
  ServeResiduals(const ServeSpec& spec, const ServeResult& result,
                 const std::optional<MeanIteration>& iteration);

  /// False if no error of times is known: a stack that is a bound, a calibration without kernels,
  /// an engine without a mean iteration.
  [[nodiscard]] bool known() const { return known_; }
  /// `metric`: a metric of ResidualClass, for instance "TPOT". Never null if known().
  [[nodiscard]] const ResidualClass* find(std::string_view metric) const;
  /// For a service with a method on an engine: the class without the method. No service with a
  /// method was measured; its errors are at least that large. Null for other services.
  [[nodiscard]] const ResidualClass* find_full(std::string_view metric) const;
  /// Returns the interval of a run's times that covers `share` of cases. Iterations and the front
  /// end have the factors of TPOT; first tokens additionally have those of TTFT. For classes of
  /// static runs, iterations with prompt tokens have the factors of prompt times. At a share of 0,
  /// both ends are the prediction.
  struct Ends {
    ServeTimesEnd faster, slower;
  };
  [[nodiscard]] Ends ends(double share = 0.9) const;
  /// Describes the classes of TTFT, TPOT and throughput.
  [[nodiscard]] std::string basis() const;

 private:
  bool known_ = false;
  bool is_static_ = false;  // classes of static runs
  std::int64_t runs_ = 0;   // of the benchmark that calibrated the service
  std::shared_ptr<const ResidualModel> model_;
  std::vector<std::string> path_, full_path_;
};

/// Returns a class of errors whose logarithms are normally distributed with standard deviation
/// `error`.
[[nodiscard]] ResidualClass calibrated_class(const ResidualClass& before, double error,
                                             std::int64_t runs);
[[nodiscard]] double error_of(const ServiceCalibration& calibration, std::string_view metric);

/// 90 % intervals of a service's metrics. The service is simulated again at serve_draws. The ends
/// of a metric with a residual class follow from the errors of its class and the response at the
/// draws. Other metrics that depend on times use the class of step times. The share of requests
/// within their bounds ranges from its smallest to its largest value of all runs.
struct ServeIntervals {
  /// One per service metric; null for metrics that do not vary with times.
  std::vector<MetricValue> low, high;
  ServeTimesEnd faster, slower;  // ServeResiduals::ends
  /// Probability that the share `slo_share` of requests meets all bounds; nullopt without bounds.
  std::optional<double> slo_probability;
  std::string basis;

  /// Errors: ContractError if no service metric has that key.
  [[nodiscard]] MetricEnds ends(std::string_view key) const;
};
/// Default share of requests that must meet all bounds; a plan may override it.
inline constexpr double kSloShare = 0.9;

/// Returns nullopt if no error of times is known. The service's other runs use up to `threads`
/// threads (0: as many as the machine has).
[[nodiscard]] std::optional<ServeIntervals> serve_intervals(
    const ServeSpec& spec, const ServeResult& result, const std::optional<MeanIteration>& iteration,
    int threads = 1);

/// Returns the smallest multiple of the bounds that `share` of all requests stay within: at most 1
/// if the bounds are met, infinite if fewer requests complete.
[[nodiscard]] double slo_need(const ServeSpec& spec, const ServeResult& result, double share);
/// Returns the probability that the required share of requests meets the bounds, from slo_need of
/// the prediction and at serve_draws.
[[nodiscard]] double slo_probability(const ServeResiduals& residuals, double need,
                                     std::span<const double, kServeDraws> drawn);

}  // namespace kvsim
