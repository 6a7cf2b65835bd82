// vLLM's V0 scheduler. Source: vllm 0.7.3, core/scheduler.py (Scheduler._schedule_default,
// _schedule_chunked_prefill, _schedule_running, _schedule_swapped, _schedule_prefills,
// _schedule_priority_preemption) and core/block_manager.py (can_allocate, can_append_slots,
// can_swap_in), without speculation, LoRA, encoders, several sequences per request and
// delay_factor.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/micro_batches.hpp"
#include "sim/serve/schedulers/queue_order.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kName = "vllm-v0";
constexpr std::int64_t kMaxNumSeqs = 256;            // vllm config.py
constexpr std::int64_t kMaxNumBatchedTokens = 2048;  // likewise; at least max_model_len if whole
constexpr double kWatermark = 0.01;                  // core/block_manager.py
constexpr std::int64_t kLongContext = 32768;         // engine/arg_utils.py: use_long_context

/// Prompts are computed whole, in separate iterations: while no sequence is swapped out, an
/// iteration takes the waiting prompts that tokens, sequences and blocks (above a watermark) allow.
/// Running sequences decode only if there are none. If a block is missing, the last sequence that
/// is not planned is preempted, by recomputation or to host memory. If none was preempted, swapped
/// ones return.
///
/// A running sequence needs one free block even if its last one has room (can_append_slots counts
/// the block that is touched). In chunked mode decodes come first, then chunks of running prompts,
/// then swapped sequences, then new prompts, whose blocks are allocated at once.
///
/// Under any order except first come first served, the last of all running sequences in that order
/// is preempted, planned or not. With whole prompts, the first request in the queue also preempts
/// running ones that come after it (vLLM's "priority"). vLLM's chunked mode does not have this
/// order: there no request is admitted in an iteration with a preemption.
///
/// In a pipeline, each stage has a scheduler with its share of the blocks and its own requests
/// ("virtual engines"), at most max_num_seqs each.
///
/// Differences from vLLM: a request joins the micro-batch that is formed next (vLLM: the one with
/// the fewest requests when it arrives), a sequence that does not fit into host memory is
/// recomputed (vLLM aborts), and a request that can never be admitted is rejected when it is first
/// in the queue and nothing else runs, not when it is first considered.
class VllmV0 : public Scheduler {
 public:
  VllmV0(const SchedulerSpec& spec, const SchedulerContext& site)
      : order_{spec.order},
        chunked_{vllm_v0_chunks(spec, site.max_model_len)},
        caches_{spec.prefix_caching.value_or(false)},
        swaps_{spec.swap.value_or(false)},
        block_{site.block_tokens},
        one_{site.block_units},
        share_{site.pool_units / site.stages / site.block_units * site.block_units},
        micro_batches_{site.stages} {
    const ConfiguredLimits configured = resolve_limits(*site.stack, spec);
    max_seqs_ = configured.seqs.value_or(kMaxNumSeqs);
    budget_ = configured.iteration_tokens(
        chunked_, std::max(kMaxNumBatchedTokens, site.max_model_len), kVllmV0ChunkTokens);
    watermark_ = spec.watermark.value_or(kWatermark);
    expect_at_least(kName, "max_num_seqs", max_seqs_, 1);
    expect_at_least(kName, "max_num_batched_tokens", budget_, 1);
    if (!chunked_ && budget_ < site.max_model_len) {
      throw InputError{fmt::format(
          "scheduler vllm-v0: max_num_batched_tokens: expected at least the longest sequence's {} "
          "tokens without chunked prefill, got {}",
          site.max_model_len, budget_)};
    }
    if (chunked_ && caches_ && budget_ % block_ != 0) {
      throw InputError{fmt::format(
          "scheduler vllm-v0: max_num_batched_tokens: expected a multiple of the block's {} tokens "
          "with chunked prefill and prefix caching, got {}",
          block_, budget_)};
    }
    if (!(watermark_ >= 0 && watermark_ < 1)) {
      throw InputError{fmt::format(
          "scheduler vllm-v0: watermark: expected a share in [0, 1), got {}", watermark_)};
    }
    if (swaps_ && site.host_memory <= Bytes{}) {
      throw InputError{
          "scheduler vllm-v0: swap: expected host memory to swap to, the service has none"};
    }
    const std::int64_t blocks = share_ / one_;
    keep_free_ =
        static_cast<std::int64_t>(std::floor(watermark_ * static_cast<double>(blocks))) * one_;
  }

  void schedule(BatchBuilder& batch) override {
    micro_batches_.form_next(batch, [&](std::int32_t) { form(batch); });
  }

