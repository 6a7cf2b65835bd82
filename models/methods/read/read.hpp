#pragma once

// The choices of the read axis, one maker a file; the list is in choices.cpp. A reader's cache
// holds everything: its budget is what a step reads.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice read_quest();
AxisChoice read_oracle_step();
AxisChoice read_shadowkv();

/// Parameter `token_budget`: entries a query reads, for who does not give a budget.
[[nodiscard]] ParamInfo token_budget_param(std::int64_t value, std::string help,
                                           std::string source);
/// The budget asked for, in entries read; else `token_budget`; else, where that is 0, `fallback` of
/// the prompt. Settles `token_budget`. Errors: refuses both at once, and caches that let entries go
/// or share them between layers, where what is read of would not be all.
[[nodiscard]] std::int64_t settle_token_budget(Settling& settling, double fallback);

/// Query heads that share a stored head; 1 where the shape is not known.
[[nodiscard]] std::int32_t group_of(const Settling& settling);

}  // namespace kvsim
