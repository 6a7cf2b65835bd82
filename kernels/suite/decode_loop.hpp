#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/suite/bench/array.hpp"
#include "kernels/suite/loop_spec.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// The contents of one layer's cache; rows are (sequence, stored head) pairs. Entry e is at place e
/// of its row's memory.
template <class T>
struct LayerCacheState {
  std::vector<T> keys, values;          // [rows, held, head_dim]
  std::vector<std::int32_t> positions;  // [rows, held]; for methods with scores, else empty
  std::vector<float> scores;            // likewise
  std::vector<std::int32_t> counts;     // [rows, slots]; kResidual
};

/// A decode loop of one process, with kernels, library products (plain kernels in the simulator),
/// and weights and cache of random numbers of type T. Per step and layer: norm, one product for Q,
/// K and V, rotation, append, attention with the scores and biases of the method, score update,
/// choice of a victim, merge, output projection, gated feed-forward; then logits. Not included:
/// prefill (the cache starts with random entries) and sampling (tokens are drawn beforehand).
///
/// Under kHeavy and kResidual the next entry takes the victim's slot, so that no other entry moves.
/// Residual slots have no score because they are never chosen.
template <class T>
class DecodeLoop {
 public:
  /// Allocates all memory and draws the weights. Errors: ContractError for sizes that the kernels
  /// do not support or an invalid budget; on a GPU runtime_error without enough memory or without
  /// cuBLAS.
  DecodeLoop(Machine& machine, const kernels::LoopSpec& spec);
  ~DecodeLoop();
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  /// Fills the prompt's cache with random numbers, with the positions of a compressed prompt.
  void fill_cache();
  /// Sets the prompt's cache, held(0) entries per row: for kStreaming and kFull by position, for
  /// kResidual with the residual slots first.
  void set_cache(std::int64_t layer, const LayerCacheState<T>& state);
  /// Returns the first `entries` slots of each row of `layer`, in memory order. After a step under
  /// a budget, one of budget + 1 slots holds the evicted entry.
  [[nodiscard]] LayerCacheState<T> cache(std::int64_t layer, std::int64_t entries) const;

  /// Runs the next step. `after_layer(layer)` may inspect the layer's buffers.
  void step(const std::function<void(std::int64_t)>& after_layer = {});
  /// Restarts at the first step, with the cache of fill_cache.
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

  /// Returns the operators since the last call, summed by name in the order of their first run;
  /// counted only in the simulator.
  [[nodiscard]] std::vector<kernels::LoopOp> take_ops();
  /// Number of kernel launches of all steps so far; a product counts as one.
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
