#pragma once

// Internal to sim/serve: one replica's model, GPU and stack, shared by all of its parts.

#include <memory>
#include <string>
#include <vector>

#include "models/cost/rates/host_rate.hpp"
#include "models/cost/rates/roofline.hpp"
#include "sim/serve/cache/outside_format.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "sim/serve/engine/engine.hpp"
#include "sim/serve/engine/pipeline.hpp"
#include "sim/serve/engine/speculation.hpp"
#include "sim/serve/serve_spec.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "sim/serve/service/service.hpp"

namespace kvsim {

/// State that is constant while a service runs. Engines hold pointers into it.
class ServeContext {
 public:
  /// Errors: InputError if scheduler, stack and method are incompatible.
  ServeContext(const ServeSpec& spec, const ServeHooks& hooks);
  ServeContext(const ServeContext&) = delete;
  ServeContext& operator=(const ServeContext&) = delete;

  [[nodiscard]] std::unique_ptr<Engine> make_engine(ServeState& state, std::int32_t replica,
                                                    std::size_t max_samples,
                                                    ReplicaRole role = ReplicaRole::kWhole);
  /// Bytes of a unit of an engine's pool, summed over the GPUs of one tensor-parallel rank. The
  /// scheduler must not be static.
  [[nodiscard]] Bytes pool_unit() const { return pipeline_ ? sizes_->unit() : held_unit_; }
  [[nodiscard]] const std::string& scheduler() const { return scheduler_; }
  /// Reason why the service cannot start; empty if it can.
  [[nodiscard]] const std::string& cannot_start() const { return cannot_start_; }
  /// Describes the number of GPUs on which it would start.
  [[nodiscard]] std::string would_start() const;
  [[nodiscard]] const std::optional<EngineStartup>& startup() const { return startup_; }
  [[nodiscard]] const CostInput& cost_input() const { return in_; }
  [[nodiscard]] Bytes usable() const { return usable_; }
  [[nodiscard]] const Calibration& calibration() const { return calibration_; }
  /// Bandwidth of copies between a GPU and its host: large copies, or pieces of this many bytes.
  [[nodiscard]] BytesPerSecond host_rate(Bytes piece = {}) const {
    return kvsim::host_rate(roofline_, *spec_.gpu, stack_, piece);
  }
  [[nodiscard]] std::string provenance() const;
  [[nodiscard]] std::vector<std::string> notes() const;
  /// ServeResult::undeclared.
  [[nodiscard]] std::int64_t undeclared() const { return undeclared_; }
  /// Tokens of the full cache that fit in addition to weights and context, if the stack has no
  /// pool.
  [[nodiscard]] std::int64_t capacity_tokens() const;
  [[nodiscard]] const Owners& resident() const { return resident_; }
  /// See PreparedService.
  [[nodiscard]] std::optional<MinTimes> min_times(std::int64_t context, std::int64_t max);
  /// Reason why no prefix was found although the engine searched for them; empty if its layers have
  /// no groups.
  [[nodiscard]] std::string no_hits_text() const;

 private:
  void start_paged(const ServeHooks& hooks);
  void add_proposals(const ServeHooks& hooks);
  void add_draft(const ServeHooks& hooks);
  void put_draft_cost(const ServeHooks& hooks);
  [[nodiscard]] std::string beyond_states() const;
  /// Adds notes on defaults of schedulers and prefixes for requests that do not declare lengths.
  void note_declarations();
  /// Decides which entries are stored outside the GPU, and checks that other settings allow it.
  void place_offloads();
  [[nodiscard]] std::string offload_note(bool has_own) const;
  /// Sets the codec of pages outside the GPU.
  void choose_codec();

  const ServeSpec& spec_;
  const ServeHooks& hooks_;
  Llm llm_;  // of one GPU
  StackOptions options_;
  Stack stack_;
  Calibration calibration_;
  Roofline roofline_;
  std::int64_t typical_prompt_ = 1;
  std::int64_t longest_ = 1;  // prompt and output of a request
  CostInput base_;
  SequenceFootprints footprints_;
  std::shared_ptr<const Method> typical_;
  CostInput in_;
  Bytes usable_;
  Owners resident_;
  std::string scheduler_;
  std::string cannot_start_;
  std::optional<EngineStartup> startup_;
  std::unique_ptr<IterationCost> cost_;  // null if there are stages
  std::optional<Pipeline> pipeline_;
  std::unique_ptr<Draft> draft_;  // null: none
  std::int64_t pool_units_ = 0;
  Bytes held_unit_{};
  std::optional<BlockSizes> sizes_;
  bool full_law_ = false;
  bool prefix_caching_ = false;
  bool keeps_outside_ = false;
  OutsideFormat outside_format_{};
  Bytes piece_{};             // smallest copy of a step's fetches; 0: no fetches
  bool moves_whole_ = false;  // caches are compressed after they have moved
  std::vector<std::string> notes_;
  std::int64_t undeclared_ = 0;
};

}  // namespace kvsim
