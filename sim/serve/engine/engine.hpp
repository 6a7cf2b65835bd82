#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/serve/engine/front_end.hpp"
#include "sim/serve/engine/serve_state.hpp"
#include "sim/serve/engine/serve_timeline.hpp"
#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// Memory of one GPU of an engine, and the limits of its requests.
struct EngineMemory {
  Bytes peak{}, usable{}, pool{};
  Owners peak_owners;
  std::optional<AllocationReport> allocator = {};  // if single allocations are simulated
  Bytes context{};                                 // outside its segments
  std::int64_t blocks = 0, block_tokens = 0, peak_blocks = 0;
  std::int64_t capacity_tokens = 0;  // of the full cache
  std::optional<EngineStartup> startup;
  std::vector<TierResult> tiers;
  Bytes dropped{}, reclaimed{};  // KvCacheManager's
};

/// Work done so far.
struct EngineWork {
  double flops = 0, bytes = 0;
  Seconds at_peak{};  // time of the arithmetic at the data-sheet rate of each operator's format
  SimTime busy{};
  Bytes fetched{}, written{};  // entries outside the GPU
  Seconds link_wait{};         // time that iterations waited for them
  /// Time in which a request waited for memory reserved for future output tokens.
  SimTime reservation_wait{};
  /// Parts of `busy`: iterations of only prompts, of prompts and decodes, and of only decodes.
  SimTime prompts{}, mixed{}, decodes{};
  /// Parts of `busy`: iterations that used all of the scheduler's tokens, and iterations with as
  /// many running sequences as it allows while others waited.
  SimTime tokens_full{}, seqs_full{};

  void add_phase(SimTime took, bool prefills, bool decodes_too) {
    (prefills ? decodes_too ? mixed : prompts : decodes) += took;
  }
};

/// Counts of one engine; ServeState has the sums over all engines.
struct EngineCounts {
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;  // computed
  std::int64_t prefix_hits = 0, prefix_queries = 0;
};

/// One replica: accepts requests and runs one iteration after another. The service advances the
/// clock.
class Engine {
 public:
  Engine(ServeState& state, std::int32_t replica, std::size_t max_samples)
      : state_{&state}, replica_{replica}, timeline_{max_samples} {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Accepts a request; one that can never be served ends immediately.
  virtual void arrive(RequestId id, SimTime now) = 0;
  /// Starts an iteration and returns its end; nullopt if there is nothing to do or the requests
  /// wait for more arrivals. `more_coming`: more requests arrive even if nothing ends before.
  [[nodiscard]] virtual std::optional<SimTime> start(SimTime now, bool more_coming) = 0;
  /// Largest number of iterations in flight; they end in the order of their start.
  [[nodiscard]] virtual std::size_t max_in_flight() const { return 1; }
  /// Ends the oldest iteration in flight.
  virtual void end(SimTime now) = 0;
  /// Number of requests present: waiting, running, swapped out.
  [[nodiscard]] virtual std::int64_t load() const = 0;
  /// Number of requests that will certainly arrive, in addition to those present.
  [[nodiscard]] std::int64_t promised() const { return promised_; }
  void promise(std::int64_t more) { promised_ += more; }
  /// Number of tokens of a request's prompt that this engine has cached.
  [[nodiscard]] virtual std::int32_t prefix_found(RequestId /*id*/) const { return 0; }
  /// Releases a group of ActiveArray whose requests have ended, here or elsewhere.
  virtual void release_group(std::size_t /*group*/) {}
  [[nodiscard]] virtual EngineMemory memory() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
  /// The limits of an iteration.
  [[nodiscard]] virtual BatchLimits limits() const = 0;
  [[nodiscard]] virtual std::vector<std::string> notes() const = 0;

  /// The API server before the engine.
  [[nodiscard]] FrontEnd& front_end() { return front_end_; }
  /// When the tokens of each iteration reached the clients.
  [[nodiscard]] const std::vector<SimTime>& iteration_ends() const { return ends_; }
  [[nodiscard]] std::vector<SimTime>&& take_iteration_ends() { return std::move(ends_); }
  [[nodiscard]] const ServeTimeline& timeline() const { return timeline_; }
  [[nodiscard]] const EngineWork& work() const { return work_; }
  [[nodiscard]] const EngineCounts& counts() const { return counts_; }

 protected:
  ServeState* state_;
  std::int32_t replica_;
  std::vector<SimTime> ends_;
  ServeTimeline timeline_;
  EngineWork work_;
  EngineCounts counts_;
  std::int64_t promised_ = 0;
  FrontEnd front_end_{};
};

}  // namespace kvsim