  [[nodiscard]] BatchLimits limits() const override {
    return {.seqs = max_seqs_, .tokens = budget_};
  }
  [[nodiscard]] std::string describe() const override {
    std::string text = fmt::format("vllm-v0, {}, max_num_seqs {}, max_num_batched_tokens {}",
                                   display_name(order_), max_seqs_, budget_);
    text += chunked_ ? ", prompts in chunks" : ", prompts whole";
    text += swaps_ ? ", preemption by swap" : ", preemption by recomputation";
    text += fmt::format(", watermark {}", watermark_);
    return text;
  }

 private:
  void form(BatchBuilder& batch) {
    left_ = budget_;
    put_out_ = recomputed_ = owed_ = 0;
    if (chunked_) {
      owed_ = owed(batch);
      run(batch);
      if (put_out_ == 0) bring_back(batch);
      admit_chunks(batch);
      return;
    }
    if (batch.swapped().empty()) {
      admit_whole(batch);
      if (batch.planned() > 0) return;
      if (order_ != QueueOrder::kFcfs) make_way(batch);
    }
    run(batch);
    if (put_out_ == 0) bring_back(batch);
  }

  /// Free units of the micro-batch's engine.
  [[nodiscard]] std::int64_t free_units(BatchBuilder& batch) const {
    if (micro_batches_.count() == 1) return batch.free_units();
    std::int64_t held = 0;
    for (const RequestId id : batch.idle()) held += batch.units_held(id);
    return std::min(batch.free_units(), share_ - held);
  }

  [[nodiscard]] std::int32_t take(std::int32_t wanted) const {
    return static_cast<std::int32_t>(std::min(std::int64_t{wanted}, left_));
  }
  /// Units of running prompts that are not computed yet: vLLM allocates their blocks at once.
  [[nodiscard]] static std::int64_t owed(BatchBuilder& batch) {
    std::int64_t sum = 0;
    for (const RequestId id : batch.idle()) {
      if (!batch.prefills(id)) continue;
      const Sequence& s = batch.sequence(id);
      sum += std::max<std::int64_t>(0, batch.units_for(s.target, s.target) - batch.units_held(id));
    }
    return sum;
  }

  void put_out(BatchBuilder& batch, RequestId id) {
    const bool half_done = batch.sequence(id).prefills();
    ++put_out_;
    if (!swaps_ || !batch.swap_out(id)) {
      left_ += batch.preempt(id);
      if (batch.sequence(id).state == SequenceState::kWaiting) ++recomputed_;
    }
    if (half_done) owed_ = owed(batch);
  }

  /// Plans running sequences in their order; preemption starts at the end.
  void run(BatchBuilder& batch) {
    line_.assign(batch.idle().begin(), batch.idle().end());
    bool prefills = false;
    if (chunked_) {
      line_.clear();
      for (const bool half_done : {false, true}) {
        for (const RequestId id : batch.idle()) {
          if (batch.prefills(id) == half_done) line_.push_back(id);
        }
        if (!half_done) prefills = line_.size() < batch.idle().size();
      }
    }
    if (order_ != QueueOrder::kFcfs) {
      std::sort(line_.begin(), line_.end(), [&](RequestId a, RequestId b) {
        const Sequence &x = batch.sequence(a), &y = batch.sequence(b);
        const bool x_waits = chunked_ && x.prefills(), y_waits = chunked_ && y.prefills();
        if (x_waits != y_waits) return y_waits;
        return order_key(order_, x) < order_key(order_, y);
      });
    }
    std::size_t end = line_.size();
    // Each takes at most one block: with enough spare blocks, single checks are not needed.
    const bool roomy = free_units(batch) - owed_ > static_cast<std::int64_t>(end) * one_;
    std::size_t i = 0;
    if (roomy && order_ == QueueOrder::kFcfs) {
      i = batch.schedule_decodes(0, left_);
      left_ -= static_cast<std::int64_t>(i);
    }
    for (; i < end && left_ > 0; ++i) {
      const RequestId id = line_[i];
      if (batch.sequence(id).state != SequenceState::kRunning) continue;
      const std::int32_t tokens = take(batch.sequence(id).to_compute());
      bool scheduled = append(batch, id, tokens, roomy);
      while (!scheduled) {
        RequestId victim = id;
        if (order_ != QueueOrder::kFcfs) {
          victim = batch.last_in_order();
        } else if (i + 1 < end) {
          victim = line_[--end];
        }
        put_out(batch, victim);
        if (victim == id) break;
        scheduled = append(batch, id, tokens, roomy);
      }
      if (scheduled) left_ -= tokens;
    }
    if (prefills) owed_ = owed(batch);
  }
  [[nodiscard]] bool append(BatchBuilder& batch, RequestId id, std::int32_t tokens,
                            bool roomy) const {
    const bool touches =
        roomy || batch.sequence(id).prefills() || free_units(batch) - owed_ >= one_;
    return touches && batch.schedule(id, tokens);
  }

