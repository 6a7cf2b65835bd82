// vLLM's V1 scheduler. Source: vllm v1/core/sched/scheduler.py, Scheduler.schedule, without
// speculation, encoders, LoRA and connectors.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMaxNumSeqs = 256;            // vllm config/scheduler.py
constexpr std::int64_t kMaxNumBatchedTokens = 2048;  // likewise
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int32_t>::max();

/// Each iteration has a token budget. Running sequences come first, in the order of their
/// admission, each with all its uncomputed tokens (one if it decodes) or the rest of the budget. If
/// a block is missing, the last in order is preempted and recomputed later. Waiting sequences are
/// admitted only if none was preempted, from the queue's head up to the first that does not fit.
class VllmV1 : public Scheduler {
 public:
  VllmV1(const SchedulerSpec& spec, const SchedulerContext& site) : order_{spec.order} {
    const ConfiguredLimits configured = resolve_limits(*site.stack, spec);
    max_seqs_ = configured.seqs.value_or(kMaxNumSeqs);
    chunked_ = spec.chunked_prefill.value_or(true);
    budget_ = configured.iteration_tokens(chunked_, site.max_model_len, kMaxNumBatchedTokens);
    long_prefill_ = spec.long_prefill_token_threshold.value_or(0);
    watermark_ = spec.watermark.value_or(0);
    reserves_ = spec.reserve_full_isl.value_or(site.stack->reserves_full_prompt);
    state_block_ = site.state_block;
    const auto at_least = [](const char* what, std::int64_t value, std::int64_t low) {
      if (value < low) {
        throw InputError{
            fmt::format("scheduler vllm-v1: {}: expected at least {}, got {}", what, low, value)};
      }
    };
    at_least("max_num_seqs", max_seqs_, 1);
    at_least("max_num_batched_tokens", budget_, 1);
    at_least("long_prefill_token_threshold", long_prefill_, 0);
    if (!chunked_ && budget_ < site.max_model_len) {
      throw InputError{fmt::format(
          "scheduler vllm-v1: max_num_batched_tokens: expected at least the longest sequence's {} "
          "tokens without chunked prefill, got {}",
          site.max_model_len, budget_)};
    }
    if (!(watermark_ >= 0 && watermark_ < 1)) {
      throw InputError{fmt::format(
          "scheduler vllm-v1: watermark: expected a share in [0, 1), got {}", watermark_)};
    }
    const std::int64_t blocks = site.pool_units / site.block_units;
    keep_free_ = static_cast<std::int64_t>(std::ceil(watermark_ * static_cast<double>(blocks))) *
                 site.block_units;
  }

  void schedule(BatchBuilder& batch) override {
    std::int64_t left = budget_;
    bool preempted = false;
    // The list shrinks from its end, or anywhere in priority order: positions are read again.
    for (std::size_t i = 0; i < batch.idle().size() && left > 0;) {
      const std::size_t decodes = batch.schedule_decodes(i, left);
      i += decodes;
      left -= static_cast<std::int64_t>(decodes);
      if (i == batch.idle().size() || left <= 0) break;
      const RequestId id = batch.idle()[i];
      const Sequence& s = batch.sequence(id);
      const std::int32_t tokens = aligned(s, s.computed, take(s.to_compute(), left));
      if (tokens == 0) {
        ++i;
        continue;
      }
      bool scheduled = batch.schedule(id, tokens);
      while (!scheduled) {
        const RequestId victim = batch.last_in_order();
        preempted = true;
        left += preempt(batch, victim, i);
        if (victim == id) break;
        scheduled = batch.schedule(id, tokens);
      }
      if (!scheduled) break;
      left -= tokens;
      ++i;
    }
    if (preempted) return;
    while (batch.waiting() > 0 && left > 0 &&
           static_cast<std::int64_t>(batch.running().size()) < max_seqs_) {
      const RequestId id = batch.next_waiting();
      const std::int32_t found = batch.cached_tokens(id);
      const std::int32_t wanted = batch.sequence(id).known - found;
      const std::int32_t tokens = aligned(batch.sequence(id), found, take(wanted, left));
      if (tokens == 0) return;
      if (!chunked_ && tokens < wanted) return;
      if (reserves_ && !fits(batch, id, found)) return;
      // A watermark that no other sequence's blocks can satisfy would never be met.
      if (!batch.admit(id, tokens, batch.running().empty() ? 0 : keep_free_)) return;
      left -= tokens;
    }
  }

