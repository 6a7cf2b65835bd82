// SGLang's scheduler. Source: sglang 0.5.9, python/sglang/srt/managers/scheduler.py
// (Scheduler.get_next_batch_to_run, get_new_batch_prefill, update_running_batch),
// schedule_policy.py (SchedulePolicy, PrefillAdder) and schedule_batch.py
// (ScheduleBatch.retract_decode, mix_with_running), environ.py for the constants; without
// speculation, overlap, hierarchical caches, LoRA, and the check for prefixes shared within the
// queue.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/micro_batches.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kName = "sglang";
constexpr std::int64_t kChunkedPrefillSize = 8192;  // server_args.py, GPUs of 60 GiB or more
constexpr std::int64_t kMaxPrefillTokens = 16384;   // server_args.py
constexpr std::int64_t kMaxRunningRequests = 2048;  // model_runner.py, the smallest derived value
constexpr std::int64_t kClipMaxNewTokens = 4096;    // SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
constexpr double kInitNewTokenRatio = 0.7;          // SGLANG_INIT_NEW_TOKEN_RATIO
constexpr double kMinNewTokenRatioFactor = 0.14;    // SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
constexpr double kDecaySteps = 600;                 // SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
constexpr std::int64_t kRetractDecodeSteps = 20;    // SGLANG_RETRACT_DECODE_STEPS
constexpr std::size_t kLongestQueueToSort = 128;    // SchedulePolicy._determine_active_policy
constexpr RequestId kNoRequest = -1;

bool is_before(const Stack& stack, EngineVersion release) {
  const auto version = parse_engine_version(stack.version);
  return version && *version < release;
}

/// server_args.py: schedule_policy "lpm" up to 0.4.3, "fcfs" since (2025-03).
bool sorts_by_default(const Stack& stack) { return is_before(stack, {0, 4, 4}); }

