#pragma once

// Inside of sim/plan: a service under its workload at other rates, as a plan counts it.

#include <map>
#include <optional>
#include <string>

#include "models/gpu/gpu.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/plan_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// One run. Times are the worse end of their intervals.
struct ServeProbe {
  /// How much of its bounds the least request of the attained share takes, most of all bounds:
  /// possible at 1 and below. Infinite where fewer requests than that share are served.
  double need = 0;
  std::string constraint;  // of what is above 1: "weights", "kv_capacity", "ttft", "tpot", "e2e"
  std::string text;
  double offered = 0;       // requests a second
  double output_tok_s = 0;  // over the makespan
  ServiceTimes times;
};

/// A machine that is slower by a factor serves a workload as one that is not serves it with all
/// arrivals and pauses that much closer, its times then multiplied: that is how the worse end of
/// times counts, waiting in queues included. Memory counts by gpu_at.
class ServeCase {
 public:
  /// Runs the workload once as it is, for what the start takes and how sure times are. Errors: as
  /// run_serve; InputError without bounds, or where the rate of the workload cannot be scaled.
  /// `time_factor`: stands in for that of the workload's mean iteration.
  ServeCase(ServeSpec spec, double confidence, double attainment,
            std::optional<double> time_factor = std::nullopt);
  ServeCase(const ServeCase&) = delete;
  ServeCase& operator=(const ServeCase&) = delete;

  [[nodiscard]] const ServeSpec& spec() const { return spec_; }
  [[nodiscard]] const WorseEnd& memory_end() const { return memory_; }
  [[nodiscard]] const WorseEnd& time_end() const { return time_; }
  /// Requests a second at `scale` times the workload's rate.
  [[nodiscard]] double offered(double scale) const { return rate_ * scale; }
  /// The run at that rate; each is made once.
  [[nodiscard]] const ServeProbe& at(double scale);

 private:
  [[nodiscard]] ServeProbe run(double scale) const;

  ServeSpec spec_;  // as asked for
  Gpu gpu_;         // with the memory at the confidence
  double attainment_;
  double rate_ = 0;
  WorseEnd memory_, time_;
  std::map<double, ServeProbe> known_;
};

}  // namespace kvsim