  void bring_back(BatchBuilder& batch) {
    while (!batch.swapped().empty() && left_ > 0 &&
           static_cast<std::int64_t>(batch.idle().size()) < max_seqs_) {
      const RequestId id = batch.swapped().front();
      const Sequence& s = batch.sequence(id);
      // vLLM allocates all blocks of a prompt with its first chunk, so they return together.
      const std::int64_t rest =
          s.prefills() ? std::max<std::int64_t>(0, batch.units_for(s.target, s.target) -
                                                       batch.units_for(s.computed, s.computed))
                       : 0;
      // The next computed token touches a block.
      if (!batch.swap_in(id, keep_free_ + owed_ + rest + one_)) return;
      const std::int32_t tokens = take(batch.sequence(id).to_compute());
      if (!batch.schedule(id, tokens)) return;
      left_ -= tokens;
      if (batch.sequence(id).prefills()) owed_ = owed(batch);
    }
  }

  /// Returns whether its whole prompt fits above the watermark, regardless of cached tokens.
  [[nodiscard]] bool can_allocate(BatchBuilder& batch, RequestId id) const {
    const std::int32_t known = batch.sequence(id).known;
    return batch.units_for(known, known) + keep_free_ + owed_ <= free_units(batch);
  }

  void admit_whole(BatchBuilder& batch) {
    while (batch.waiting() > 0 && static_cast<std::int64_t>(batch.idle().size()) < max_seqs_) {
      const RequestId id = batch.next_waiting();
      const std::int32_t cached = batch.cached_tokens(id);
      const std::int32_t tokens = batch.sequence(id).known - cached;
      const bool asks = cached > 0 || micro_batches_.count() > 1;
      if (tokens > left_ || (asks && !can_allocate(batch, id)) ||
          !batch.admit(id, tokens, keep_free_)) {
        return;
      }
      left_ -= tokens;
    }
  }

  void admit_chunks(BatchBuilder& batch) {
    if (order_ != QueueOrder::kFcfs && put_out_ > 0) return;
    // Sequences preempted in this iteration enter the queue with the next one.
    const auto skip = static_cast<std::size_t>(recomputed_);
    while (left_ > 0 && batch.waiting() > skip &&
           static_cast<std::int64_t>(batch.idle().size()) < max_seqs_) {
      const RequestId id = skip == 0 ? batch.next_waiting() : batch.first_waiting(skip + 1)[skip];
      if (!can_allocate(batch, id)) return;
      const Sequence& s = batch.sequence(id);
      const std::int32_t wanted = s.known - batch.cached_tokens(id);
      std::int32_t tokens = take(wanted);
      // A chunk ends with its last block.
      if (caches_ && tokens < wanted) tokens = static_cast<std::int32_t>(tokens / block_ * block_);
      if (tokens == 0 || !batch.admit(id, tokens, keep_free_ + owed_)) return;
      left_ -= tokens;
      if (tokens < wanted) {
        owed_ +=
            std::max<std::int64_t>(0, batch.units_for(s.known, s.known) - batch.units_held(id));
      }
    }
  }

  /// The first request in the queue takes memory and places of running requests behind it.
  void make_way(BatchBuilder& batch) {
    if (batch.waiting() == 0) return;
    const RequestId id = batch.next_waiting();
    while (!batch.idle().empty()) {
      const RequestId last = batch.last_in_order();
      if (order_key(order_, batch.sequence(last)) < order_key(order_, batch.sequence(id))) return;
      if (can_allocate(batch, id) && static_cast<std::int64_t>(batch.idle().size()) < max_seqs_) {
        return;
      }
      // vLLM puts them into its waiting queue in either mode.
      batch.preempt(last);
      ++put_out_;
    }
  }

  QueueOrder order_;
  bool chunked_, caches_, swaps_;
  std::int64_t block_;
  std::int64_t one_;    // units of a block
  std::int64_t share_;  // units of the pool that a micro-batch may hold
  MicroBatches micro_batches_;
  std::int64_t max_seqs_ = 0, budget_ = 0;
  double watermark_ = 0;
  std::int64_t keep_free_ = 0;
  std::vector<RequestId> line_;  // of this iteration
  std::int64_t left_ = 0;        // tokens
  std::int64_t put_out_ = 0, recomputed_ = 0;
  std::int64_t owed_ = 0;  // units
};

}  // namespace

bool vllm_v0_chunks(const SchedulerSpec& spec, std::int64_t max_model_len) {
  const bool by_itself = max_model_len > kLongContext && spec.order == QueueOrder::kFcfs;
  return spec.chunked_prefill.value_or(by_itself);
}

std::unique_ptr<Scheduler> make_vllm_v0(const SchedulerSpec& spec, const SchedulerContext& site) {
  return std::make_unique<VllmV0>(spec, site);
}

}  // namespace kvsim