/// Prompts before decodes: whenever the queue's head may be admitted, an iteration contains only
/// prompts, up to chunked_prefill_size tokens; the last one may be chunked and continues first in
/// the next iteration. A prompt is admitted if it and all tokens it may generate fit in addition to
/// new_token_ratio times the tokens that running requests may still generate, at most 4096 each.
/// After a refusal, no prompt is admitted until a running request ends or is retracted, as
/// determined at the next decode.
///
/// Without the radix cache, requests that ignore the end of a sequence are admitted if all running
/// ones can end: whenever one has ended, there must have been room for as many tokens of each
/// remaining one (add_one_req_ignore_eos).
///
/// If decodes find no memory, the request with the fewest generated tokens is retracted to the end
/// of the queue (ties: the longest prompt, then the last). Its generated tokens are not kept as a
/// prefix. Under any other order, the last request in order is retracted to its place. The ratio
/// falls with each decode and is reset by a retraction.
///
/// With mixed chunks, decoding requests join an iteration of prompts, and their tokens count
/// towards that iteration's limits. Such an iteration does not change the ratio.
///
/// Units are tokens: exact at page size 1, otherwise each sequence is rounded up to pages. With
/// policy "lpm", a queue of at most 128 is served by longest cached prefix.
///
/// In a pipeline, each micro-batch has its own running requests, at most max_running_requests over
/// the number of stages, and the next chunk of a prompt goes into the next micro-batch. Source:
/// scheduler_pp_mixin.py.
class Sglang : public Scheduler {
 public:
  Sglang(const SchedulerSpec& spec, const SchedulerContext& site)
      : order_{spec.order},
        caches_{spec.prefix_caching.value_or(site.stack->prefix_caching.value_or(true))},
        longest_prefix_{(spec.policy
                             ? *spec.policy == "lpm"
                             : order_ == QueueOrder::kFcfs && sorts_by_default(*site.stack)) &&
                        caches_},
        exact_{!caches_ && site.exact_outputs},
        reserves_exact_{!is_before(*site.stack, {0, 4, 8})},
        token_units_{static_cast<double>(site.block_units) /
                     static_cast<double>(site.block_tokens)},
        max_model_len_{site.max_model_len},
        page_{site.block_tokens},
        micro_batches_{site.stages},
        forming_(static_cast<std::size_t>(site.stages)) {
    const ConfiguredLimits configured = resolve_limits(*site.stack, spec);
    max_seqs_ = configured.seqs.value_or(kMaxRunningRequests);
    // Source: sglang, resolve_max_num_reqs.
    if (site.max_states > 0) max_seqs_ = std::min(max_seqs_, site.max_states);
    chunk_ = configured.tokens.value_or(kChunkedPrefillSize);
    max_prefill_tokens_ = spec.max_prefill_tokens.value_or(kMaxPrefillTokens);
    expect_at_least(kName, "max_prefill_tokens", max_prefill_tokens_, 1);
    expect_at_least(kName, "max_num_seqs", max_seqs_, 1);
    expect_at_least(kName, "max_num_batched_tokens", chunk_, page_);
    // Source: sglang, Scheduler.init_pp_loop_state and its pp_max_micro_batch_size.
    if (site.stages > 1) max_seqs_ = std::max<std::int64_t>(1, max_seqs_ / site.stages);
    if (!spec.chunked_prefill.value_or(true)) chunk_ = kNoChunks;
    // Source: sglang, Scheduler.init_chunked_prefill and server_args.py: only with chunks, and
    // neither in a pipeline nor with drafts.
    mixed_ = spec.mixed_chunk.value_or(false) && chunk_ != kNoChunks && site.stages == 1 &&
             site.drafts == 0;
    if (spec.policy == "lpm" && order_ != QueueOrder::kFcfs) {
      throw InputError{fmt::format(
          "scheduler sglang: policy: \"lpm\" orders the queue itself, expected \"fcfs\" "
          "{}",
          display_name(order_))};
    }
    // Source: sglang, PrefillAdder.add_one_req: since 0.5.13 (rem_chunk_tokens is None).
    cuts_within_limit_ = chunk_ != kNoChunks && !is_before(*site.stack, {0, 5, 13});
    conservativeness_ = spec.conservativeness.value_or(1.0);
    // Source: sglang, _handle_data_parallelism.
    constexpr double kGrouped = 0.3;
    if (site.stack->attention_groups > 1) conservativeness_ *= kGrouped;
    if (!(conservativeness_ >= 0) || !std::isfinite(conservativeness_)) {
      throw InputError{fmt::format(
          "scheduler sglang: conservativeness: expected at least 0, got {}", conservativeness_)};
    }
    init_ratio_ = std::min(kInitNewTokenRatio * conservativeness_, 1.0);
    min_ratio_ = std::min(init_ratio_ * kMinNewTokenRatioFactor, 1.0);
    ratio_ = init_ratio_;
  }

  void schedule(BatchBuilder& batch) override {
    if (batch.running().empty()) {
      // An idle server resets the ratio.
      ratio_ = init_ratio_;
      for (Forming& one : forming_) one.full = false;
    }
    if (chunked_ != kNoRequest && batch.sequence(chunked_).state != SequenceState::kRunning) {
      chunked_ = kNoRequest;
    }
    micro_batches_.form_next(batch, [&](std::int32_t at) { form(batch, at); });
  }

  [[nodiscard]] bool waits_for_reservation() const override { return waits_for_reservation_; }

  [[nodiscard]] BatchLimits limits() const override {
    return {
        .seqs = max_seqs_, .tokens = chunk_ == kNoChunks ? 0 : chunk_, .prompts_alone = !mixed_};
  }
  [[nodiscard]] std::string describe() const override {
    std::string text = fmt::format(
        "sglang, {}, max_running_requests {}",
        longest_prefix_ ? "longest cached prefix first" : display_name(order_), max_seqs_);
    text += chunk_ == kNoChunks ? std::string{", prompts whole"}
                                : fmt::format(", chunked_prefill_size {}", chunk_);
    if (conservativeness_ != 1) text += fmt::format(", conservativeness {}", conservativeness_);
    if (max_prefill_tokens_ != kMaxPrefillTokens) {
      text += fmt::format(", max_prefill_tokens {}", max_prefill_tokens_);
    }
    if (mixed_) text += ", mixed chunks";
    return text;
  }

 private:
  /// State of a micro-batch after its last iteration.
  struct Forming {
    bool full = false;        // batch_is_full
    bool prefilled = false;   // it had prompts
    std::size_t planned = 0;  // sequences
  };

