#pragma once

// Internal to sim/plan: a service under its workload at other rates, as a plan evaluates it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/plan_result.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_spec.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {

/// One run. Times are at the worse end of their intervals.
struct ServeProbe {
  /// Whether the attained share of requests meets all bounds.
  bool holds = false;
  /// Share of its bounds that the slowest request within the attained share uses, the largest over
  /// all bounds: at most 1 if it holds. Infinite if fewer requests than that share are served.
  double need = 0;
  std::string constraint;  // first bound or memory that fails: "weights", "kv_capacity", "ttft",
                           // "tpot", "e2e"
  std::string text;
  double offered = 0;       // requests per second, to all replicas
  double output_tok_s = 0;  // of all replicas, over the makespan
  double gpus = 1;          // of all replicas
  ServiceTimes times;
  std::vector<BoundShare> bounds;  // if it holds
};

/// The load of a probe.
struct ServeLoad {
  double scale = 1;         // times the workload's rate
  std::int32_t copies = 1;  // of the service, behind one router

  friend auto operator<=>(const ServeLoad&, const ServeLoad&) = default;
};

/// Results of one run of a service's workload at its own rate.
struct ServeStart {
  std::optional<EngineStartup> startup;
  Bytes activations{};  // for static batches, at the service's peak
  std::int64_t gpus = 1;
  std::optional<ServeResiduals> times;  // nullopt: `no_times` contains the reason
  std::string no_times;
  /// Notes of the cache groups: the highest max_num_seqs, why no prefix was found.
  std::vector<std::string> cache_notes;
};
/// Errors: same as run_serve.
[[nodiscard]] ServeStart start_of(const ServeSpec& spec);
/// The same without the run, for a stack with a paged cache: `times` are unknown.
[[nodiscard]] ServeStart startup_of(const ServeSpec& spec);

/// A machine at one end of the intervals: the factors for memory and times.
struct ServeMachine {
  std::optional<EngineStartup> startup;  // on the unchanged GPU
  Bytes safety_margin{};                 // for static batches: bytes of the GPU's memory
  std::int64_t gpus = 1;
  MemoryMargin memory;
  ConservativeBound time;  // for decoding
  ServeTimesEnd times;
  double confidence = 0;
};
/// Returns the machine at the worse end for `confidence`; the prediction at 0.
[[nodiscard]] ServeMachine worse_machine(const ServeSpec& spec, const ServeStart& start,
                                         double confidence);
/// Returns the machine at the better end.
[[nodiscard]] ServeMachine better_machine(const ServeSpec& spec, const ServeStart& start,
                                          double confidence);

/// The service on a machine as slow and with as little memory as the confidence assumes: iterations
/// take longer, and the start leaves a smaller pool.
class ServeCase {
 public:
  /// Runs the workload once at its own rate to get the memory at the start and the uncertainty of
  /// times. `times` replaces those of the confidence. Errors: same as run_serve; InputError without
  /// bounds, or if the rate of the workload cannot be scaled.
  ServeCase(ServeSpec spec, double confidence, double attainment,
            std::optional<ServeTimesEnd> times = std::nullopt);
  ServeCase(ServeSpec spec, ServeMachine machine, double attainment);
  ServeCase(const ServeCase&) = delete;
  ServeCase& operator=(const ServeCase&) = delete;

  [[nodiscard]] const ServeSpec& spec() const { return spec_; }
  [[nodiscard]] const MemoryMargin& memory_end() const { return machine_.memory; }
  [[nodiscard]] const ConservativeBound& time_end() const { return machine_.time; }
  [[nodiscard]] const ServeTimesEnd& times() const { return machine_.times; }
  /// Requests per second at `scale` times the workload's rate.
  [[nodiscard]] double offered(double scale) const { return rate_ * scale; }
  /// GPUs of the service as specified.
  [[nodiscard]] std::int64_t gpus() const { return machine_.gpus; }
  /// Whether the bounds are met. A run ends as soon as they certainly are not.
  [[nodiscard]] bool holds(const ServeLoad& load);
  /// See PreparedService.
  [[nodiscard]] std::optional<MinTimes> min_times(std::int64_t context, std::int64_t max);
  /// Probability that the bounds are met with this machine's memory and times as predicted within
  /// `residuals`. Runs the load again at serve_draws.
  [[nodiscard]] double probability(const ServeLoad& load, const ServeResiduals& residuals);
  /// Returns the complete run; each load is run once.
  [[nodiscard]] const ServeProbe& at(const ServeLoad& load);

 private:
  /// Returns the start of a run with the GPU's own memory and every term at the machine's end.
  [[nodiscard]] EngineStartup own_start(const EngineStartup& run) const;
  /// Returns nullopt if the run gave up.
  [[nodiscard]] std::optional<ServeProbe> run(const ServeLoad& load, bool gives_up);

  ServeSpec spec_;  // as requested
  SloSpec bounds_;  // bounds that a run has to meet: ServeTimesEnd::bounds
  ServeMachine machine_;
  Gpu gpu_;  // with the memory at the confidence
  std::optional<PreparedService> service_;
  double attainment_;
  double rate_ = 0;
  std::map<ServeLoad, std::optional<ServeProbe>> known_;  // nullopt: only known to fail
};

}  // namespace kvsim
