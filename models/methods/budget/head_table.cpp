#include "models/methods/budget/head_table.hpp"

#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/text_file.hpp"

namespace kvsim {

HeadTable read_head_table(const std::string& path) {
  constexpr std::size_t kLargest = 64U << 20U;
  std::istringstream file{read_text_file(path, kLargest)};
  HeadTable table;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words{line};
    std::vector<double> row;
    std::string word;
    while (words >> word) {
      std::size_t used = 0;
      double value = 0;
      try {
        value = std::stod(word, &used);
      } catch (const std::exception&) {
        used = 0;
      }
      if (used != word.size() || !std::isfinite(value)) {
        throw InputError{fmt::format("{}:{}: expected a number for each KV head, got \"{}\"", path,
                                     number, excerpt(word))};
      }
      row.push_back(value);
    }
    if (row.empty()) continue;
    if (!table.empty() && row.size() != table.front().size()) {
      throw InputError{fmt::format("{}:{}: expected {} KV heads as above, got {}", path, number,
                                   table.front().size(), row.size())};
    }
    table.push_back(std::move(row));
  }
  if (table.empty()) throw InputError{fmt::format("{}: expected a line for each layer", path)};
  return table;
}

}  // namespace kvsim
