#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "sim/launch/launch_parts.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// Whether unquoted `text` is the same string in YAML.
bool is_plain(const std::string& text) {
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text.front())) == 0) return false;
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  });
  constexpr std::string_view kWords[]{"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return plain && std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

/// A scalar; in double quotes, which YAML and JSON share, unless it is plain.
std::string scalar(const ordered_json& value) {
  if (value.is_string() && is_plain(value.get<std::string>())) return value.get<std::string>();
  return value.dump();
}

void write(const ordered_json& value, std::size_t indent, std::string& out) {
  const std::string blanks(indent, ' ');
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const bool nests = (member.is_object() || member.is_array()) && !member.empty();
      if (!nests) {
        out += fmt::format("{}{}: {}\n", blanks, scalar(ordered_json(key)),
                           member.is_object()  ? "{}"
                           : member.is_array() ? "[]"
                                               : scalar(member));
        continue;
      }
      out += fmt::format("{}{}:\n", blanks, scalar(ordered_json(key)));
      write(member, indent + 2, out);
    }
    return;
  }
  for (const ordered_json& item : value) {
    if (!item.is_structured()) {
      out += fmt::format("{}- {}\n", blanks, scalar(item));
      continue;
    }
    // The first line of an item is on the line of its dash.
    std::string block;
    write(item, indent + 2, block);
    block[indent] = '-';
    out += block;
  }
}

}  // namespace

std::string yaml_text(const ordered_json& value) {
  std::string out;
  write(value, 0, out);
  return out;
}

}  // namespace kvsim
