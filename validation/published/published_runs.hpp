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

/// Static runs of one published set-up and one of its models. Results are kept, since several
/// figures of a row come from one run.
class PublishedRuns {
 public:
  /// `method`: in place of the row's own where a baseline is run. Errors of the methods below:
  /// InputError where the set-up cannot be run at all (no closed size law, heads that do not
  /// divide).
  PublishedRuns(const PublishedRow& row, const PublishedSetup& setup, const Llm& llm,
                MethodSpec method);

  /// Errors: InputError if the run is longer than is stepped through, or larger than can be
  /// counted.
  void check(const RunSize& size) const;
  [[nodiscard]] const StaticResult& run(const RunSize& size);
  [[nodiscard]] StaticSpec spec(const RunSize& size);
  /// Whether a run that fits by its tensors is refused by PyTorch's caching allocator: a cache that
  /// grows by copies leaves segments that nothing later fits in. False on other stacks.
  [[nodiscard]] bool fragments(const RunSize& size);
  /// Largest batch whose run fits; 0: not even one sequence.
  [[nodiscard]] std::int64_t largest_batch(std::int64_t prompt, std::int64_t steps);
  /// Longest prompt whose run of one step fits, up to `max`.
  [[nodiscard]] std::int64_t longest_prompt(std::int64_t batch, std::int64_t max);

  /// What an engine finds at its start. Errors: ContractError unless its cache is paged.
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
  /// `spec` as it runs: with the fewest layers in host memory where the program puts what does not
  /// fit there.
  [[nodiscard]] StaticResult run_offloaded(StaticSpec spec) const;
  /// Tokens of one prefill pass where the row does not say; nullopt: as the stack's profile.
  [[nodiscard]] std::optional<std::int64_t> pass_tokens(const RunSize& size) const;

  const PublishedSetup& setup_;
  const Llm& llm_;
  MethodSpec method_;
  std::optional<Gpu> own_gpu_;  // with the memory that the row states
  const Gpu* gpu_;
  std::optional<Stack> own_stack_;  // as the row's version has it
  const Stack* stack_;
  StackOptions options_;
  WeightStore weights_;
  Dtype kv_dtype_;
  std::map<RunSize, StaticResult> results_;
};

}  // namespace kvsim
