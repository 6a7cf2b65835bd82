#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/math/attention/causal_attention.hpp"
#include "models/math/attention/rope.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/session/kept_entry.hpp"
#include "models/methods/session/session.hpp"
#include "sim/replay/step_sample.hpp"

namespace kvsim {

/// Entries, bytes and traffic of one stored head at one decode step.
struct HeadCost {
  std::int32_t held = 0;  // entries, after compression
  std::int32_t attended = 0;
  double entries_read = 0;          // of the attended entries: all, except for methods that read
                                    // only a part
  std::int32_t max_read = 0;        // largest number that one query head reads
  CacheBytes bytes;                 // after compression
  std::int64_t attended_bytes = 0;  // K and V of the attended entries
  double read = 0, written = 0, link = 0, extra_flops = 0;
};

/// Results of one stored head under a method, step by step.
struct HeadSeries {
  std::int32_t layer = 0;
  std::int32_t first_query = 0;  // first query head that it serves, within its KV head's group
  std::int32_t queries = 1;
  std::int64_t entries_after_prefill = 0;
  CacheBytes bytes_after_prefill;
  std::vector<HeadCost> costs;   // [steps]
  std::vector<float> rel_error;  // [measured steps, queries], as the next four
  std::vector<float> cosine;
  std::vector<float> retained_mass;             // empty if the method does not define it
  std::vector<float> best_mass;                 // likewise; filled by add_best_mass
  std::vector<float> retrieved;                 // of HeadReference, or empty
  std::vector<std::vector<std::int32_t>> kept;  // at the end: member positions per entry
  std::vector<KeptEntry> why;                   // at the end: the rule that keeps each entry
  // Positions of entries in the order in which they were written, if requested.
  std::vector<std::int32_t> slots_after_prefill, slots;
  TierTrip trip;                  // likewise
  PrefillOutcome prompt_outcome;  // likewise
  Counts counts;                  // of the whole session, on its first head
};

/// The full cache's attention, with which a stored head is compared: causal_attention of its KV
/// head from row `prompt`.
struct HeadReference {
  const CausalAttention* attention = nullptr;
  std::int32_t group = 1;              // query heads of the KV head
  std::int32_t first_query = 0;        // first query head of the group that the stored head serves
  std::span<const float> retrieved{};  // [rows, group]: largest_in_context; empty without answers
};

/// Lets `threads` threads (0: all) compute the heads of `session`. For methods that decide for a
/// whole layer, which is then a single task.
void share_threads(CacheSession& session, std::int32_t threads);

/// Replays the prefilled heads of `session` to the end of the trace and fills one series per head.
///
/// rel_error = |o' - o| / |o| (0 if both are zero, 1 if only o is zero). cosine of both, with 1 and
/// 0 in these cases. retained_mass: share of the full row's probability on the entries that are
/// read. All three are computed at the steps of `sample`. Errors: ContractError if shapes disagree.
[[nodiscard]] std::vector<HeadSeries> replay_session(const ComposedMethod& method,
                                                     CacheSession& session,
                                                     std::span<const HeadVectors> heads,
                                                     std::span<const HeadReference> references,
                                                     const StepSample& sample, bool want_kept,
                                                     bool want_slots = false);

/// Replays a single KV head, for methods that decide per head. Returns one series per stored head
/// (one, or one per query head).
[[nodiscard]] std::vector<HeadSeries> replay_head(const ComposedMethod& method, std::int32_t layer,
                                                  const HeadVectors& head,
                                                  const CausalAttention& reference,
                                                  PromptScores& group_scores, const Rope* rope,
                                                  bool want_kept);

/// Returns queries first … first + queries - 1 of the group as a separate group.
[[nodiscard]] HeadVectors part_of(const HeadVectors& head, std::int32_t first,
                                  std::int32_t queries);

}  // namespace kvsim
