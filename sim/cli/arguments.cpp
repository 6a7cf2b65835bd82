#include "sim/cli/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

namespace po = boost::program_options;

po::options_description described(const std::vector<Option>& options) {
  po::options_description out;
  for (const Option& option : options) {
    const std::string names =
        option.letter == 0 ? option.name : fmt::format("{},{}", option.name, option.letter);
    if (option.value.empty()) {
      out.add_options()(names.c_str(), option.help.c_str());
    } else {
      out.add_options()(names.c_str(), po::value<std::vector<std::string>>(), option.help.c_str());
    }
  }
  return out;
}

std::string dashed(const Option& option) {
  return option.letter == 0 ? "--" + option.name
                            : fmt::format("-{}/--{}", option.letter, option.name);
}

/// `word` is what the user typed: "--ouf", "-z", "--ouf=x".
[[noreturn]] void refuse_unknown(const std::string& command, std::string word,
                                 const std::vector<Option>& options) {
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const Option& option : options) known.push_back("--" + option.name);
  throw InputError{fmt::format("{}: {}; `kvsim help {}` explains them", command,
                               unknown_name("option", word, known), command)};
}

}  // namespace

Arguments::Arguments(std::string command, const std::vector<Option>& options,
                     const std::vector<std::string>& words)
    : command_{std::move(command)} {
  namespace style = po::command_line_style;
  const auto complain = [&](const std::string& what) {
    throw InputError{fmt::format("{}: {}", command_, what)};
  };
  try {
    const po::options_description description = described(options);
    // No guessing: "--budge" is a slip to be told of, not a short form.
    const auto parsed = po::command_line_parser(words)
                            .options(description)
                            .style(style::unix_style & ~style::allow_guessing)
                            .allow_unregistered()
                            .run();
    for (const auto& one : parsed.options) {
      if (one.unregistered) refuse_unknown(command_, one.original_tokens.front(), options);
      if (one.position_key >= 0 || one.string_key.empty()) {
        words_.insert(words_.end(), one.value.begin(), one.value.end());
        continue;
      }
      const auto option = std::find_if(options.begin(), options.end(), [&](const Option& o) {
        return o.name == one.string_key ||
               (o.letter != 0 && one.string_key == std::string{'-', o.letter});
      });
      if (option == options.end()) refuse_unknown(command_, one.original_tokens.front(), options);
      auto& slot = values_[option->name];
      if (!option->repeats && !slot.empty()) complain(dashed(*option) + " is given twice");
      if (option->value.empty()) {
        slot = {""};
      } else {
        for (const std::string& value : one.value) {
          if (value.empty())
            complain(fmt::format("{} {} is empty", dashed(*option), option->value));
          slot.push_back(value);
        }
      }
    }
  } catch (const po::invalid_command_line_syntax& error) {
    const std::string what = error.what();
    complain(what.substr(0, what.find('\n')));
  } catch (const po::error& error) {
    complain(error.what());
  }
}

bool Arguments::has(std::string_view option) const { return values_.contains(option); }

std::optional<std::string> Arguments::value(std::string_view option) const {
  const auto found = values_.find(option);
  return found == values_.end() ? std::nullopt : std::optional{found->second.front()};
}

std::vector<std::string> Arguments::values(std::string_view option) const {
  const auto found = values_.find(option);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

std::vector<std::string> Arguments::list(std::string_view option) const {
  std::vector<std::string> out;
  for (const std::string& text : values(option)) {
    std::size_t from = 0;
    while (true) {
      const std::size_t comma = text.find(',', from);
      std::string part = text.substr(from, comma == std::string::npos ? comma : comma - from);
      if (part.empty()) {
        throw InputError{fmt::format("--{}", option), "values separated by single commas",
                         fmt::format("\"{}\"", text)};
      }
      out.push_back(std::move(part));
      if (comma == std::string::npos) break;
      from = comma + 1;
    }
  }
  return out;
}

std::optional<std::int64_t> Arguments::integer(std::string_view option, std::int64_t low,
                                               std::int64_t high) const {
  const auto text = value(option);
  if (!text) return std::nullopt;
  const auto number = parse_integer(*text);
  if (!number || *number < low || *number > high) {
    throw InputError{fmt::format("--{}", option), fmt::format("an integer in [{}, {}]", low, high),
                     fmt::format("\"{}\"", *text)};
  }
  return number;
}

std::optional<double> Arguments::number(std::string_view option, double low, double high) const {
  const auto text = value(option);
  if (!text) return std::nullopt;
  const auto number = parse_number(*text);
  if (!number || !(*number >= low && *number <= high)) {
    throw InputError{fmt::format("--{}", option), fmt::format("a number in [{}, {}]", low, high),
                     fmt::format("\"{}\"", *text)};
  }
  return number;
}

void Arguments::expect_words(std::size_t least, std::size_t most, std::string_view what) const {
  if (words_.size() < least) {
    throw InputError{
        fmt::format("{}: expected {}; `kvsim help {}` shows how", command_, what, command_)};
  }
  if (words_.size() > most) {
    throw InputError{fmt::format("{}: unexpected \"{}\"; expected {}", command_, words_[most],
                                 most == 0 ? "options alone" : std::string{what})};
  }
}

std::string options_help(const std::vector<Option>& options) {
  constexpr std::size_t kWidth = 80;
  constexpr std::size_t kWidestLeft = 30;  // an option wider than this stands on its own line
  std::vector<std::string> left;
  std::size_t width = 0;
  for (const Option& option : options) {
    left.push_back(fmt::format("  {}--{}{}",
                               option.letter == 0 ? "    " : fmt::format("-{}, ", option.letter),
                               option.name, option.value.empty() ? "" : " " + option.value));
    const std::size_t wide = display_width(left.back());
    if (wide <= kWidestLeft) width = std::max(width, wide);
  }
  std::string out;
  const std::size_t indent = width + 2;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string help =
        fmt::format("{}{}", options[i].help, options[i].repeats ? " (repeatable)" : "");
    out += left[i];
    const std::size_t wide = display_width(left[i]);
    out += wide <= width ? std::string(indent - wide, ' ') : fmt::format("\n{:{}}", "", indent);
    out += paragraph(help, kWidth, indent);
  }
  return out;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace kvsim
