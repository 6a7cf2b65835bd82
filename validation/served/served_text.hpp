#pragma once

// Grammars of the cells of a table of serving runs. Text that is not understood results in nullopt.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvsim {

/// Lower case, without text in brackets, trimmed.
[[nodiscard]] std::string plain_cell(std::string_view cell);
/// Text in the last brackets of a cell, in lower case: "Llama (FP8)" is "fp8"; empty without
/// brackets.
[[nodiscard]] std::string bracketed(std::string_view cell);

/// All of `cell`, without brackets, as a number; nullopt for a blank or other text.
[[nodiscard]] std::optional<double> cell_number(std::string_view cell);
/// The same for a whole number of at least 1.
[[nodiscard]] std::optional<std::int64_t> cell_count(std::string_view cell);

/// A switch or an option of an engine: "--enable-prefix-caching", "max_num_seqs=256".
struct EngineOption {
  std::string name;                  // lower case, "_" for "-", without leading "--"
  std::string value;                 // as given; empty for a switch
  [[nodiscard]] bool is_on() const;  // a switch, or a value meaning yes
  [[nodiscard]] std::optional<double> number() const;
};
/// The options of a cell, separated by semicolons. An option given twice: both, in order.
[[nodiscard]] std::vector<EngineOption> parse_options(std::string_view cell);

/// Options that a list of unstated settings contains nevertheless: "max_num_seqs (128 in
/// siblings)".
[[nodiscard]] std::vector<EngineOption> parse_sibling_options(std::string_view cell);

/// Years since 2000 with the month as a fraction: "2025-05-11", "20260213", "2025-12..2026-02" (its
/// first month), "2024" (the middle of the year). nullopt if there is no year.
[[nodiscard]] std::optional<double> parse_date(std::string_view cell);

/// The version at the beginning of a cell, after "v" or a word (an engine's name): "v0.11.0",
/// "0.6.3.post2", "vLLM 0.5.2". nullopt for an image name or a date.
[[nodiscard]] std::optional<std::array<std::int32_t, 3>> parse_release(std::string_view cell);

/// "2P1D", prefill and decode engines: {2, 1}.
[[nodiscard]] std::optional<std::pair<std::int32_t, std::int32_t>> parse_apart(
    std::string_view cell);

/// "190-2019" anywhere in a cell: its two numbers.
struct TokenRange {
  std::int64_t low = 0, high = 0;
};
[[nodiscard]] std::optional<TokenRange> parse_range(std::string_view cell);

/// The number after `name` in "attention_dp=1 moe_ep=4": 4 for "moe_ep"; nullopt if there is none.
[[nodiscard]] std::optional<std::int64_t> number_behind(std::string_view cell,
                                                        std::string_view name);

/// "users+prompt+1500" with the values of its words; nullopt if a word has no value.
[[nodiscard]] std::optional<std::int64_t> cell_sum(
    std::string_view cell, const std::map<std::string, std::int64_t>& words);

}  // namespace kvsim
