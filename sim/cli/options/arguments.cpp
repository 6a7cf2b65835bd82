#include "sim/cli/options/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/report/text/text.hpp"

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

/// `word` is what the user typed: "--ouf", "-z", "--ouf=x".
[[noreturn]] void refuse_unknown(const std::string& command, std::string word,
                                 const std::vector<Option>& options) {
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const Option& option : options) {
    known.push_back("--" + option.name);
    known.insert(known.end(), option.aliases.begin(), option.aliases.end());
  }
  // One letter is an initial, not a misspelling: "-g" means "--gpu", not "-tp".
  const bool is_initial = word.size() == 2;
  std::string near = is_initial ? std::string{} : nearest(word, known);
  if (is_initial) {
    const auto begins = std::find_if(known.begin(), known.end(), [&](const std::string& name) {
      return name.starts_with("--") && name[2] == word[1];
    });
    if (begins != known.end()) near = *begins;
  }
  if (near.empty() && word.size() > 3) {
    const auto longer = std::find_if(known.begin(), known.end(), [&](const std::string& name) {
      return name.starts_with(word);
    });
    if (longer != known.end()) near = *longer;
  }
  const std::string hint =
      near.empty() ? fmt::format("`kvsim help {}` lists the options", command)
                   : fmt::format("did you mean \"{}\"? `kvsim help {}` explains it", near, command);
  throw InputError{fmt::format("{}: unknown option \"{}\"; {}", command, word, hint)};
}

/// Maps long names and aliases of `options`, with dashes, to the option's name.
std::map<std::string, std::string> spellings_of(const std::vector<Option>& options) {
  std::map<std::string, std::string> out;
  for (const Option& option : options) {
    out.emplace("--" + option.name, option.name);
    for (const std::string& alias : option.aliases) out.emplace(alias, option.name);
  }
  return out;
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
    // Report "--budge" as a typo; do not accept abbreviations.
    const auto parsed = po::command_line_parser(with_names(options, words))
                            .options(description)
                            .style(style::unix_style & ~style::allow_guessing)
                            .allow_unregistered()
                            .run();
    for (const auto& one : parsed.options) {
      if (one.unregistered) refuse_unknown(command_, one.original_tokens.front(), options);
      if (one.position_key >= 0 || one.string_key.empty()) {
        if (std::find(one.value.begin(), one.value.end(), "") != one.value.end()) {
          complain("an argument is empty");
        }
        words_.insert(words_.end(), one.value.begin(), one.value.end());
        continue;
      }
      const auto option = std::find_if(options.begin(), options.end(), [&](const Option& o) {
        return o.name == one.string_key ||
               (o.letter != 0 && one.string_key == std::string{'-', o.letter});
      });
      if (option == options.end()) refuse_unknown(command_, one.original_tokens.front(), options);
      auto& slot = values_[option->name];
      if (!option->repeats && !slot.empty()) complain(typed(option->name) + " is given twice");
      if (option->value.empty()) {
        slot = {""};
      } else {
        for (const std::string& value : one.value) {
          if (value.empty())
            complain(fmt::format("{} {} is empty", typed(option->name), option->value));
          slot.push_back(value);
        }
      }
    }
  } catch (const po::invalid_command_line_syntax& error) {
    std::string what = error.what();
    what = what.substr(0, what.find('\n'));
    // The parser reports the option's name; the user may have typed another spelling.
    for (const auto& [name, spelling] : typed_) {
      const std::string quoted = fmt::format("'--{}'", name);
      if (const std::size_t at = what.find(quoted); at != std::string::npos) {
        what.replace(at, quoted.size(), fmt::format("'{}'", spelling));
      }
    }
    complain(what);
  } catch (const po::error& error) {
    complain(error.what());
  }
}

std::vector<std::string> Arguments::with_names(const std::vector<Option>& options,
                                               std::vector<std::string> words) {
  const std::map<std::string, std::string> spellings = spellings_of(options);
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with('-') || word.size() < 2) continue;
    const std::string given = word.substr(0, word.find('='));
    auto found = spellings.find(given);
    if (found == spellings.end() && given.starts_with("--")) {
      std::string dashed = given;  // vLLM also accepts --max_model_len
      std::replace(dashed.begin(), dashed.end(), '_', '-');
      found = spellings.find(dashed);
    }
    std::string name;
    std::string spelling = given;
    if (found != spellings.end()) {
      name = found->second;
      word = fmt::format("--{}{}", name, word.substr(given.size()));
    } else {
      const auto option = std::find_if(options.begin(), options.end(), [&](const Option& o) {
        return o.letter != 0 && word[1] == o.letter;
      });
      if (option == options.end()) continue;
      name = option->name;
      spelling = given.substr(0, 2);
    }
    const auto [before, is_first] = typed_.emplace(name, spelling);
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const Option& o) { return o.name == name; });
    if (!is_first && before->second != spelling && !option->repeats) {
      throw InputError{fmt::format("{}: {} and {} are the same option; expected one of them",
                                   command_, before->second, spelling)};
    }
  }
  return words;
}

