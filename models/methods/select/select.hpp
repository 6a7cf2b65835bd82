#pragma once

// The choices of the select axis, one maker per file; the list is in choices.cpp.

#include <cstdint>
#include <memory>
#include <vector>

#include "models/methods/axis_choice.hpp"
#include "models/methods/learn/logit_average.hpp"

namespace kvsim {

AxisChoice select_all();
AxisChoice select_recent();
AxisChoice select_separators();
AxisChoice select_accumulated();
AxisChoice select_window();
AxisChoice select_fusion();
AxisChoice select_last_row();
AxisChoice select_observed();
AxisChoice select_persistence();
AxisChoice select_pivotal();
AxisChoice select_gumbel();
AxisChoice select_logit_average();
AxisChoice select_key_runs();
AxisChoice select_knorm();
AxisChoice select_keydiff();
AxisChoice select_cur();
AxisChoice select_triattention();
AxisChoice select_leverage();
AxisChoice select_non_causal();
AxisChoice select_compactor();
AxisChoice select_qfilter();
AxisChoice select_capkv();
AxisChoice select_expected_attention();
AxisChoice select_lagkv();
AxisChoice select_random();
AxisChoice select_last_window();
AxisChoice select_critical();
AxisChoice select_chunked();
AxisChoice select_within_chunks();
AxisChoice select_block_wise();
AxisChoice select_periodic();
AxisChoice select_prefill_decoding();
AxisChoice select_finch();
AxisChoice select_recurrence();
AxisChoice select_r_kv();
AxisChoice select_lazy_layers();
AxisChoice select_streaming_heads();
AxisChoice select_oracle_future();
AxisChoice select_kvzip();
AxisChoice select_kvzip_plus();
AxisChoice select_kvzap();
AxisChoice select_dms();
AxisChoice select_dmc();
AxisChoice select_pyramid_infer();

/// Keeps entries above a percentile of their row (Scissorhands's released simulation): the rule and
/// its parameters, for select=pivotal and for Scissorhands's variant=percentile.
[[nodiscard]] std::shared_ptr<const SelectRule> make_pivotal(MethodResolver& resolver);
[[nodiscard]] std::vector<ParamInfo> pivotal_params();

/// Maximum number of past attention rows that a selection may use. Each is stored as one number per
/// entry; published settings are at most 400.
inline constexpr double kMaxRows = 65536;
inline constexpr const char* kRowsRange =
    "an integer in [1, 65536] (rows that are kept, one number per entry)";

/// RoPE position of a cached key: its original position or its index in the cache.
[[nodiscard]] ParamInfo positions_param();
/// The same for selections that only cut the prompt: kept keys are moved once, at its end.
[[nodiscard]] ParamInfo prompt_positions_param();

/// How column sums of the prompt's attention are computed.
[[nodiscard]] ParamInfo score_exec_param();
[[nodiscard]] ScoreExec score_exec_of(const std::string& word);

/// Sets the number of entries from the budget or, without a budget, from the parameter `name`, and
/// records it as the value of `name`. Errors: refuses if both are given.
void resolve_size(MethodResolver& resolver, const std::string& name);

/// The size law of a prompt that is cut to `budget` entries once; every later token is appended.
[[nodiscard]] std::int64_t held_by_appending(std::int64_t budget, std::int64_t prompt,
                                             std::int64_t tokens);

/// The size law of batch eviction. Starting at `start` entries, each step adds one. At every
/// `period`-th step with at least `trigger` entries (the new one included), the cache is cut to
/// `target` < `trigger` entries. held(n) returns the entries after step `n` >= 0.
struct Sawtooth {
  std::int64_t start = 0, trigger = 1, target = 0, period = 1;
  [[nodiscard]] std::int64_t held(std::int64_t n) const;
};

/// Decode steps taken by a sequence with a prompt of `prompt` tokens and `tokens` tokens in total.
[[nodiscard]] inline std::int64_t decode_steps(std::int64_t prompt, std::int64_t tokens) {
  return tokens > prompt ? tokens - prompt : 0;
}
/// Parameters of a LogitAverage for choices that use it, and the resolved settings if the `recent`
/// last tokens are protected.
[[nodiscard]] std::vector<ParamInfo> logit_average_params();
[[nodiscard]] LogitAverageSettings resolve_logit_average(MethodResolver& resolver,
                                                         std::int64_t recent);

}  // namespace kvsim
