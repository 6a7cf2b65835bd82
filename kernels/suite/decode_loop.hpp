#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/suite/bench/array.hpp"
#include "kernels/suite/loop_spec.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// The contents of one layer's cache; rows are (sequence, stored head) pairs. Entry e of a row is
/// the first, second, … of its memory.
template <class T>
struct LayerCacheState {
  std::vector<T> keys, values;          // [rows, held, head_dim]
  std::vector<std::int32_t> positions;  // [rows, held]; of methods with scores, else empty
  std::vector<float> scores;            // likewise
  std::vector<std::int32_t> counts;     // [rows, slots]; kResidual
};

/// A decode loop of one process: kernels and the library's products (on the simulator plain ones),
/// weights and cache of random numbers, T their type. Per step and layer: norm, one product for Q,
/// K and V, rotation, append, attention with the scores and biases its method needs, score update,
/// choice of a victim, merge, output projection, gated feed-forward; then logits. Left out: prefill
/// (the cache begins with random entries) and sampling (tokens are drawn beforehand).
///
/// Under kHeavy and kResidual the next entry takes the victim's slot, so that nothing else moves. A
/// residual slot's own score is not kept: it is never chosen.
template <class T>
class DecodeLoop {
 public:
  /// Everything is allocated here, weights drawn. Errors: ContractError for sizes the kernels do
  /// not have or a budget that is no budget; on a GPU runtime_error where memory or cuBLAS is
  /// missing.
  DecodeLoop(Machine& machine, const kernels::LoopSpec& spec);
  ~DecodeLoop();
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  /// The prompt's cache of random numbers, positions as a compressed prompt would have them.
  void fill_cache();
  /// The prompt's cache as given, held(0) entries a row: of kStreaming and kFull by position, of
  /// kResidual the residual slots first.
  void set_cache(std::int64_t layer, const LayerCacheState<T>& state);
  /// The first `entries` slots of each row of `layer`, in memory order. After a step under a
  /// budget, one of budget + 1 slots holds the evicted entry.
  [[nodiscard]] LayerCacheState<T> cache(std::int64_t layer, std::int64_t entries) const;

  /// The next step. `after_layer(layer)` may look at its buffers.
  void step(const std::function<void(std::int64_t)>& after_layer = {});
  /// Begins again from the first step, with the cache of fill_cache.
  void rewind();

  [[nodiscard]] std::vector<T> weights() const;  // [weight_elements]
  [[nodiscard]] std::vector<T> queries()
      const;  // [batch, n_heads, head_dim], of the last layer run
  [[nodiscard]] std::vector<T> fresh_keys() const;  // [batch, n_kv_heads, head_dim], likewise
  [[nodiscard]] std::vector<T> fresh_values() const;
  [[nodiscard]] std::vector<T> attended() const;  // [batch, n_heads, head_dim], likewise
  [[nodiscard]] std::vector<T> logits() const;    // [batch, vocab], of the last step
  /// Tokens of step `step`: [batch].
  [[nodiscard]] std::vector<std::int32_t> tokens(std::int64_t step) const;

  /// Operators since the last call, summed by name in the order they first ran; only the simulator
  /// counts.
  [[nodiscard]] std::vector<kernels::LoopOp> take_ops();
  /// Kernel launches of all steps so far, a product as one.
  [[nodiscard]] std::int64_t launches() const { return launches_; }

 private:
  struct Memory;
  void run(std::string_view name, const kernels::KernelTraffic& model,
           const std::function<void(Stream)>& launch);
  void product(std::string_view name, std::int64_t n, std::int64_t k, Span<const T> a,
               Span<const T> b, Span<T> out);
  void norm(std::string_view name, Span<const T> weight);
  template <class Number>
  void copy_in(Array<Number>& to, const std::vector<Number>& values, std::int64_t first);
  void open(std::int64_t layer);
  void attend(std::int64_t layer);
  void learn(std::int64_t layer);
  void feed_forward(Span<const T> weights);

  Machine& machine_;
  kernels::LoopSpec spec_;
  std::unique_ptr<Memory> memory_;
  std::vector<kernels::LoopOp> ops_;
  std::int64_t done_ = 0;
  std::int64_t launches_ = 0;
};

}  // namespace kvsim::KVSIM_EXECUTOR
