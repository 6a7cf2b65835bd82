#pragma once

// The choices of the read axis, one maker per file; the list is in choices.cpp. A reader's cache
// holds all entries; its budget limits the entries that a step reads.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice read_quest();
AxisChoice read_oracle_step();
AxisChoice read_shadowkv();
AxisChoice read_rocket();
AxisChoice read_pq();
AxisChoice read_dsa();
AxisChoice read_blocks();
AxisChoice read_arkvale();
AxisChoice read_infllm();

/// Parameter `token_budget`: entries that a query reads if no budget is given.
[[nodiscard]] ParamInfo token_budget_param(std::int64_t value, std::string help,
                                           std::string source);
/// Returns the requested budget in entries read, or else `token_budget`, or the share `fallback` of
/// the prompt if that is 0. Resolves `token_budget`. Errors: refuses a budget together with
/// `token_budget`, and caches that drop entries or share them between layers, because readers need
/// all entries.
[[nodiscard]] std::int64_t resolve_token_budget(MethodResolver& resolver, double fallback);

/// Attends with q [group, d] over rows of keys and values; fills `out` and `log_sums` of `outcome`.
void attend_rows(GroupAttention& attention, std::span<const float> q, std::span<const float> keys,
                 std::span<const float> values, ReadOutcome& outcome);

/// Copies the rows of `pages` (ascending page numbers; `page` entries each, the last may be
/// shorter) to `keys` and `values`.
void gather_pages(const EntryTable& entries, std::span<const std::size_t> pages, std::int64_t page,
                  std::vector<float>& keys, std::vector<float>& values);

/// Number of query heads that share a stored head; 1 if the shape is unknown.
[[nodiscard]] std::int32_t group_of(const MethodResolver& resolver);

}  // namespace kvsim
