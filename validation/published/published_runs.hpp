#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "sim/batch/static_run.hpp"
#include "validation/published/published_setup.hpp"
#include "validation/published/published_weights.hpp"

namespace kvsim {

/// A run of a published set-up.
struct RunSize {
  std::int64_t batch = 1;
  std::int64_t prompt = 1;
  std::int64_t steps = 0;  // decode steps

  friend auto operator<=>(const RunSize&, const RunSize&) = default;
};

/// Static runs of one published set-up and one of its models. Results are cached because several
/// figures of a row come from one run.
class PublishedRuns {
 public:
  /// `method` replaces the row's method when a baseline is run. Errors of the methods below:
  /// InputError if the set-up cannot be run at all (no closed size law, heads that do not divide).
  PublishedRuns(const PublishedRow& row, const PublishedSetup& setup, const Llm& llm,
                MethodSpec method);

  /// Errors: InputError if the run has more steps than are simulated, or is too large to count.
  void check(const RunSize& size) const;
  [[nodiscard]] const StaticResult& run(const RunSize& size);
  [[nodiscard]] StaticSpec spec(const RunSize& size);
  /// Whether PyTorch's caching allocator fails although the run's tensors fit: a cache that grows
  /// by copies leaves segments that are too small for later tensors. False on other stacks.
  [[nodiscard]] bool fragments(const RunSize& size);
  /// Largest batch whose run fits; 0: not even one sequence.
  [[nodiscard]] std::int64_t largest_batch(std::int64_t prompt, std::int64_t steps);
  /// Longest prompt whose run of one step fits, up to `max`.
  [[nodiscard]] std::int64_t longest_prompt(std::int64_t batch, std::int64_t max);

  /// Returns the result of an engine's start. Errors: ContractError unless its cache is paged.
  [[nodiscard]] EngineStartup startup();
  [[nodiscard]] bool is_paged() const {
    return stack_ != nullptr && stack_->growth == CacheGrowth::kPaged;
  }

  [[nodiscard]] const Llm& llm() const { return llm_; }
  [[nodiscard]] const Gpu& gpu() const { return *gpu_; }
  [[nodiscard]] const Stack& stack() const { return *stack_; }
  [[nodiscard]] const WeightStore& weights() const { return weights_; }
  /// The part of the model on one GPU.
  [[nodiscard]] Llm shard() const { return tensor_shard(llm_, ranks()); }
  [[nodiscard]] Dtype kv_dtype() const { return kv_dtype_; }
  [[nodiscard]] std::int32_t ranks() const {
    return stack_ != nullptr ? tensor_ranks(*stack_, setup_.gpus) : setup_.gpus;
  }

 private:
  /// Runs `spec`, with the fewest possible layers in host memory if the program offloads layers
  /// that do not fit.
  [[nodiscard]] StaticResult run_offloaded(StaticSpec spec) const;
  /// Tokens of one prefill pass if the row does not state them; nullopt: as in the stack's profile.
  [[nodiscard]] std::optional<std::int64_t> pass_tokens(const RunSize& size) const;

  const PublishedSetup& setup_;
  const Llm& llm_;
  MethodSpec method_;
  std::optional<Gpu> own_gpu_;  // with the memory stated by the row
  const Gpu* gpu_;
  std::optional<Stack> own_stack_;  // in the row's version
  const Stack* stack_;
  StackOptions options_;
  WeightStore weights_;
  Dtype kv_dtype_;
  std::map<RunSize, StaticResult> results_;
};

}  // namespace kvsim
