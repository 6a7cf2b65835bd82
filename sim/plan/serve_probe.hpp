#pragma once

// Inside of sim/plan: a service under its workload at other rates, as a plan counts it.

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

/// One run. Times are the worse end of their intervals.
struct ServeProbe {
  /// The attained share of requests keeps all bounds.
  bool holds = false;
  /// How much of its bounds the least request of the attained share takes, most of all bounds: at
  /// most 1 where it holds. Infinite where fewer requests than that share are served.
  double need = 0;
  std::string constraint;  // of what does not hold: "weights", "kv_capacity", "ttft", "tpot", "e2e"
  std::string text;
  double offered = 0;       // requests a second, to all replicas
  double output_tok_s = 0;  // of all replicas, over the makespan
  double gpus = 1;          // of all replicas
  ServiceTimes times;
  std::vector<BoundShare> bounds;  // where it holds
};

/// How a service is probed.
struct ServeLoad {
  double scale = 1;         // times the workload's rate
  std::int32_t copies = 1;  // of the service, behind one door

  friend auto operator<=>(const ServeLoad&, const ServeLoad&) = default;
};

/// What a service shows when it runs its workload once as it is.
struct ServeStart {
  std::optional<EngineStartup> startup;
  Bytes activations{};  // of static batches, at the service's peak
  std::int64_t gpus = 1;
  std::optional<ServeResiduals> times;  // nullopt: `no_times` says why
  std::string no_times;
  /// What the groups of the cache say: the highest max_num_seqs, why no prefix was found.
  std::vector<std::string> cache_notes;
};
/// Errors: as run_serve.
[[nodiscard]] ServeStart start_of(const ServeSpec& spec);
/// The same without the run, of a stack with a paged cache: `times` are not known.
[[nodiscard]] ServeStart startup_of(const ServeSpec& spec);

/// A machine at one end of the intervals: what memory and times are multiplied with.
struct ServeMachine {
  std::optional<EngineStartup> startup;  // on the GPU as it is
  Bytes safety_margin{};                 // of static batches: of the GPU's memory
  std::int64_t gpus = 1;
  MemoryMargin memory;
  ConservativeBound time;  // of decoding
  ServeTimesEnd times;
  double confidence = 0;
};
/// At the worse end of a confidence; at 0 as predicted.
[[nodiscard]] ServeMachine worse_machine(const ServeSpec& spec, const ServeStart& start,
                                         double confidence);
/// At the better end.
[[nodiscard]] ServeMachine better_machine(const ServeSpec& spec, const ServeStart& start,
                                          double confidence);

/// The service on a machine that is as slow and as short of memory as the confidence says: every
/// iteration takes so much longer, and the start leaves a smaller pool.
class ServeCase {
 public:
  /// Runs the workload once as it is, for the memory of the start and the uncertainty of times.
  /// Errors: as run_serve; InputError without bounds, or if the rate of the workload cannot be
  /// scaled. `times`: replace those of the confidence.
  ServeCase(ServeSpec spec, double confidence, double attainment,
            std::optional<ServeTimesEnd> times = std::nullopt);
  ServeCase(ServeSpec spec, ServeMachine machine, double attainment);
  ServeCase(const ServeCase&) = delete;
  ServeCase& operator=(const ServeCase&) = delete;

  [[nodiscard]] const ServeSpec& spec() const { return spec_; }
  [[nodiscard]] const MemoryMargin& memory_end() const { return machine_.memory; }
  [[nodiscard]] const ConservativeBound& time_end() const { return machine_.time; }
  [[nodiscard]] const ServeTimesEnd& times() const { return machine_.times; }
  /// Requests a second at `scale` times the workload's rate.
  [[nodiscard]] double offered(double scale) const { return rate_ * scale; }
  /// GPUs of the service as the spec has it.
  [[nodiscard]] std::int64_t gpus() const { return machine_.gpus; }
  /// Whether the bounds are kept: a run ends as soon as it is sure that they are not.
  [[nodiscard]] bool holds(const ServeLoad& load);
  /// See PreparedService.
  [[nodiscard]] std::optional<MinTimes> min_times(std::int64_t context, std::int64_t max);
  /// How likely the bounds are kept, if memory is as on this machine and times are as predicted
  /// within `residuals`. Runs the load again at serve_draws.
  [[nodiscard]] double probability(const ServeLoad& load, const ServeResiduals& residuals);
  /// The whole run; each is made once.
  [[nodiscard]] const ServeProbe& at(const ServeLoad& load);

 private:
  /// The start of a run, with the GPU's own memory and every term at the machine's end.
  [[nodiscard]] EngineStartup own_start(const EngineStartup& run) const;
  /// nullopt: it gave up.
  [[nodiscard]] std::optional<ServeProbe> run(const ServeLoad& load, bool gives_up);

  ServeSpec spec_;  // as requested
  SloSpec bounds_;  // that a run has to keep: ServeTimesEnd::bounds
  ServeMachine machine_;
  Gpu gpu_;  // with the memory at the confidence
  std::optional<PreparedService> service_;
  double attainment_;
  double rate_ = 0;
  std::map<ServeLoad, std::optional<ServeProbe>> known_;  // nullopt: it is known to fail, no more
};

}  // namespace kvsim
