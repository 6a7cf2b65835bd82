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
  TimeFactors factors{};           // what if times were so much longer?
  /// Says of a service that does not start on how many GPUs it would.
  bool suggests_gpus = true;
  /// Ends the run as soon as it is sure that a smaller share of all requests keeps the spec's
  /// bounds: the result's `stopped_early` then says so, and what was not served is unfinished.
  std::optional<double> attained{};
};

/// The settings of a service's engines and the origin of each value; null for a stack without
/// engine options. Errors: as with_options.
[[nodiscard]] std::shared_ptr<const EngineSettings> engine_settings(const ServeSpec& spec);

/// Serves the whole workload, event by event. Pure: the same spec gives the same result, byte for
/// byte. A request or a model that does not fit is a result, not an error. Errors: InputError if
/// the parts do not match (a scheduler that the stack cannot run, a method without a known size).
[[nodiscard]] ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options = {});

/// What iterations of a service's engines take at least, whatever else they do. Bounds for
/// searches.
struct MinTimes {
  /// An iteration in which sequences decode, by their number: `interval` for any from the `max` of
  /// the entry before to this one's. Rising.
  struct Decodes {
    std::int64_t max = 0;
    Seconds interval{};
  };
  /// An iteration that computes tokens of prompts, by their number, likewise.
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
  std::int64_t sequences = 1;  // most that decode together
  std::int32_t stages = 1;
  FrontEndTimes front_end{};
};

/// A service that is run many times: what its iterations cost and how caches grow is worked out
/// once. Each run gives what run_serve gives. Not for several threads at once.
class PreparedService {
 public:
  /// Errors: as run_serve.
  explicit PreparedService(ServeSpec spec);
  PreparedService(const PreparedService&) = delete;
  PreparedService& operator=(const PreparedService&) = delete;
  ~PreparedService();

  [[nodiscard]] const ServeSpec& spec() const;
  /// Of an engine with a paged cache, as it starts.
  [[nodiscard]] const std::optional<EngineStartup>& startup() const;
  /// Of engines that decode, for sequences of at least `context` tokens of which at most `max` run
  /// at the same time. nullopt: engines without continuous batching, and those that do not start.
  [[nodiscard]] std::optional<MinTimes> min_times(std::int64_t context, std::int64_t max);
  /// `requests`: those of the spec, which may come at other times. `copies`: all replicas that the
  /// spec has are there so many times, behind one door.
  [[nodiscard]] ServeResult run(std::shared_ptr<const RequestTrace> requests,
                                std::int32_t copies = 1, const ServeOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsim
