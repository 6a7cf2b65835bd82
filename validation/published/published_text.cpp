#include "validation/published/published_text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace kvsim {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_alpha(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '%';
}

std::int64_t whole(double value) { return std::llround(value); }

constexpr double kMaxStatedTokens = 1e9;  // above the length of any prompt or output

std::optional<std::int64_t> as_count(std::optional<double> value) {
  if (!value || *value < 0 || *value > kMaxStatedTokens || *value != std::floor(*value)) {
    return std::nullopt;
  }
  return whole(*value);
}

/// Numbers in a text in order, without the contents of brackets.
std::vector<double> numbers_in(std::string_view text) {
  std::vector<double> out;
  for (const TextPart& part : parts_of(text)) {
    if (part.number) out.push_back(*part.number);
  }
  return out;
}

/// "8K" is 8,000, or 8,192 if only that is spelled out in the note.
std::int64_t resolved_count(std::string_view text, double value, std::string_view note) {
  const bool has_k = std::any_of(text.begin(), text.end(), [](char c) { return lower(c) == 'k'; });
  if (!has_k || value < 1000) return whole(value);
  const double binary = value / 1000 * 1024;
  bool decimal_named = false;
  bool binary_named = false;
  for (const double n : numbers_in(note)) {
    decimal_named = decimal_named || n == value;
    binary_named = binary_named || n == binary;
  }
  return whole(binary_named && !decimal_named ? binary : value);
}

}  // namespace

std::string plain_text(std::string_view text) {
  std::string out;
  for (const char c : text) out += lower(c);
  const auto first = out.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return out.substr(first, out.find_last_not_of(" \t\r\n") - first + 1);
}

std::string without_brackets(std::string_view text) {
  std::string out;
  int depth = 0;
  for (const char c : text) {
    if (c == '(') ++depth;
    if (depth == 0) out += c;
    if (c == ')' && depth > 0) --depth;
  }
  return plain_text(out);
}

bool has_text(std::string_view text, std::string_view part) {
  return plain_text(text).find(part) != std::string::npos;
}

bool has_word(std::string_view text, std::string_view word) {
  const std::string all = plain_text(text);
  const auto inside = [](char c) { return is_digit(c) || is_alpha(c); };
  for (auto at = all.find(word); at != std::string::npos; at = all.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !inside(all[at - 1])) && (end == all.size() || !inside(all[end]))) return true;
  }
  return false;
}

std::optional<double> number_of(std::string_view text) {
  std::string digits;
  for (const char c : plain_text(text)) {
    if (c != ',') digits += c;
  }
  double scale = 1;
  if (!digits.empty()) {
    const char last = digits.back();
    if (last == 'k') scale = 1e3;
    if (last == 'm') scale = 1e6;
    if (last == '%') scale = 0.01;
    if (scale != 1) digits.pop_back();
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() ||
      !std::isfinite(value)) {
    return std::nullopt;
  }
  return scale == 0.01 ? value / 100 : value * scale;
}

std::vector<TextPart> parts_of(std::string_view text) {
  std::vector<TextPart> out;
  const std::string all = plain_text(text);
  for (std::size_t at = 0; at < all.size();) {
    const char c = all[at];
    if (c == ',' || c == ';' || c == '(' || c == ')' || c == ':') {
      out.push_back({.word = std::string(1, c), .number = std::nullopt});
      ++at;
    } else if (is_word(c)) {
      std::size_t end = at;
      // A comma between digits belongs to a number: "128,000".
      while (end < all.size() &&
             (is_word(all[end]) ||
              (all[end] == ',' && end > at && is_digit(all[end - 1]) && end + 3 < all.size() &&
               is_digit(all[end + 1]) && is_digit(all[end + 2]) && is_digit(all[end + 3])))) {
        ++end;
      }
      std::string word = all.substr(at, end - at);
      while (word.size() > 1 && word.back() == '.') word.pop_back();
      TextPart part{.word = word, .number = number_of(word)};
      part.percent = part.number && word.back() == '%';
      out.push_back(std::move(part));
      at = end;
    } else {
      ++at;
    }
  }
  return out;
}

std::optional<double> number_at(std::string_view text, std::string_view name) {
  const std::vector<TextPart> parts = parts_of(text);
  const std::vector<TextPart> names = parts_of(name);
  if (names.empty() || parts.size() < names.size()) return std::nullopt;
  for (const bool after : {true, false}) {
    for (std::size_t at = 0; at + names.size() <= parts.size(); ++at) {
      const bool here =
          std::equal(names.begin(), names.end(), parts.begin() + static_cast<std::ptrdiff_t>(at),
                     [](const TextPart& a, const TextPart& b) { return a.word == b.word; });
      if (!here) continue;
      if (after && at + names.size() < parts.size() && parts[at + names.size()].number) {
        return parts[at + names.size()].number;
      }
      if (!after && at > 0 && parts[at - 1].number) return parts[at - 1].number;
    }
  }
  return std::nullopt;
}

std::optional<PromptText> parse_prompt(std::string_view text, std::string_view note) {
  const std::string outside = without_brackets(text);
  PromptText out;
  if (outside == "short") {
    out.is_short = true;
    out.tokens = kShortPrompt;
    if (const auto room = as_count(number_at(text, "allocated for"))) out.allocated = room;
    return out;
  }
  if (outside.starts_with('-') || has_text(text, "<") || has_text(text, "up to")) {
    return std::nullopt;  // negative, or an upper bound
  }
  std::vector<double> numbers = numbers_in(outside);
  if (numbers.empty()) {
    // "LongBench avg (about 6K)": the mean is in the brackets.
    const auto about = number_at(text, "about");
    if (!about) return std::nullopt;
    numbers = {*about};
  }
  if (numbers.size() != 1) return std::nullopt;
  const auto count = as_count(numbers.front());
  if (!count || *count < 1) return std::nullopt;
  out.total = has_word(outside, "total");
  out.tokens = resolved_count(text, numbers.front(), note);
  return out;
}

