#pragma once

// Grammars of the free-text cells of published figures. Text that is not understood results in
// nullopt and is never guessed.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/dtype.hpp"

namespace kvsim {

/// Lower case, trimmed.
[[nodiscard]] std::string plain_text(std::string_view text);
/// The same without text in brackets: "fp16 (inferred; …)" is "fp16".
[[nodiscard]] std::string without_brackets(std::string_view text);
/// Whether `text` contains `word` (lower case) as a separate word, in any case.
[[nodiscard]] bool has_word(std::string_view text, std::string_view word);
/// Whether `text` contains `part` (lower case) anywhere, ignoring case.
[[nodiscard]] bool has_text(std::string_view text, std::string_view part);

/// All of `text` as a number: "12", "1,024", "0.9", "60K" = 60,000, "1M" = 1,000,000, "5%" = 0.05.
[[nodiscard]] std::optional<double> number_of(std::string_view text);

/// A text as words and numbers, in order; punctuation that separates clauses is a separate word;
/// "=" and quotes count as blanks.
struct TextPart {
  std::string word;              // as written, lower case
  std::optional<double> number;  // if the word is a number
  bool percent = false;          // "5%" is 0.05 and a percentage
};
[[nodiscard]] std::vector<TextPart> parts_of(std::string_view text);
/// The number directly after (or else directly before) the words `name` within one clause: "budget
/// 1024, buffer 128" has "buffer" 128; "25% retrieval heads" has "retrieval heads" 0.25.
[[nodiscard]] std::optional<double> number_at(std::string_view text, std::string_view name);

/// The number of tokens of a prompt. "short" is a prompt that is negligible next to the output.
struct PromptText {
  std::int64_t tokens = 0;
  std::optional<std::int64_t> allocated{};  // "short (cache allocated for 8192)"
  bool total = false;                       // "4096 total": prompt and output together
  bool is_short = false;
};
constexpr std::int64_t kShortPrompt = 64;  // tokens assumed for "short"
/// Returns nullopt for a data set's name, an upper bound, or an empty cell. A binary "8K" is
/// recognized by 8192 in `note`.
[[nodiscard]] std::optional<PromptText> parse_prompt(std::string_view text, std::string_view note);

struct OutputText {
  std::int64_t tokens = 0;                // generated after the prompt
  bool steady = false;                    // one decode step at a context, not a whole generation
  bool by_context = false;                // stated as the context that is reached
  std::optional<std::int64_t> context{};  // "decode at 52K", "20K-54K": where decoding starts
};
/// For a prompt of `prompt` tokens: "512", "338 avg", "<=128", "decode", "decode at 52K", "prefill"
/// and "prompt only" (no tokens), "34K (to 54K total)", "to 54K", "20K-54K", "mean 290-291 (…)".
[[nodiscard]] std::optional<OutputText> parse_output(std::string_view text, std::int64_t prompt);

struct BatchText {
  std::int64_t sequences = 1;
  bool as_many_as_fit = false;
  bool in_flight = false;     // sequences come and go: lengths are spread evenly over their range
  bool power_of_two = false;  // the largest power of two that fits
};
/// "64", "concurrency 64", "max that fits", "as many as fit (…)", "raised until OOM", "in-flight".
[[nodiscard]] std::optional<BatchText> parse_batch(std::string_view text, std::string_view note);

/// Formats of weights, activations and cache named by a cell.
struct FormatText {
  Dtype weights = Dtype::kFp16;
  std::optional<Dtype> activations{};   // "W4A16"
  std::optional<Dtype> cache{};         // "W4A8KV4", "int4 weights+KV"
  std::optional<std::int32_t> group{};  // "int4 weights g32"
  bool weights_only = false;            // "int8 weights"
};
[[nodiscard]] std::optional<FormatText> parse_format(std::string_view text);

/// Bytes in one of `unit`: "GiB", "GB (GiB)" and "GiB (labelled GB)" are 2^30, "GB (1e9, …)" 1e9;
/// "MB/token" is 2^20. A bare "GB" is 1e9, unless the note states otherwise or `binary_document`:
/// other figures of the same document are known to be in GiB.
[[nodiscard]] std::optional<double> bytes_in(std::string_view unit, std::string_view note,
                                             bool binary_document);

}  // namespace kvsim
