#include "sim/report/catalogue/describe_text.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/report/text/text.hpp"

namespace kvsim {

void Facts::add(std::string label, std::string value) {
  rows_.emplace_back(std::move(label), std::move(value));
}

std::string Facts::str(std::size_t width) const {
  constexpr std::size_t kMinText = 24;
  std::size_t label_width = 0;
  for (const auto& [label, value] : rows_) {
    label_width = std::max(label_width, display_width(label));
  }
  const std::size_t indent = label_width + 4;
  std::string out;
  for (const auto& [label, value] : rows_) {
    std::string line = "  " + label + std::string(label_width - display_width(label) + 2, ' ');
    for (const std::string& part :
         wrapped(clean_text(value), std::max(kMinText, width - std::min(width, indent)))) {
      out += line + part + "\n";
      line = std::string(indent, ' ');
    }
  }
  return out;
}

std::string sources_text(const std::map<std::string, std::string>& sources, std::size_t width) {
  if (sources.empty()) return "";
  Facts facts;
  for (const auto& [figure, source] : sources) facts.add(figure, source);
  return "\nsources\n" + facts.str(width);
}

}  // namespace kvsim
