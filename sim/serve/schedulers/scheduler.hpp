#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/units.hpp"
#include "sim/serve/cache/active_array.hpp"
#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// What one sequence does in an iteration.
struct Planned {
  RequestId id = 0;
  std::int32_t tokens = 0;
};

/// How a sequence is preempted for recomputation.
struct Preemption {
  bool to_back = false;  // of a first-come-first-served queue; else to its front
  /// With prefix caching, all of its full blocks remain cached; otherwise only those that its last
  /// prefill computed.
  bool keeps_generated = true;
};

/// A scheduler's queries and operations while it forms an iteration. A refused operation changes
/// nothing. Indices into running() and idle() are valid until an operation removes (preempt,
/// swap_out) or adds (admit, swap_in) a sequence.
class BatchBuilder {
 public:
  virtual ~BatchBuilder() = default;

  [[nodiscard]] const Sequence& sequence(RequestId id) {
    const Sequence& s = (*sequences_)[static_cast<std::size_t>(id)];
    if (s.is_steady()) count_steady(id);
    return s;
  }
  /// sequence(id).prefills()
  [[nodiscard]] bool prefills(RequestId id) const {
    return (*sequences_)[static_cast<std::size_t>(id)].prefills();
  }
  /// Sequences that hold cache, in the order of their admission.
  [[nodiscard]] const std::vector<RequestId>& running() const { return running_; }
  /// Running sequences that may be planned or preempted; in a pipeline, those of the open
  /// micro-batch that are not in_flight.
  [[nodiscard]] const std::vector<RequestId>& idle() const { return piped_ ? idle_ : running_; }
  /// Sequences that have been planned for this iteration so far.
  [[nodiscard]] std::size_t planned() const { return plan_.size() + steady_planned_; }
  /// In a pipeline whose micro-batches have separate sequences: opens one, so that idle() has only
  /// its sequences and plans belong to it. Returns false if some of them are in flight.
  [[nodiscard]] virtual bool open(std::int32_t micro_batch) = 0;
  [[nodiscard]] virtual std::size_t waiting() const = 0;
  /// Head of the queue; waiting() > 0.
  [[nodiscard]] virtual RequestId next_waiting() const = 0;
  /// The first `max` of the queue, in its order.
  [[nodiscard]] virtual std::span<const RequestId> first_waiting(std::size_t max) = 0;
  /// Swapped-out sequences, in the order in which they left.
  [[nodiscard]] virtual const std::vector<RequestId>& swapped() const = 0;
  /// Returns the sequence of idle() that the queue's order serves last; under first come first
  /// served, the last admitted one. Errors: ContractError if idle() is empty.
  [[nodiscard]] virtual RequestId last_in_order() const = 0;

  /// Memory, in units of the pool: blocks, or bytes if layers hold different numbers of them.
  [[nodiscard]] virtual std::int64_t pool_units() const = 0;
  /// Units without a reference, cached prefixes included.
  [[nodiscard]] virtual std::int64_t free_units() const = 0;
  /// Peak units of a sequence with a prompt of `prompt` tokens until it has `tokens` tokens.
  [[nodiscard]] virtual std::int64_t units_for(std::int32_t prompt, std::int64_t tokens) = 0;
  [[nodiscard]] virtual std::int64_t units_held(RequestId id) = 0;
  /// Tokens of a waiting sequence that the prefix cache holds: whole blocks, leaving at least one
  /// token to compute. 0 without prefix caching.
  [[nodiscard]] virtual std::int32_t cached_tokens(RequestId id) = 0;
  [[nodiscard]] std::int64_t block_tokens() const { return block_tokens_; }
  /// Units of one block of rows in every layer.
  [[nodiscard]] std::int64_t block_units() const { return block_units_; }

