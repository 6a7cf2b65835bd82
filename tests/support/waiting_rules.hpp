#pragma once

// Work conservation under memory pressure: after each iteration of an engine, whether the first
// waiting request would have fit into it. Each scheduler defines "fit": these rules repeat its
// definition, from sequences and the size of the pool only, for the full cache without prefix
// caching. They call neither schedulers nor the batch builder nor KvCacheManager.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/units/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim::test {

/// An engine's settings that the rules need.
struct RuleSite {
  SchedulerSpec spec;
  std::int64_t blocks = 0;          // of the pool
  std::int64_t block_tokens = 16;   // full cache: a block of all layers
  std::int64_t stack_tokens = 512;  // the engine's prefill_chunk if the spec sets none
  std::int64_t longest = 0;         // prompt and largest output of any request
};

/// An iteration of an engine: the state before it and after it.
struct Formed {
  std::vector<RequestId> waited, waits;    // in the order of the queue
  std::vector<RequestId> ran;              // in the order of admission
  std::vector<RequestId> swapped, stays;   // swapped out, before and after, in the order of
                                           // preemption
  std::vector<RequestId> put_out;          // preempted or swapped out
  std::int64_t free_before = 0, free = 0;  // blocks
  std::int64_t planned = 0;                // tokens
  bool prefills = false;
};

/// Checks every iteration against the rule of its scheduler.
class WorkObserver : public CheckingObserver {
 public:
  WorkObserver(RuleSite site) : CheckingObserver{site.block_tokens}, site_{std::move(site)} {
    const SchedulerSpec& spec = site_.spec;
    max_seqs_ = spec.max_num_seqs.value();
    chunked_ = spec.chunked_prefill.value();
    if (spec.name == "sglang" ||
        spec.name == "trtllm") {  // they shorten requests that the pool cannot hold
      site_.longest = std::min(site_.longest, site_.blocks * site_.block_tokens);
    }
    if (chunked_) {
      budget_ = spec.max_num_batched_tokens.value();
    } else if (spec.name == "vllm-v0") {
      budget_ = std::max({site_.stack_tokens, std::int64_t{2048}, site_.longest});
    } else {
      budget_ = std::max(site_.stack_tokens, site_.longest);
    }
    const auto pool = static_cast<double>(site_.blocks);
    if (spec.name == "vllm-v1") {
      keep_ = static_cast<std::int64_t>(std::ceil(spec.watermark.value_or(0) * pool));
    } else if (spec.name == "vllm-v0") {
      keep_ = static_cast<std::int64_t>(std::floor(spec.watermark.value_or(0.01) * pool));
    }
  }

  void planned(const IterationView& v) override {
    CheckingObserver::planned(v);
    sequences_ = v.sequences;
    const Formed formed = follow(v);
    if (!formed.waits.empty()) ++iterations_with_waiting;
    judge(v, formed);
    last_running_ = v.running.size();
  }
  void ended(const IterationView& v) override {
    CheckingObserver::ended(v);
    ran_.assign(v.running.begin(), v.running.end());
    for (std::size_t i = 0; i < v.sequences->size(); ++i) {
      computed_[i] = (*v.sequences)[i].computed;
      target_[i] = (*v.sequences)[i].target;
    }
  }

  std::int64_t iterations_with_waiting = 0;  // iterations
  std::int64_t for_memory = 0;  // of these, iterations in which only memory prevented admission of
                                // the first request
  std::int64_t exempt = 0;      // iterations without admission because a sequence was preempted

