#pragma once

// The choices of the select axis, one maker a file; the list is in choices.cpp.

#include <cstdint>
#include <memory>
#include <vector>

#include "models/methods/axis_choice.hpp"
#include "models/methods/learn/logit_average.hpp"

namespace kvsim {

AxisChoice select_all();
AxisChoice select_recent();
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
AxisChoice select_expected_attention();
AxisChoice select_lagkv();
AxisChoice select_random();
AxisChoice select_last_window();
AxisChoice select_critical();
AxisChoice select_chunked();
AxisChoice select_within_chunks();
AxisChoice select_block_wise();
AxisChoice select_periodic();
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

/// Entries above a percentile of their row stay (Scissorhands' released simulation): the rule and
/// its parameters, for select=pivotal and for Scissorhands' variant=percentile.
[[nodiscard]] std::shared_ptr<const SelectRule> make_pivotal(MethodResolver& settling);
[[nodiscard]] std::vector<ParamInfo> pivotal_params();

/// Most rows of attention that a selection may look back on: each is kept, a number an entry, and
/// no published setting is above 400.
inline constexpr double kMostRows = 65536;
inline constexpr const char* kRowsRange =
    "an integer in [1, 65536] (so many rows are kept, a number an entry)";

/// RoPE position of a cached key: its own, or its index in the cache.
[[nodiscard]] ParamInfo positions_param();

/// How column sums of the prompt's attention are produced.
[[nodiscard]] ParamInfo score_exec_param();
[[nodiscard]] ScoreExec score_exec_of(const std::string& word);

/// Settles the number of entries by the budget or, where none is given, by the parameter `name`,
/// which then says what was settled. Errors: refuses where both are given.
void settle_size(MethodResolver& settling, const std::string& name);

/// The size law of a prompt cut to `budget` entries once, with every later token appended.
[[nodiscard]] std::int64_t held_by_appending(std::int64_t budget, std::int64_t prompt,
                                             std::int64_t tokens);

/// The size law of batches that leave at once. From `start` entries each step adds one; at every
/// `period`-th step at which they are `trigger` or more (counted with the new one) they are cut to
/// `target` < `trigger`. Entries after step `n` >= 0.
struct Sawtooth {
  std::int64_t start = 0, trigger = 1, target = 0, period = 1;
  [[nodiscard]] std::int64_t held(std::int64_t n) const;
};

/// A sequence of `prompt` tokens at `tokens`: decode steps taken.
[[nodiscard]] inline std::int64_t decode_steps(std::int64_t prompt, std::int64_t tokens) {
  return tokens > prompt ? tokens - prompt : 0;
}
/// Parameters of a LogitAverage, for the choices that keep one, and what they settle to where
/// `recent` last tokens are protected.
[[nodiscard]] std::vector<ParamInfo> logit_average_params();
[[nodiscard]] LogitAverageSettings settle_logit_average(MethodResolver& settling,
                                                        std::int64_t recent);

}  // namespace kvsim
