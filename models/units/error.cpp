#include "models/units/error.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/excerpt.hpp"

namespace kvsim {
namespace {

std::string lower(std::string_view text) {
  std::string out{text};
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Returns the number of insertions, deletions, replacements and swaps of adjacent letters that
/// turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

/// Whether `b` is a likely misspelling of `a`: of the same class (vowels, other letters, digits),
/// an adjacent key in a row, or o and 0.
bool is_near(char a, char b) {
  constexpr std::string_view kVowels = "aeiouy";
  constexpr std::string_view kRows = "1234567890 qwertyuiop asdfghjkl zxcvbnm";
  const auto class_of = [&](char c) {
    if (kVowels.find(c) != std::string_view::npos) return 'v';
    const auto byte = static_cast<unsigned char>(c);
    return std::isdigit(byte) != 0 ? 'd' : std::isalpha(byte) != 0 ? 'l' : 'o';
  };
  const auto next = [&](char left, char right) {
    return kRows.find(std::string{left, right}) != std::string_view::npos;
  };
  const auto zero = [](char letter, char digit) { return letter == 'o' && digit == '0'; };
  return class_of(a) == class_of(b) || next(a, b) || next(b, a) || zero(a, b) || zero(b, a);
}

/// Whether `word` may be a misspelling of `name` at this edit distance. Short words allow one edit,
/// and only between similar letters: "name" does not match "nvme".
bool is_slip(std::string_view word, std::string_view name, std::size_t distance) {
  constexpr std::size_t kShort = 5;
  if (word.size() > kShort) return distance <= std::max<std::size_t>(2, word.size() / 3);
  if (distance == 0) return true;
  if (distance > 1 || word.size() < 2) return false;
  if (word.size() != name.size()) return true;  // one letter inserted or deleted
  const auto [a, b] = std::mismatch(word.begin(), word.end(), name.begin());
  const bool swapped = a + 1 != word.end() && *(a + 1) != *(b + 1);
  return swapped || is_near(*a, *b);
}

constexpr std::size_t kLongestWordShown = 80;
constexpr std::size_t kMaxNamesShown = 40;  // listing all models would fill a page
constexpr std::size_t kMaxNameBytesShown = 800;

constexpr std::size_t kLongestMessage = 4096;
constexpr std::size_t kTailOfMessage = 1024;

bool continues_sequence(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// Returns the number of bytes up to `at`, excluding a UTF-8 sequence that ends after it.
std::size_t sequence_boundary(std::string_view text, std::size_t at) {
  constexpr std::size_t kLongestSequence = 4;
  for (std::size_t back = 0; back < kLongestSequence && back < at; ++back) {
    if (!continues_sequence(text[at - back])) return at - back;
  }
  return at;  // not UTF-8
}

/// Truncates the message to kLongestMessage bytes. what() ends at the first NUL, which a JSON text
/// may contain.
std::string bounded(std::string text) {
  std::replace(text.begin(), text.end(), '\0', ' ');
  if (text.size() <= kLongestMessage) return text;
  const std::size_t head = sequence_boundary(text, kLongestMessage - kTailOfMessage);
  const std::size_t tail = sequence_boundary(text, text.size() - kTailOfMessage);
  return fmt::format("{} ... ({} bytes left out) ... {}", text.substr(0, head), tail - head,
                     text.substr(tail));
}

}  // namespace

InputError::InputError(const std::string& message) : std::runtime_error{bounded(message)} {}

std::string excerpt(std::string_view text, std::size_t max) {
  if (text.size() <= max) return std::string{text};
  return std::string{text.substr(0, sequence_boundary(text, max))} + "...";
}

InputError::InputError(std::string_view place, std::string_view expected, std::string_view got)
    : InputError{fmt::format("{}: expected {}, got {}", place, expected, got)} {}

std::string nearest(std::string_view word, std::span<const std::string> known) {
  const std::string wanted = lower(word.substr(0, kLongestWordShown));
  std::size_t best = std::string::npos;
  std::string answer;
  for (const std::string& candidate : known) {
    const std::string name = lower(candidate);
    const std::size_t distance = edit_distance(wanted, name);
    if (distance < best && is_slip(wanted, name, distance)) {
      best = distance;
      answer = candidate;
    }
  }
  return answer;
}

std::string unknown_name(std::string_view kind, std::string_view word,
                         std::span<const std::string> known) {
  const std::string shown = excerpt(word, kLongestWordShown);
  const std::string near = nearest(word, known);
  if (!near.empty())
    return fmt::format("unknown {} \"{}\"; did you mean \"{}\"?", kind, shown, near);
  std::vector<std::string> sorted{known.begin(), known.end()};
  std::sort(sorted.begin(), sorted.end());
  std::size_t shown_names = 0;
  for (std::size_t bytes = 0; shown_names < std::min(sorted.size(), kMaxNamesShown);
       ++shown_names) {
    bytes += sorted[shown_names].size();
    if (shown_names > 0 && bytes > kMaxNameBytesShown) break;
  }
  if (const std::size_t more = sorted.size() - shown_names; more > 0) {
    sorted.resize(shown_names);
    sorted.push_back(fmt::format("and {} more", more));
  }
  return fmt::format("unknown {} \"{}\"{}", kind, shown,
                     sorted.empty() ? "" : fmt::format(" ({})", fmt::join(sorted, ", ")));
}

std::string ambiguous_name(std::string_view kind, std::string_view word,
                           std::span<const std::string> candidates) {
  constexpr std::size_t kMaxCandidates = 8;
  const std::size_t shown = std::min(candidates.size(), kMaxCandidates);
  return fmt::format(
      "{} \"{}\" is ambiguous; one of {}{}", kind, excerpt(word),
      fmt::join(candidates.first(shown), ", "),
      shown < candidates.size() ? fmt::format(", and {} more", candidates.size() - shown) : "");
}

}  // namespace kvsim