 private:
  [[nodiscard]] const Sequence& at(RequestId id) const {
    return (*sequences_)[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::int64_t blocks(std::int64_t tokens) const {
    return (tokens + site_.block_tokens - 1) / site_.block_tokens;
  }
  /// Tokens in whole blocks.
  [[nodiscard]] std::int64_t paged(std::int64_t tokens) const {
    return blocks(tokens) * site_.block_tokens;
  }

  Formed follow(const IterationView& v) {
    const std::size_t n = v.sequences->size();
    came_.resize(n);
    computed_.resize(n);
    target_.resize(n);
    Formed f;
    std::vector<RequestId> came;
    for (std::size_t i = 0; i < n; ++i) {
      const SequenceState now = (*v.sequences)[i].state;
      if (came_[i] || now == SequenceState::kComing) continue;
      came_[i] = true;
      if (now != SequenceState::kEnded) came.push_back(static_cast<RequestId>(i));
    }
    std::sort(came.begin(), came.end(),
              [&](RequestId a, RequestId b) { return at(a).rank < at(b).rank; });
    queue_.insert(queue_.end(), came.begin(), came.end());
    f.waited = in_order(queue_);
    f.ran = ran_;
    f.free_before = f.free = site_.blocks;
    std::vector<RequestId> recomputed, left;
    for (const RequestId id : ran_) {
      f.free_before -= blocks(computed_[static_cast<std::size_t>(id)]);
      if (at(id).state == SequenceState::kWaiting) recomputed.push_back(id);
      if (at(id).state == SequenceState::kSwapped) left.push_back(id);
    }
    f.put_out = recomputed;
    f.put_out.insert(f.put_out.end(), left.begin(), left.end());
    for (const RequestId id : v.running) f.free -= blocks(at(id).computed + at(id).planned);
    for (const Planned& p : v.plan) {
      f.planned += p.tokens;
      f.prefills = f.prefills || at(p.id).prefills();
    }

    std::erase_if(queue_, [&](RequestId id) { return at(id).state != SequenceState::kWaiting; });
    by_leaving(recomputed);
    queue_.insert(site_.spec.name == "sglang" ? queue_.end() : queue_.begin(), recomputed.begin(),
                  recomputed.end());
    f.waits = in_order(queue_);

    f.swapped = swapped_;
    by_leaving(left);
    swapped_.insert(swapped_.end(), left.rbegin(), left.rend());
    std::erase_if(swapped_, [&](RequestId id) { return at(id).state != SequenceState::kSwapped; });
    f.stays = swapped_;
    return f;
  }
  /// Preempted sequences in the order of the queue after their return.
  void by_leaving(std::vector<RequestId>& who) const {
    if (site_.spec.order != QueueOrder::kFcfs) {
      who = in_order(std::move(who));
      return;
    }
    if (site_.spec.name == "vllm-v0" && chunked_) {
      // Decodes precede chunks in the list whose last sequence is preempted first.
      std::stable_partition(who.begin(), who.end(), [&](RequestId id) {
        const auto i = static_cast<std::size_t>(id);
        return computed_[i] >= target_[i];
      });
    }
    if (site_.spec.name != "sglang") return;
    std::reverse(who.begin(), who.end());
    std::stable_sort(who.begin(), who.end(), [&](RequestId a, RequestId b) {
      return std::pair{at(a).generated(), -at(a).prompt} <
             std::pair{at(b).generated(), -at(b).prompt};
    });
  }
  [[nodiscard]] std::vector<RequestId> in_order(std::vector<RequestId> line) const {
    const auto first = [&](RequestId id) -> std::int64_t {
      if (site_.spec.order == QueueOrder::kPriority) return at(id).priority;
      if (at(id).declared > 0) return at(id).declared;
      return std::numeric_limits<std::int64_t>::max();
    };
    if (site_.spec.order == QueueOrder::kFcfs) return line;
    std::sort(line.begin(), line.end(), [&](RequestId a, RequestId b) {
      return std::pair{first(a), at(a).rank} < std::pair{first(b), at(b).rank};
    });
    return line;
  }

  void judge(const IterationView& v, const Formed& f) {
    if (site_.spec.name == "sglang") return sglang(v, f);
    if (!f.put_out.empty()) ++exempt;
    if (site_.spec.name == "vllm-v1") return v1(v, f);
    if (site_.spec.name == "trtllm") return trtllm(v, f);
    chunked_ ? v0_chunks(v, f) : v0_whole(v, f);
  }

  /// Blocks that running prompts have yet to allocate.
  [[nodiscard]] std::int64_t owed(const IterationView& v) const {
    std::int64_t sum = 0;
    for (const RequestId id : v.running) {
      const Sequence& s = at(id);
      const std::int64_t done = std::int64_t{s.computed} + s.planned;
      if (done < s.target) sum += blocks(s.target) - blocks(done);
    }
    return sum;
  }
  void all_run(const IterationView& v) const {
    KVSIM_CHECK(v.plan.size() == v.running.size(), "{} of {} that run are planned", v.plan.size(),
                v.running.size());
  }
  void refuse(bool fits, RequestId id, std::int64_t wants, std::int64_t free) {
    KVSIM_CHECK(!fits, "request {} waits for {} blocks and {} are free", id, wants, free);
    ++for_memory;
  }

  /// Enough blocks above the watermark are free for a chunk of the remaining budget.
  void v1(const IterationView& v, const Formed& f) {
    const std::int64_t left = budget_ - f.planned;
    // By priority, a sequence that preempts itself ends the round.
    if (!f.put_out.empty()) return;
    if (left > 0) all_run(v);
    if (f.waits.empty() || std::ssize(v.running) >= max_seqs_) return;
    const RequestId id = f.waits.front();
    const std::int64_t known = at(id).known;
    const std::int64_t chunk = chunked_ ? std::min(known, left) : known <= left ? known : 0;
    if (chunk == 0) return;
    // Since 0.20 the whole prompt must fit, unless it would be the only running request.
    const bool whole = site_.spec.reserve_full_isl.value_or(true) && !v.running.empty();
    const std::int64_t wants = blocks(whole ? known : chunk) + keep_;
    refuse(wants <= f.free, id, wants, f.free);
  }

  /// Enough blocks above the watermark, and tokens, are available for the whole prompt, and no
  /// sequence is swapped out. It is checked before any decode. A swapped sequence returns if one
  /// block more than it had is free.
  void v0_whole(const IterationView& v, const Formed& f) {
    if (f.prefills) {
      KVSIM_CHECK(f.swapped.empty(), "{} are outside while prompts start", f.swapped.size());
      v0_first(f.waits, budget_ - f.planned, v.running.size(), f.free);
      return;
    }
    all_run(v);
    if (f.swapped.empty()) v0_first(f.waited, budget_, f.ran.size(), f.free_before);
    v0_outside(v, f, 0);
  }
  void v0_first(const std::vector<RequestId>& line, std::int64_t left, std::size_t run,
                std::int64_t free) {
    if (line.empty() || std::cmp_greater_equal(run, max_seqs_)) return;
    const std::int64_t known = at(line.front()).known;
    if (known > left) return;
    refuse(blocks(known) + keep_ <= free, line.front(), blocks(known) + keep_, free);
  }
  void v0_outside(const IterationView& v, const Formed& f, std::int64_t promised) {
    if (!f.put_out.empty() || f.stays.empty() || f.planned >= budget_ ||
        std::ssize(v.running) >= max_seqs_) {
      return;
    }
    // All blocks of a chunked prompt return together.
    const Sequence& s = at(f.stays.front());
    const std::int64_t tokens = s.computed < s.target ? s.target : s.computed;
    const std::int64_t wants = blocks(tokens) + keep_ + promised + 1;
    refuse(wants <= f.free, f.stays.front(), wants, f.free);
  }
  /// The blocks of the whole prompt are free in addition to those of running prompts.
  void v0_chunks(const IterationView& v, const Formed& f) {
    const std::int64_t left = budget_ - f.planned;
    if (left > 0) all_run(v);
    const std::int64_t promised = owed(v);
    v0_outside(v, f, promised);
    if (!f.put_out.empty() || f.waits.empty() || left == 0 || std::ssize(v.running) >= max_seqs_) {
      return;
    }
    const std::int64_t wants = blocks(at(f.waits.front()).known) + keep_ + promised;
    refuse(wants <= f.free, f.waits.front(), wants, f.free);
  }

  /// Guaranteed no evict: the blocks of its largest length are free in addition to blocks that
  /// other requests may still allocate. Max utilization: only the blocks of its prompt, in addition
  /// to the running prompts.
  void trtllm(const IterationView& v, const Formed& f) {
    const std::int64_t left = budget_ - f.planned;
    bool goes_on = true;  // every running prompt has a chunk in this iteration
    for (const RequestId id : v.running) {
      const bool chunk = at(id).prefills();
      goes_on = goes_on && (!chunk || at(id).planned > 0);
      KVSIM_CHECK(at(id).planned > 0 || (chunk && left < site_.block_tokens) || left == 0,
                  "request {} is left out with {} tokens to spare", id, left);
    }
    if (!f.put_out.empty() || !goes_on || f.waits.empty() || std::ssize(v.running) >= max_seqs_)
      return;
    const RequestId id = f.waits.front();
    const std::int64_t known = at(id).known;
    const bool whole = known <= left;
    if (!whole && (!chunked_ || left < site_.block_tokens)) return;
    std::int64_t wants = 0;
    if (site_.spec.policy == "max-utilization") {
      wants = blocks(known) + owed(v);
    } else {
      wants = blocks(max_tokens(at(id)));
      for (const RequestId one : v.running) {
        const Sequence& s = at(one);
        wants += std::max<std::int64_t>(0, blocks(max_tokens(s)) - blocks(s.computed + s.planned));
      }
    }
    refuse(wants <= f.free, id, wants, f.free);
  }
  [[nodiscard]] std::int64_t max_tokens(const Sequence& s) const {
    return s.declared > 0 ? std::min<std::int64_t>(s.prompt + s.declared, site_.longest)
                          : site_.longest;
  }

  /// Its prompt and its largest output fit in addition to new_token_ratio of the tokens that
  /// decoding sequences may still generate. After a refusal no request is checked until a sequence
  /// has left and one more decode has run.
  void sglang(const IterationView& v, const Formed& f) {
    constexpr std::int64_t kMaxPrefill = 16384;
    constexpr double kFirst = 0.7, kMin = 0.7 * 0.14, kSteps = 600;
    if (f.ran.empty()) {
      ratio_ = kFirst;
      full_ = false;
    }
    if (prefilled_ && f.ran.size() < last_running_) full_ = false;
    double reserve = 0;
    std::int64_t decoding = 0;
    for (const RequestId id : f.ran) {
      const auto i = static_cast<std::size_t>(id);
      if (computed_[i] < target_[i]) continue;  // its prompt is chunked
      ++decoding;
      const std::int64_t more =
          blocks(computed_[i] + to_come(at(id))) - blocks(std::int64_t{computed_[i]});
      reserve += static_cast<double>(std::max<std::int64_t>(0, more)) * ratio_;
    }
    if (f.prefills) {
      const bool mixed = chunked_ && site_.spec.mixed_chunk.value_or(false);
      const std::int64_t joining = mixed ? decoding : 0;
      std::int64_t left = kMaxPrefill - joining;
      std::int64_t chunk =
          (chunked_ ? budget_ : std::numeric_limits<std::int32_t>::max()) - joining;
      std::int64_t prompts = 0, decodes = 0;
      std::int64_t free = f.free;  // before decodes joined
      bool cut = false;
      for (const Planned& p : v.plan) {
        const Sequence& s = at(p.id);
        KVSIM_CHECK(mixed || s.prefills(), "request {} decodes together with prompts", p.id);
        ++(s.prefills() ? prompts : decodes);
        if (!s.prefills()) {
          free += blocks(std::int64_t{s.computed} + s.planned) - blocks(std::int64_t{s.computed});
          continue;
        }
        left -= paged(p.tokens);
        chunk -= paged(p.tokens);
        cut = cut || s.computed + s.planned < s.target;
        if (s.computed + s.planned == s.target) reserve += static_cast<double>(future(s));
      }
      KVSIM_CHECK(decodes == joining || (mixed && f.free == 0),
                  "{} of {} decodes join the prompts, {} blocks are free", decodes, joining,
                  f.free);
      if (!f.waits.empty() && !cut) {
        const Sequence& s = at(f.waits.front());
        if (prompts >= max_seqs_ - decoding) {
          full_ = true;
        } else if (left > 0 && chunk > 0) {
          const double wants = static_cast<double>(blocks(s.known) + future(s)) + reserve;
          const bool tokens = paged(s.known) < left && (paged(s.known) <= chunk || chunk >= 16);
          if (wants >= static_cast<double>(free)) {
            full_ = true;
            ++for_memory;
          } else {
            KVSIM_CHECK(!tokens, "request {} waits for {} blocks and {} are free", f.waits.front(),
                        wants, free);
          }
        }
      }
      prefilled_ = true;
      return;
    }
    all_run(v);
    if (!full_ && !f.waited.empty()) {
      const Sequence& s = at(f.waited.front());
      const double wants = static_cast<double>(blocks(s.known) + future(s)) + reserve;
      if (decoding < max_seqs_) {
        refuse(wants < static_cast<double>(f.free_before), f.waited.front(),
               static_cast<std::int64_t>(wants), f.free_before);
      }
      full_ = true;
    }
    if (f.ran.size() < last_running_) full_ = false;
    if (f.put_out.empty()) {
      ratio_ = std::max(ratio_ - (kFirst - kMin) / kSteps, kMin);
    } else {
      ++exempt;
      full_ = false;
      std::int64_t generated = 0, max = 0;
      for (const RequestId id : v.running) {
        generated += at(id).generated() + 20;
        max += max_new(at(id));
      }
      ratio_ = std::min(1.0, static_cast<double>(generated) / static_cast<double>(max + 1));
    }
    prefilled_ = false;
  }
  [[nodiscard]] std::int64_t max_new(const Sequence& s) const {
    const std::int64_t room = std::max<std::int64_t>(0, site_.longest - 2 - s.prompt);
    return s.declared > 0 ? std::min<std::int64_t>(s.declared, room) : room;
  }
  [[nodiscard]] std::int64_t to_come(const Sequence& s) const {
    return std::clamp<std::int64_t>(max_new(s) - s.generated(), 0, 4096);
  }
  [[nodiscard]] std::int64_t future(const Sequence& s) const {
    return blocks(s.known + to_come(s)) - blocks(s.known);
  }

  RuleSite site_;
  std::int64_t max_seqs_ = 0, budget_ = 0, keep_ = 0;
  bool chunked_ = true;
  const ActiveArray<Sequence>* sequences_ = nullptr;
  std::vector<RequestId> queue_, ran_, swapped_;
  std::vector<bool> came_;
  std::vector<std::int32_t> computed_, target_;  // when the last iteration ended
  std::size_t last_running_ = 0;
  // sglang's new_token_ratio and batch_is_full
  double ratio_ = 0.7;
  bool full_ = false, prefilled_ = false;
};

}  // namespace kvsim::test