std::string Arguments::typed(std::string_view option) const {
  const auto found = typed_.find(option);
  return found == typed_.end() ? fmt::format("--{}", option) : found->second;
}

bool Arguments::has(std::string_view option) const { return values_.contains(option); }

std::string Arguments::in_typed_words(std::string_view message) const {
  constexpr std::string_view kOfNames = "abcdefghijklmnopqrstuvwxyz0123456789-";
  std::string out;
  bool in_quotes = false;
  for (std::size_t i = 0; i < message.size();) {
    if (message[i] == '"') in_quotes = !in_quotes;
    const bool begins_word = i == 0 || kOfNames.find(message[i - 1]) == std::string_view::npos;
    if (in_quotes || !begins_word || !message.substr(i).starts_with("--")) {
      out += message[i++];
      continue;
    }
    const std::size_t end = std::min(message.find_first_not_of(kOfNames, i), message.size());
    const std::string_view word = message.substr(i, end - i);
    out += values_.contains(word.substr(2)) ? typed(word.substr(2)) : std::string{word};
    i = end;
  }
  return out;
}

bool Arguments::set_default(const std::string& option, std::string value, bool repeats) {
  std::vector<std::string>& slot = values_[option];
  const bool is_free = slot.empty();
  if (is_free || repeats) slot.insert(slot.begin(), std::move(value));
  return is_free;
}

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
      part.erase(0, std::min(part.find_first_not_of(' '), part.size()));
      part.erase(part.find_last_not_of(' ') + 1);
      if (part.empty()) {
        throw InputError{typed(option), "values separated by single commas",
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
    throw InputError{typed(option), fmt::format("an integer in [{}, {}]", low, high),
                     fmt::format("\"{}\"", *text)};
  }
  return number;
}

std::optional<double> Arguments::number(std::string_view option, double low, double high) const {
  const auto text = value(option);
  if (!text) return std::nullopt;
  const auto number = parse_number(*text);
  if (!number || !(*number >= low && *number <= high)) {
    throw InputError{typed(option), fmt::format("a number in [{}, {}]", low, high),
                     fmt::format("\"{}\"", *text)};
  }
  return number;
}

void Arguments::expect_words(std::size_t min, std::size_t max, std::string_view what) const {
  if (words_.size() < min) {
    throw InputError{
        fmt::format("{}: expected {}; `kvsim help {}` shows how", command_, what, command_)};
  }
  if (words_.size() > max) {
    throw InputError{fmt::format("{}: unexpected \"{}\"; expected {}", command_, words_[max],
                                 what.empty() ? "only options" : what)};
  }
}

std::string options_help(const std::vector<Option>& options) {
  constexpr std::size_t kWidth = 80;
  constexpr std::size_t kWidestLeft = 30;  // a wider option gets a separate line
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
  std::string group;
  const std::size_t indent = width + 2;
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (!options[i].group.empty() && options[i].group != group) {
      group = options[i].group;
      out += fmt::format("{}{}:\n", i == 0 ? "" : "\n", group);
    }
    out += left[i];
    const std::size_t wide = display_width(left[i]);
    out += wide <= width ? std::string(indent - wide, ' ') : fmt::format("\n{:{}}", "", indent);
    out += paragraph(full_help(options[i]), kWidth, indent);
  }
  return out;
}

std::string full_help(const Option& option) {
  return fmt::format(
      "{}{}{}", option.help, option.repeats ? " (repeatable)" : "",
      option.aliases.empty() ? "" : fmt::format("; also {}", fmt::join(option.aliases, ", ")));
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

void refuse_repeated_files(std::string_view option, const std::vector<std::string>& files) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> seen;
  for (const std::string& file : files) {
    std::error_code status;
    fs::path path = fs::canonical(file, status);
    if (status) continue;  // the reader reports that it cannot be opened
    const auto [earlier, is_new] = seen.emplace(std::move(path), file);
    if (is_new) continue;
    throw InputError{earlier->second == file
                         ? fmt::format("{}{} is given twice", option, file)
                         : fmt::format("{}{} is given twice: it is the same as {}", option, file,
                                       earlier->second)};
  }
}

}  // namespace kvsim