  void form(BatchBuilder& batch, std::int32_t at) {
    at_ = at;
    Forming& now = forming_[static_cast<std::size_t>(at)];
    // A request that ends with its prompt leaves before the next batch is formed.
    if (now.prefilled && batch.idle().size() < now.planned) now.full = false;
    if (mixed_) line_.assign(batch.idle().begin(), batch.idle().end());
    now.prefilled = prefill(batch, now);
    if (!now.prefilled) {
      decode(batch, now);
    } else if (mixed_) {
      join_decodes(batch);
    }
    now.planned = batch.idle().size();
    if (!now.full) waits_for_reservation_ = false;
  }

  static constexpr std::int64_t kNoChunks = std::numeric_limits<std::int32_t>::max();

  /// max_new_tokens as clipped by the server: the longest sequence minus two tokens.
  [[nodiscard]] std::int64_t max_new(const Sequence& s) const {
    const std::int64_t room = std::max<std::int64_t>(0, max_model_len_ - 2 - s.prompt);
    return s.declared > 0 ? std::min<std::int64_t>(s.declared, room) : room;
  }
  [[nodiscard]] std::int64_t to_come(const Sequence& s) const {
    return std::clamp<std::int64_t>(max_new(s) - s.generated(), 0, kClipMaxNewTokens);
  }
  [[nodiscard]] std::int64_t paged(std::int64_t tokens) const {
    return (tokens + page_ - 1) / page_ * page_;
  }

  /// Units reserved for running requests.
  [[nodiscard]] double reserved(BatchBuilder& batch) const {
    double sum = 0;
    for (const RequestId id : batch.idle()) {
      if (id == chunked_) continue;
      const Sequence& s = batch.sequence(id);
      const std::int64_t more =
          batch.units_for(s.target, s.computed + to_come(s)) - batch.units_held(id);
      if (more > 0) sum += static_cast<double>(more) * ratio_;
    }
    return sum;
  }

  /// Writes the queue in its service order to line_; returns false if it is already in this order.
  [[nodiscard]] bool sort_queue(BatchBuilder& batch) {
    if (!longest_prefix_ || batch.waiting() > kLongestQueueToSort) return false;
    by_prefix_.clear();
    std::int32_t place = 0;
    for (const RequestId id : batch.first_waiting(batch.waiting())) {
      by_prefix_.push_back({.cached = 0, .place = place++, .id = id});
    }
    for (Match& m : by_prefix_) m.cached = batch.cached_tokens(m.id);
    std::sort(by_prefix_.begin(), by_prefix_.end(), [](const Match& a, const Match& b) {
      return a.cached != b.cached ? a.cached > b.cached : a.place < b.place;
    });
    return true;
  }

