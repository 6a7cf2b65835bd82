#include "sim/cli/explain/kept_lines.hpp"

#include <sstream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/text_file.hpp"
#include "sim/cli/options/arguments.hpp"

namespace kvsim {

std::vector<KeptLine> read_kept(const std::filesystem::path& file, std::size_t method,
                                std::int64_t layer, std::int64_t head) {
  std::error_code status;
  if (!std::filesystem::exists(file, status)) {
    throw InputError{
        fmt::format("{}: cannot be read: kvsim replay -o lists the entries of methods that hold at "
                    "most 200,000",
                    file.string())};
  }
  // Fields are counted from the end, because a method's name may contain commas: layer, head, role,
  // first, last, …
  std::vector<KeptLine> lines;
  constexpr std::size_t kMaxBytes = std::size_t{4} << 30U;
  std::istringstream in{read_text_file(file, kMaxBytes)};
  std::string line;
  std::getline(in, line);
  for (std::size_t number = 2; std::getline(in, line); ++number) {
    constexpr std::size_t kAfterName = 9;  // fields from the budget to the end
    std::vector<std::string> fields;
    std::istringstream words{line + ","};
    for (std::string word; std::getline(words, word, ',');) fields.push_back(word);
    const auto fail = [&] {
      throw InputError{
          fmt::format("{}:{}: expected index,method,budget,layer,head,role,first,last,"
                      "entries,tokens_each,score, got \"{}\"",
                      file.string(), number, excerpt(line))};
    };
    if (fields.size() < kAfterName + 2) fail();
    const std::size_t at = fields.size() - kAfterName;
    const auto index = parse_integer(fields.front());
    const auto of_layer = parse_integer(fields[at + 1]), of_head = parse_integer(fields[at + 2]);
    if (!index || !of_layer || !of_head) fail();
    if (*index != static_cast<std::int64_t>(method) || *of_layer != layer || *of_head != head) {
      continue;
    }
    KeptLine& one = lines.emplace_back();
    one.role = fields[at + 3];
    const auto number_at = [&](std::size_t i) {
      const auto value = parse_number(fields[at + i]);
      if (!value) fail();
      return *value;
    };
    one.first = number_at(4);
    one.last = number_at(5);
    one.entries = number_at(6);
    one.tokens_each = number_at(7);
    if (!fields[at + 8].empty()) one.score = number_at(8);
  }
  return lines;
}

}  // namespace kvsim