  /// Plans `tokens` of a running sequence (1 if it decodes); returns false if memory is
  /// insufficient.
  [[nodiscard]] bool schedule(RequestId id, std::int32_t tokens) {
    Sequence& s = (*sequences_)[static_cast<std::size_t>(id)];
    if (s.is_steady()) stop_steady();
    if (s.computed + tokens > s.room && !make_room(id, tokens)) return false;
    s.planned = tokens;
    s.micro_batch = micro_batch_;
    plan_.push_back({id, tokens});
    return true;
  }
  /// Plans one token per sequence starting at idle()[first], for at most `max` sequences, until one
  /// computes a prompt, has drafts or needs an allocation. Returns their number. Equivalent to
  /// single calls of schedule() that each leave `keep_free` units free.
  [[nodiscard]] std::size_t schedule_decodes(std::size_t first, std::int64_t max,
                                             std::int64_t keep_free = 0) {
    const std::vector<RequestId>& ids = idle();
    const std::size_t end =
        std::min(ids.size(), first + static_cast<std::size_t>(std::max<std::int64_t>(0, max)));
    Sequence* const sequences = sequences_->data();
    std::size_t at = first == 0 ? schedule_steady(max, keep_free) : first;
    for (; at < end; ++at) {
      Sequence& s = sequences[ids[at]];
      if (s.prefills() || s.to_compute() != 1 || s.computed >= s.room) break;
      s.planned = 1;
      s.micro_batch = micro_batch_;
      plan_.push_back({ids[at], 1});
    }
    return at - first;
  }
  /// Admits a waiting sequence: tokens in the prefix cache count as computed (see cached_tokens),
  /// and `tokens` after them are planned. Returns false if the memory is not available, or fewer
  /// than `keep_free` units would be left.
  [[nodiscard]] virtual bool admit(RequestId id, std::int32_t tokens,
                                   std::int64_t keep_free = 0) = 0;
  /// Preempts a sequence for recomputation: its memory is freed and it waits again. Returns the
  /// tokens that had been planned for it.
  virtual std::int32_t preempt(RequestId id, Preemption how) = 0;
  std::int32_t preempt(RequestId id) { return preempt(id, {}); }
  /// Moves a sequence's cache to host memory; returns false if there is no room, nothing of it is
  /// computed yet, or it is already planned. The iteration waits for the link.
  [[nodiscard]] virtual bool swap_out(RequestId id) = 0;
  /// Moves it back; returns false if the memory is not available or fewer than `keep_free` units
  /// would be left.
  [[nodiscard]] virtual bool swap_in(RequestId id, std::int64_t keep_free = 0) = 0;

 protected:
  explicit BatchBuilder(ActiveArray<Sequence>& sequences) : sequences_{&sequences} {}
  [[nodiscard]] virtual bool make_room(RequestId id, std::int32_t tokens) = 0;
  /// Plans one token for each sequence at the head of idle() that the engine counts together
  /// (SteadyDecodes), if there are at most `max` and their new blocks leave `keep_free` units.
  /// Returns their number.
  [[nodiscard]] virtual std::size_t schedule_steady(std::int64_t max, std::int64_t keep_free) = 0;
  /// Writes the fields of one such sequence.
  virtual void count_steady(RequestId id) = 0;
  /// Ends the common count; each sequence is counted separately afterwards.
  virtual void stop_steady() = 0;

  ActiveArray<Sequence>* sequences_;
  std::vector<RequestId> running_;
  std::vector<RequestId> idle_;  // of running_, if piped_
  bool piped_ = false;           // several iterations are in flight
  std::int32_t micro_batch_ = 0;
  std::vector<Planned> plan_;
  std::size_t steady_planned_ = 0;  // sequences counted together; they are not in plan_,
  std::size_t steady_place_ = 0;    // but planned before this entry of it
  std::int64_t block_tokens_ = 1;
  std::int64_t block_units_ = 1;
};