std::optional<OutputText> parse_output(std::string_view text, std::int64_t prompt) {
  const std::string outside = without_brackets(text);
  OutputText out;
  if (outside.starts_with('-')) return std::nullopt;
  std::vector<std::int64_t> counts;
  std::string spaced = outside;  // "20K-54K" is two numbers
  std::replace(spaced.begin(), spaced.end(), '-', ' ');
  for (const double n : numbers_in(spaced)) {
    const auto count = as_count(n);
    if (!count) return std::nullopt;
    counts.push_back(*count);
  }
  if (counts.empty() && (has_word(outside, "prefill") || has_word(outside, "prompt"))) return out;
  if (has_word(outside, "decode")) {
    out.steady = out.by_context = true;
    out.tokens = 1;
    if (!counts.empty()) out.context = counts.front();
    return out;
  }
  if (counts.empty() || counts.size() > 2) return std::nullopt;
  const bool is_range = counts.size() == 2;
  if (is_range && counts[0] > 0 && counts[0] >= prompt) {  // context lengths, not output lengths
    out.by_context = true;
    out.context = counts[0];
    out.tokens = counts[1] - counts[0];
  } else if (is_range) {
    out.tokens = whole(static_cast<double>(counts[0] + counts[1]) / 2);
  } else if (outside.starts_with("to ")) {
    out.by_context = true;
    out.tokens = counts[0] - prompt;
  } else {
    out.tokens = counts[0];
    out.by_context = has_text(text, "(to ");
  }
  if (out.tokens < 0) return std::nullopt;
  return out;
}

std::optional<BatchText> parse_batch(std::string_view text, std::string_view note) {
  const std::string outside = without_brackets(text);
  BatchText out;
  out.power_of_two = has_text(note, "power-of-2") || has_text(note, "power of 2") ||
                     has_text(note, "power of two");
  if (has_text(outside, "in-flight") || has_text(outside, "continuous")) {
    out.as_many_as_fit = out.in_flight = true;
    return out;
  }
  if (has_text(outside, "fit") || has_word(outside, "max") || has_text(outside, "until oom")) {
    out.as_many_as_fit = true;
    return out;
  }
  const std::vector<double> numbers = numbers_in(outside);
  if (outside.starts_with('-') || numbers.size() != 1) return std::nullopt;
  const auto count = as_count(numbers.front());
  if (!count || *count < 1) return std::nullopt;
  out.sequences = *count;
  out.power_of_two = false;
  out.in_flight = has_word(outside, "concurrency");
  return out;
}

std::optional<FormatText> parse_format(std::string_view text) {
  const std::string outside = without_brackets(text);
  const std::vector<TextPart> parts = parts_of(outside);
  if (parts.empty()) return std::nullopt;
  const std::string& first = parts.front().word;
  const auto by_bits = [](int bits) -> std::optional<Dtype> {
    if (bits == 2) return Dtype::kInt2;
    if (bits == 4) return Dtype::kInt4;
    if (bits == 8) return Dtype::kInt8;
    if (bits == 16) return Dtype::kFp16;
    return std::nullopt;
  };
  FormatText out;
  // W4A8KV4: bits of weights, activations, cache.
  if (first.size() >= 4 && first[0] == 'w' && is_digit(first[1])) {
    std::array<int, 3> bits{0, 0, 0};
    constexpr std::array<std::string_view, 3> kTags{"w", "a", "kv"};
    std::string_view left = first;
    std::size_t read = 0;
    for (; read < kTags.size() && left.starts_with(kTags[read]); ++read) {
      left.remove_prefix(kTags[read].size());
      const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), bits[read]);
      if (error != std::errc{}) return std::nullopt;
      left.remove_prefix(static_cast<std::size_t>(end - left.data()));
    }
    const auto weights = by_bits(bits[0]);
    const auto activations = by_bits(bits[1]);
    if (!left.empty() || read < 2 || !weights || !activations) return std::nullopt;
    out.weights = *weights;
    out.activations = activations;
    if (read == 3) {
      if (!by_bits(bits[2])) return std::nullopt;
      out.cache = by_bits(bits[2]);
    }
    return out;
  }
  std::optional<Dtype> dtype = parse_dtype(first);
  if (first == "mxfp4" || first == "nvfp4") dtype = Dtype::kFp4;
  if (!dtype) return std::nullopt;
  out.weights = *dtype;
  out.weights_only = has_word(outside, "weights") || has_word(outside, "weight");
  if (out.weights_only && has_word(outside, "kv")) out.cache = dtype;
  for (const TextPart& part : parts) {
    if (part.word.size() < 2 || part.word[0] != 'g') continue;
    const auto group = as_count(number_of(std::string_view{part.word}.substr(1)));
    if (group && *group >= 1) out.group = static_cast<std::int32_t>(*group);
  }
  return out;
}

std::optional<double> bytes_in(std::string_view unit, std::string_view note, bool binary_document) {
  constexpr double kGi = 1024.0 * 1024.0 * 1024.0;
  const bool decimal = has_text(unit, "1e9") || has_text(note, "1e9");
  if (has_text(unit, "gib")) return kGi;
  if (has_text(unit, "mib")) return 1024.0 * 1024.0;
  if (has_word(unit, "gb")) {
    if (decimal || has_text(note, "decimal gb")) return 1e9;
    return binary_document || (has_text(note, "unit is gib")) ? kGi : 1e9;
  }
  if (has_word(unit, "mb")) return 1024.0 * 1024.0;
  return std::nullopt;
}

}  // namespace kvsim