  bool prefill(BatchBuilder& batch, Forming& now) {
    if ((now.full || batch.waiting() == 0) && chunked_ == kNoRequest) return false;
    const bool has_chunked = chunked_ != kNoRequest && batch.sequence(chunked_).micro_batch == at_;
    const std::int64_t decoding = std::ssize(batch.idle()) - (has_chunked ? 1 : 0);
    if (decoding >= max_seqs_ && chunked_ == kNoRequest) {
      now.full = true;
      return false;
    }
    double reserve = reserved(batch);
    const std::int64_t joining = mixed_ ? decoding : 0;
    std::int64_t tokens_left = max_prefill_tokens_ - joining;
    std::int64_t chunk_left = chunk_ - joining;
    if (chunk_left < page_) return false;
    std::int64_t taken = 0;
    if (chunked_ != kNoRequest) {
      const RequestId id = chunked_;
      const Sequence& s = batch.sequence(id);
      const auto tokens =
          static_cast<std::int32_t>(std::min<std::int64_t>(s.to_compute(), chunk_left));
      if (!batch.schedule(id, tokens)) {
        // For a method whose prompts need more memory during prefill than afterwards: decodes go
        // first.
        batch.preempt(id, {.to_back = false, .keeps_generated = false});
        chunked_ = kNoRequest;
        now.full = true;
        return false;
      }
      tokens_left -= paged(tokens);
      chunk_left -= paged(tokens);
      ++taken;
      if (tokens == s.to_compute()) {
        chunked_ = kNoRequest;
        reserve += static_cast<double>(future(batch, s));
      }
    }
    const bool sorted = sort_queue(batch);
    for (std::size_t i = 0; batch.waiting() > 0; ++i) {
      if (taken >= max_seqs_ - decoding) {
        now.full = true;
        break;
      }
      // A prompt may use up either limit before later ones.
      if (taken > 0 && (tokens_left <= 0 || chunk_left <= 0)) break;
      const RequestId id = sorted ? by_prefix_[i].id : batch.next_waiting();
      const Sequence& s = batch.sequence(id);
      const std::int32_t cached = batch.cached_tokens(id);
      const std::int64_t wanted = s.known - cached;
      // A single request always fits into the pool, no matter how much it may generate.
      const bool alone = batch.running().empty();
      const std::int64_t more = future(batch, s);
      const double whole = static_cast<double>(batch.units_for(s.known, s.known));
      const auto share = [&](std::int64_t tokens) {
        return whole * static_cast<double>(tokens) / static_cast<double>(s.known);
      };
      const double needed = share(wanted) + static_cast<double>(more) + reserve;
      if (exact_ && !alone) {
        if (!can_all_end(batch, s, wanted, reserve)) {
          now.full = true;
          break;
        }
      } else if (!alone && needed >= static_cast<double>(batch.free_units())) {
        now.full = true;
        waits_for_reservation_ = share(wanted) < static_cast<double>(batch.free_units());
        break;
      }
      if (!exact_ && !cuts_within_limit_ && paged(wanted) >= tokens_left && taken > 0) break;
      const bool cut = paged(wanted) > chunk_left;
      const std::int64_t tokens = cut ? chunk_left / page_ * page_ : wanted;
      if (tokens <= 0) break;
      // Prefix units that it does not share yet come from evictable ones: check again with these.
      const auto keep = static_cast<std::int64_t>(
          std::floor(reserve + static_cast<double>(more) + share(wanted - tokens)));
      const bool keeps = !alone && !exact_;
      if (!batch.admit(id, static_cast<std::int32_t>(tokens), keeps ? keep + 1 : 0)) {
        now.full = true;
        break;
      }
      ++taken;
      tokens_left -= paged(tokens);
      chunk_left -= paged(tokens);
      if (cut) {
        chunked_ = id;
        break;
      }
      reserve += static_cast<double>(more);
    }
    return taken > 0;
  }
  /// Returns whether `next`, with `wanted` tokens to compute, and all running requests can generate
  /// their declared tokens. Source: sglang, PrefillAdder.add_one_req_ignore_eos, v0.4.8 to v0.5.18;
  /// before 0.4.8 without a reserve, and with the remaining tokens of the next request in order.
  [[nodiscard]] bool can_all_end(BatchBuilder& batch, const Sequence& next, std::int64_t wanted,
                                 double reserve) {
    constexpr double kReserve = 1;  // IGNORE_EOS_RESERVE_TOKENS, per request
    const double free = static_cast<double>(batch.free_units()) / token_units_;
    const auto prompt = static_cast<double>(paged(wanted));
    if (reserves_exact_ && prompt > std::min(free, free - reserve / token_units_)) return false;
    ends_.clear();
    const auto add = [&](const Sequence& s) {
      const std::int64_t left = max_new(s) - s.generated();
      if (left > 0) ends_.push_back({.left = left, .held = s.known});
    };
    for (const RequestId id : batch.idle()) add(batch.sequence(id));
    add(next);
    std::stable_sort(ends_.begin(), ends_.end(),
                     [](const End& a, const End& b) { return a.left < b.left; });
    double freed = 0;
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      const auto rest = static_cast<double>(ends_.size() - i);
      const std::size_t at = reserves_exact_ ? i : std::min(i + 1, ends_.size() - 1);
      const double left = free - prompt + freed - static_cast<double>(ends_[at].left) * rest;
      if (left <= (reserves_exact_ ? kReserve * rest : 0)) return false;
      freed += static_cast<double>(ends_[i].held);
    }
    return true;
  }

  /// Units that a sequence needs in addition to its prompt if it generates its maximum.
  [[nodiscard]] std::int64_t future(BatchBuilder& batch, const Sequence& s) const {
    return batch.units_for(s.known, s.known + to_come(s)) - batch.units_for(s.known, s.known);
  }

  /// Plans the sequences that ran before the prompts, in line_. Those without memory wait: the next
  /// iteration of decodes retracts.
  void join_decodes(BatchBuilder& batch) {
    const auto all = std::ssize(line_);
    for (std::size_t i = batch.schedule_decodes(0, all); i < line_.size(); ++i) {
      const RequestId id = line_[i];
      const Sequence& s = batch.sequence(id);
      if (s.state != SequenceState::kRunning || s.planned > 0) continue;
      if (!batch.schedule(id, s.to_compute())) break;
    }
  }

  void decode(BatchBuilder& batch, Forming& now) {
    if (batch.idle().size() < now.planned) now.full = false;
    line_.assign(batch.idle().begin(), batch.idle().end());
    bool retracted = false;
    const auto all = std::ssize(line_);
    for (std::size_t i = batch.schedule_decodes(0, all); i < line_.size(); ++i) {
      const RequestId id = line_[i];
      if (batch.sequence(id).state != SequenceState::kRunning) continue;
      while (!batch.schedule(id, batch.sequence(id).to_compute())) {
        retracted = true;
        if (retract(batch) == id) break;
      }
    }
    if (!retracted) {
      ratio_ = std::max(ratio_ - (init_ratio_ - min_ratio_) / kDecaySteps, min_ratio_);
      return;
    }
    now.full = false;
    std::int64_t generated = 0, max = 0;
    for (const RequestId id : batch.idle()) {
      generated += batch.sequence(id).generated() + kRetractDecodeSteps;
      max += max_new(batch.sequence(id));
    }
    ratio_ = std::min(1.0, static_cast<double>(generated) / static_cast<double>(max + 1));
  }

  /// Retracts one request to the queue, the cheapest to recompute or the last in order, and returns
  /// it.
  RequestId retract(BatchBuilder& batch) const {
    const RequestId victim = order_ == QueueOrder::kFcfs ? cheapest(batch) : batch.last_in_order();
    batch.preempt(victim, {.to_back = true, .keeps_generated = false});
    return victim;
  }

  [[nodiscard]] static RequestId cheapest(BatchBuilder& batch) {
    RequestId cheapest = batch.idle().front();
    for (const RequestId id : batch.idle()) {
      const Sequence& a = batch.sequence(id);
      const Sequence& b = batch.sequence(cheapest);
      if (std::pair{a.generated(), -a.prompt} <= std::pair{b.generated(), -b.prompt}) cheapest = id;
    }
    return cheapest;
  }

  struct Match {
    std::int32_t cached = 0;  // tokens
    std::int32_t place = 0;
    RequestId id = 0;
  };

  struct End {
    std::int64_t left = 0;  // tokens that it will generate
    std::int64_t held = 0;  // tokens that it holds
  };

  QueueOrder order_;
  bool caches_;  // the radix cache
  bool longest_prefix_;
  bool exact_;  // admission uses the number of tokens that requests generate
  bool reserves_exact_;
  double token_units_;
  bool cuts_within_limit_ = false;  // max_prefill_tokens does not refuse a prompt that is chunked
  std::int64_t max_model_len_, page_;
  std::int64_t max_seqs_ = 0, chunk_ = 0, max_prefill_tokens_ = 0;
  bool mixed_ = false;
  double conservativeness_ = 1;
  double init_ratio_ = 0, min_ratio_ = 0, ratio_ = 0;  // new_token_ratio
  bool waits_for_reservation_ = false;                 // because of future tokens
  MicroBatches micro_batches_;
  std::vector<Forming> forming_;    // per micro-batch
  std::int32_t at_ = 0;             // the micro-batch being formed
  RequestId chunked_ = kNoRequest;  // the one with a chunked prompt
  std::vector<RequestId> line_;
  std::vector<Match> by_prefix_;
  std::vector<End> ends_;
};

}  // namespace

std::unique_ptr<Scheduler> make_sglang(const SchedulerSpec& spec, const SchedulerContext& site) {
  return std::make_unique<Sglang>(spec, site);
}

}  // namespace kvsim
