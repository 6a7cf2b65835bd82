#include "models/units/names.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kLongestWordShown = 80;
constexpr std::size_t kMaxExamples = 8;
constexpr std::size_t kShortestPart = 3;  // too many names contain shorter words

bool is_separator(char c) { return c == ' ' || c == '_' || c == '-'; }

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

/// Returns at most kMaxExamples of `names`, and the number of further ones.
std::string examples(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const std::size_t all = names.size();
  if (all > kMaxExamples) {
    names.resize(kMaxExamples);
    names.push_back(fmt::format("and {} more", all - kMaxExamples));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string folded_name(std::string_view name) {
  std::string out;
  for (const char c : name) out += is_separator(c) ? '-' : lower(c);
  return out;
}

std::string squeezed_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (!is_separator(c)) out += lower(c);
  }
  return out;
}

std::string unknown_entry(const KnownNames& known, std::string_view word) {
  std::string shown{word.substr(0, kLongestWordShown)};
  if (word.size() > kLongestWordShown) shown += "...";
  const std::string head = fmt::format("unknown {} \"{}\"", known.kind, shown);
  std::vector<std::string> all = known.names;
  all.insert(all.end(), known.aliases.begin(), known.aliases.end());
  std::string near = nearest(word, all);
  const std::size_t slash = word.rfind('/');
  const std::string_view last = slash == std::string_view::npos ? word : word.substr(slash + 1);
  if (near.empty() && last.size() < word.size()) near = nearest(last, all);
  // A name that starts with the word is more likely than one that differs by a letter ("h10": H100,
  // not H20).
  const std::string part = squeezed_name(last);
  const auto begins_with_part = [&](const std::string& name) {
    return squeezed_name(name).starts_with(part);
  };
  const bool is_cut = !part.empty() && !begins_with_part(near) &&
                      std::any_of(known.names.begin(), known.names.end(), begins_with_part);
  if (!near.empty() && !is_cut) return fmt::format("{}; did you mean \"{}\"?", head, near);

  // Names that start with the word; if there are none, names that contain it.
  std::vector<std::string> containing;
  for (const bool begins : {true, false}) {
    if (part.empty() || (!begins && part.size() < kShortestPart) || !containing.empty()) break;
    for (const std::string& name : known.names) {
      const std::size_t at = squeezed_name(name).find(part);
      if (begins ? at == 0 : at != std::string::npos) containing.push_back(name);
    }
  }
  if (containing.size() == 1) {
    return fmt::format("{}; did you mean \"{}\"?", head, containing.front());
  }
  if (!containing.empty()) {
    return fmt::format("{}; did you mean one of {}? `{} {}` lists them", head,
                       examples(std::move(containing)), known.list_command, last);
  }
  return fmt::format("{} (known: {}); `{}` lists all", head, examples(known.names),
                     known.list_command);
}

}  // namespace kvsim