  [[nodiscard]] BatchLimits limits() const override {
    return {.seqs = max_seqs_, .tokens = budget_};
  }
  [[nodiscard]] std::string describe() const override {
    const char* order = order_ == QueueOrder::kFcfs       ? "first come first served"
                        : order_ == QueueOrder::kPriority ? "by priority"
                                                          : "shortest declared output first";
    std::string text = fmt::format("vllm-v1, {}, max_num_seqs {}, max_num_batched_tokens {}", order,
                                   max_seqs_, budget_);
    if (!chunked_) text += ", prompts whole";
    if (long_prefill_ > 0) text += fmt::format(", long_prefill_token_threshold {}", long_prefill_);
    if (watermark_ > 0) text += fmt::format(", watermark {}", watermark_);
    if (reserves_) text += ", prompts that fit as a whole";
    return text;
  }

 private:
  /// Returns whether free memory holds all known tokens of the sequence, of which `found` are
  /// cached, so that its later chunks do not preempt others. A sequence that is the only one is not
  /// held up.
  /// Source: vLLM KVCacheManager.allocate_slots, full_sequence_must_fit.
  [[nodiscard]] bool fits(BatchBuilder& batch, RequestId id, std::int32_t found) const {
    if (batch.running().empty()) return true;
    const Sequence& s = batch.sequence(id);
    const std::int64_t shared = found / batch.block_tokens() * batch.block_units();
    return batch.units_for(s.prompt, s.known) - shared + keep_free_ <= batch.free_units();
  }
  [[nodiscard]] std::int32_t take(std::int32_t wanted, std::int64_t left) const {
    std::int64_t tokens = wanted;
    if (chunked_ && long_prefill_ > 0) tokens = std::min(tokens, long_prefill_);
    if (chunked_ || wanted == 1) tokens = std::min(tokens, left);
    return static_cast<std::int32_t>(std::min(tokens, std::min(left, kUnlimited)));
  }
  /// Aligns a prompt's next `tokens` after the first `computed`: steps end on whole blocks, the
  /// last but one after all whole blocks, so that the state there can be kept. Source: vLLM
  /// Scheduler._mamba_block_aligned_split.
  [[nodiscard]] std::int32_t aligned(const Sequence& s, std::int32_t computed,
                                     std::int32_t tokens) const {
    if (state_block_ == 0 || computed >= std::max(s.prompt, s.known - 1)) return tokens;
    const auto last = static_cast<std::int32_t>(s.known / state_block_ * state_block_);
    if (computed + tokens < last) {
      return static_cast<std::int32_t>(tokens / state_block_ * state_block_);
    }
    return computed < last ? last - computed : tokens;
  }
  /// Preempts a sequence and returns the tokens freed in the budget; `at` remains the place of the
  /// same sequence.
  static std::int32_t preempt(BatchBuilder& batch, RequestId victim, std::size_t& at) {
    const auto& idle = batch.idle();
    const auto place =
        static_cast<std::size_t>(std::find(idle.begin(), idle.end(), victim) - idle.begin());
    const std::int32_t back = batch.preempt(victim);
    if (place < at) --at;
    return back;
  }

  QueueOrder order_;
  std::int64_t max_seqs_ = kMaxNumSeqs;
  std::int64_t budget_ = kMaxNumBatchedTokens;
  std::int64_t long_prefill_ = 0;
  double watermark_ = 0;
  std::int64_t keep_free_ = 0;
  std::int64_t state_block_ = 0;
  bool chunked_ = true;
  bool reserves_ = false;
};

}  // namespace

std::unique_ptr<Scheduler> make_vllm_v1(const SchedulerSpec& spec, const SchedulerContext& site) {
  return std::make_unique<VllmV1>(spec, site);
}

}  // namespace kvsim
