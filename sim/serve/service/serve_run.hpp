#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

struct ServeOptions {
  std::size_t max_samples = 2048;  // of a replica's timeline
  bool keep_gaps = true;           // iteration ends and token spans
  TimeFactors factors{};           // deviations from the predicted times
  /// Reports the number of GPUs on which a service that does not start would start.
  bool suggests_gpus = true;
  /// Ends the run once it is certain that fewer than this share of all requests meet the spec's
  /// bounds. The result then has `stopped_early` set, and requests not yet served are unfinished.
  std::optional<double> attained{};
};

/// The settings of a service's engines and the origin of each value; null for a stack without
/// engine options. Errors: as with_options.
[[nodiscard]] std::shared_ptr<const EngineSettings> engine_settings(const ServeSpec& spec);

/// Simulates the whole workload, event by event. Pure: equal specs produce byte-identical results.
/// A request or a model that does not fit is a result, not an error. Errors: InputError if the
/// parts do not match (a scheduler that the stack cannot run, a method without a known size).
[[nodiscard]] ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options = {});

/// Lower bounds of the times of a service's iterations, for searches.
struct MinTimes {
  /// Iterations with decoding sequences, by their number: `interval` applies from the previous
  /// entry's `max` to this one's. Increasing.
  struct Decodes {
    std::int64_t max = 0;
    Seconds interval{};
  };
  /// Iterations that compute prompt tokens, by the number of tokens, likewise.
  struct Prompts {
    std::int64_t max = 0;
    Seconds interval{};  // of the slowest stage
    Seconds latency{};   // of all stages
  };
  std::vector<Decodes> decodes{};
  std::vector<Prompts> prompts{};
  Seconds token{};             // from one decode step of a sequence to its next
  Seconds interval{};          // from the end of any iteration to the end of the next
  double step_tokens = 1;      // most tokens that a decode step yields for a sequence
  std::int64_t sequences = 1;  // most sequences that decode together
  std::int32_t stages = 1;
  FrontEndTimes front_end{};
};

/// A service for many runs: iteration costs and cache growth are computed once. Each run returns
/// the same result as run_serve. Not thread-safe.
class PreparedService {
 public:
  /// Errors: as run_serve.
  explicit PreparedService(ServeSpec spec);
  PreparedService(const PreparedService&) = delete;
  PreparedService& operator=(const PreparedService&) = delete;
  ~PreparedService();

  [[nodiscard]] const ServeSpec& spec() const;
  /// Start-up of an engine with a paged cache.
  [[nodiscard]] const std::optional<EngineStartup>& startup() const;
  /// Returns the bounds of decoding engines for sequences of at least `context` tokens, of which at
  /// most `max` run simultaneously. nullopt for engines without continuous batching and for engines
  /// that do not start.
  [[nodiscard]] std::optional<MinTimes> min_times(std::int64_t context, std::int64_t max);
  /// `requests`: the spec's requests, possibly with other arrival times. `copies`: multiplies the
  /// spec's replicas, all behind one router.
  [[nodiscard]] ServeResult run(std::shared_ptr<const RequestTrace> requests,
                                std::int32_t copies = 1, const ServeOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