/// Forms the iterations of an engine with continuous batching. It owns its state and has no access
/// to the number of tokens that a request will generate. Deterministic. Each scheduler supports
/// every QueueOrder, even if the engine that it models does not. Under any order except first come
/// first served, the last sequence in order is preempted.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Plans one iteration. If the plan is empty while sequences run or wait, the engine refuses a
  /// request that can never be served, so that nothing waits forever.
  virtual void schedule(BatchBuilder& batch) = 0;
  /// Returns whether, in the last iteration, the first waiting request's prompt would fit but waits
  /// because memory is reserved for future tokens of running sequences.
  [[nodiscard]] virtual bool waits_for_reservation() const { return false; }
  /// Longest prompt in tokens. Requests with longer prompts are rejected.
  [[nodiscard]] virtual std::int64_t longest_prompt() const {
    return std::numeric_limits<std::int64_t>::max();
  }
  /// The limits of an iteration.
  [[nodiscard]] virtual BatchLimits limits() const { return {}; }
  /// Its name and settings as run: "vllm-v1, max_num_seqs 256, …".
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// Inputs of a scheduler's defaults.
struct SchedulerContext {
  const Stack* stack = nullptr;     // as configured by the run
  std::int64_t max_model_len = 0;   // tokens of the longest sequence
  std::int64_t longest_prompt = 0;  // of the service's requests, tokens
  std::int64_t pool_units = 0;
  std::int64_t block_tokens = 1;
  std::int64_t block_units = 1;  // units of a block: 1, or its bytes
  // States are kept after whole blocks of this many tokens; 0: not kept.
  std::int64_t state_block = 0;
  // Number of sequences that a pool of states holds; 0: there is no pool.
  std::int64_t max_states = 0;
  Bytes host_memory{};  // for swapped caches
  // Iterations in flight: stages of a pipeline. Each schedule() that plans something forms the
  // next.
  std::int64_t stages = 1;
  std::int64_t drafts = 0;  // tokens proposed per sequence and step
  // Every request generates exactly its declared number of tokens, as with ignore_eos.
  bool exact_outputs = false;
};

struct SchedulerInfo {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<Scheduler> (*make)(const SchedulerSpec&, const SchedulerContext&);
  bool prefix_caching = false;  // default
  /// Requests beyond the longest sequence are cut there instead of refused, and the longest
  /// sequence is at most the pool.
  bool clips = false;
  /// Names of the members of SchedulerSpec that it supports.
  std::span<const std::string_view> options{};
  std::span<const std::string_view> policies{};  // values of SchedulerSpec::policy; default first
};
/// The schedulers with continuous batching.
[[nodiscard]] std::span<const SchedulerInfo> builtin_schedulers();
/// "static" and the names of builtin_schedulers().
[[nodiscard]] std::vector<std::string> scheduler_names();
/// Errors: InputError with the nearest known name; also for "static", which forms no iterations.
[[nodiscard]] const SchedulerInfo& find_scheduler(std::string_view name);
/// Returns the stack's own scheduler: "static" for stacks without a paged cache.
[[nodiscard]] std::string default_scheduler(const Stack& stack);

/// Errors: InputError if `spec` sets an option that scheduler `name` does not support; lists those
/// it supports.
void check_scheduler_options(const SchedulerSpec& spec, std::string_view name);
/// Errors: InputError "scheduler NAME: OPTION: expected at least LOW, got VALUE".
void expect_at_least(std::string_view scheduler, std::string_view option, std::int64_t value,
                     std::int64_t low);
/// Whether vLLM V0 computes prompts in chunks: if it is configured to, and by default if the
/// longest sequence has more than 32,768 tokens and requests are served first come first served.
/// Source: vllm 0.7.3, engine/arg_utils.py (create_engine_config).
[[nodiscard]] bool vllm_v0_chunks(const SchedulerSpec& spec, std::int64_t max_model_len);
/// Default token budget of its chunked mode.
inline constexpr std::int64_t kVllmV0ChunkTokens = 2048;
/// "first come first served", …
[[nodiscard]] std::string_view display_name(QueueOrder order);

// One line per scheduler; each is defined in a separate file in schedulers/.
[[nodiscard]] std::unique_ptr<Scheduler> make_vllm_v1(const SchedulerSpec& spec,
                                                      const SchedulerContext& site);
[[nodiscard]] std::unique_ptr<Scheduler> make_vllm_v0(const SchedulerSpec& spec,
                                                      const SchedulerContext& site);
[[nodiscard]] std::unique_ptr<Scheduler> make_sglang(const SchedulerSpec& spec,
                                                     const SchedulerContext& site);
[[nodiscard]] std::unique_ptr<Scheduler> make_trtllm(const SchedulerSpec& spec,
                                                     const SchedulerContext& site);

}  // namespace kvsim
