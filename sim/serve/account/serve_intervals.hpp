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
  double first_token = 1;  // times the TTFT of a run with those factors

  /// The bounds that requests of that run have to keep.
  [[nodiscard]] SloSpec bounds(SloSpec slo) const {
    if (slo.ttft) slo.ttft = *slo.ttft * (1 / first_token);
    return slo;
  }
  friend bool operator==(const ServeTimesEnd&, const ServeTimesEnd&) = default;
};

/// The errors of a service's metrics in runs like this one.
class ServeResiduals {
 public:
  /// Of a calibrated service (ServeSpec::calibrated) the classes are those of its benchmark.
  ServeResiduals(const ServeSpec& spec, const ServeResult& result,
                 const std::optional<MeanIteration>& iteration);

  /// False if no error of times is known: a stack that is a bound, a calibration without kernels,
  /// an engine without a mean iteration.
  [[nodiscard]] bool known() const { return known_; }
  /// `metric`: of ResidualClass, for instance "TPOT". Never null if known.
  [[nodiscard]] const ResidualClass* find(std::string_view metric) const;
  /// Of a service with a method on an engine: the class it would have without. No service with a
  /// method was measured: its errors are at least as large. Null of others.
  [[nodiscard]] const ResidualClass* find_full(std::string_view metric) const;
  /// The 90 % interval of a run's times, or that of another share of cases: iterations and the
  /// front end have the factors of TPOT, and first tokens come after the time that TTFT's say. Of a
  /// class of static runs, iterations with prompt tokens have the factors of times of prompts. At a
  /// share of 0 both ends are the prediction.
  struct Ends {
    ServeTimesEnd faster, slower;
  };
  [[nodiscard]] Ends ends(double share = 0.9) const;
  /// The classes of TTFT, TPOT and throughput, in words.
  [[nodiscard]] std::string basis() const;

 private:
  bool known_ = false;
  bool is_static_ = false;  // classes of static runs
  std::int64_t runs_ = 0;   // of the benchmark that calibrated the service
  std::shared_ptr<const ResidualModel> model_;
  std::vector<std::string> path_, full_path_;
};

/// A class of errors whose logarithms are normal with the standard deviation `error`.
[[nodiscard]] ResidualClass calibrated_class(const ResidualClass& before, double error,
                                             std::int64_t runs);
[[nodiscard]] double error_of(const ServiceCalibration& calibration, std::string_view metric);

/// The range of a service's metrics in 90 % of cases. It is simulated again at serve_draws. A
/// metric of a residual class is where the errors of its class move it, by the response that the
/// draws show; others that depend on times have the class of step times. The share of requests
/// within their bounds is between its least and its largest of all runs.
struct ServeIntervals {
  /// One per service metric; null of those that do not vary with times.
  std::vector<MetricValue> low, high;
  ServeTimesEnd faster, slower;  // ServeResiduals::ends
  /// That the share `slo_share` of requests keeps all bounds; nullopt without bounds.
  std::optional<double> slo_probability;
  std::string basis;

  /// Errors: ContractError if no service metric has that key.
  [[nodiscard]] MetricEnds ends(std::string_view key) const;
};
/// The share of requests that has to keep all bounds for a service to be within them, unless a plan
/// says otherwise.
inline constexpr double kSloShare = 0.9;

/// nullopt where no error of times is known. The service's other runs go on up to `threads` threads
/// (0: the machine's).
[[nodiscard]] std::optional<ServeIntervals> serve_intervals(
    const ServeSpec& spec, const ServeResult& result, const std::optional<MeanIteration>& iteration,
    int threads = 1);

/// The least share of its bounds that `share` of all requests stay within: at most 1 where the
/// bounds are kept; infinite where fewer requests complete.
[[nodiscard]] double slo_need(const ServeSpec& spec, const ServeResult& result, double share);
/// The probability that `share` of requests keeps the bounds, from slo_need of the prediction and
/// at serve_draws.
[[nodiscard]] double slo_probability(const ServeResiduals& residuals, double need,
                                     std::span<const double, kServeDraws> drawn);

}  // namespace kvsim
