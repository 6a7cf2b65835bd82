#include "models/launch/engine_command.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/number_text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxQuoted = 60;  // characters of a word shown in messages

std::string in_quotes(std::string_view text) {
  return text.size() > kMaxQuoted ? fmt::format("\"{}…\"", text.substr(0, kMaxQuoted))
                                  : fmt::format("\"{}\"", text);
}

std::optional<std::int64_t> whole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = number_from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
}

bool is_assignment(std::string_view word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

/// Returns the number of words in front of the program: "env" and NAME=VALUE.
std::ptrdiff_t environment_words(const std::vector<std::string>& words) {
  const auto end = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word != "env" && !is_assignment(word);
  });
  return end - words.begin();
}

bool begins_with(const std::vector<std::string>& words, const std::vector<std::string>& program) {
  if (words.size() < program.size()) return false;
  for (std::size_t i = 0; i < program.size(); ++i) {
    std::string_view word = words[i];
    // "/usr/bin/vllm" counts as vllm.
    if (i == 0) word = word.substr(word.rfind('/') + 1);
    if (word != program[i]) return false;
  }
  return true;
}

/// Returns the number of words of the longest program that `words` start with; 0 if it is not this
/// engine's.
std::size_t program_words(const EngineFlags& engine, const std::vector<std::string>& words) {
  std::size_t longest = begins_with(words, engine.program) ? engine.program.size() : 0;
  for (const auto& program : engine.also_programs) {
    if (program.size() > longest && begins_with(words, program)) longest = program.size();
  }
  return longest;
}

/// Whether argparse takes the word as a flag and not as a value.
bool is_flag_word(std::string_view word) {
  return word.size() > 1 && word.front() == '-' && !is_number(word);
}

class Reader {
 public:
  Reader(EngineCommand& out, std::string_view place, bool strict)
      : out_{out}, engine_{*out.engine}, place_{place}, strict_{strict} {}

  void read(const std::vector<std::string>& words, std::size_t from) {
    std::vector<std::string> positional;
    for (std::size_t i = from; i < words.size();) {
      if (is_flag_word(words[i])) {
        read_flag(words, i);
      } else {
        positional.push_back(words[i++]);
      }
    }
    take_model(positional);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError{fmt::format("{}: {}", place_, what)};
  }
  [[noreturn]] void expected(std::string_view flag, std::string_view what,
                             std::string_view got) const {
    fail(fmt::format("{}: expected {}, got {}", flag, what, in_quotes(got)));
  }

  std::string version_text() const {
    return fmt::format("{} {}.{}", engine_.engine, out_.version[0], out_.version[1]);
  }

  const EngineFlag* known(std::string_view name) const {
    return strict_ ? engine_.find_certain(out_.version, name)
                   : engine_.find_possible(out_.version, name);
  }

  /// Returns the long flag named `name`, or the only one that starts with it; nullptr if there is
  /// none.
  const EngineFlag* long_flag(const std::string& name) const {
    if (const EngineFlag* flag = known(name)) return flag;
    if (!engine_.abbreviations || name.size() < 3) return nullptr;
    std::vector<std::string> begun;
    for (const std::string& spelling : engine_.spellings(out_.version)) {
      if (spelling.starts_with(name)) begun.push_back(spelling);
    }
    if (begun.empty()) return nullptr;
    const EngineFlag* first = known(begun.front());
    for (const std::string& spelling : begun) {
      if (known(spelling) != first) {
        fail(fmt::format("{}: ambiguous; one of {}", name, fmt::join(begun, ", ")));
      }
    }
    return first;
  }

  [[noreturn]] void refuse_unknown(const std::string& typed, const std::string& name) const {
    const std::string versions = engine_.versions_of(name);
    if (!versions.empty()) {
      fail(fmt::format("{}: unknown flag of {}; {} {} has it", typed, version_text(),
                       engine_.engine, versions));
    }
    const std::vector<std::string> all = engine_.spellings(out_.version);
    const std::string near = nearest(name, all);
    fail(fmt::format("{}: unknown flag of {}{}", typed, version_text(),
                     near.empty() ? "" : fmt::format("; did you mean {}?", near)));
  }

  void read_flag(const std::vector<std::string>& words, std::size_t& at) {
    const std::string& word = words[at++];
    GivenFlag given;
    std::optional<std::string> joined;
    std::string name = word;
    if (const std::size_t equals = word.find('='); equals != std::string::npos) {
      name = word.substr(0, equals);
      joined = word.substr(equals + 1);
    }
    given.typed = name;
    const bool is_long = name.starts_with("--");
    if (is_long && engine_.dashes) std::replace(name.begin(), name.end(), '_', '-');
    if (const std::size_t dot = name.find('.'); is_long && dot != std::string::npos) {
      given.key = given.typed.substr(dot + 1);
      name.resize(dot);
    }
    given.flag = is_long ? long_flag(name) : known(name);
    if (given.flag == nullptr && is_long && name.starts_with("--no-")) {
      given.flag = long_flag("--" + name.substr(5));
      given.is_on = false;
      if (given.flag != nullptr && given.flag->type != FlagType::kSwitch) given.flag = nullptr;
    }
    // -O3: a short flag with its value.
    if (given.flag == nullptr && !is_long && !joined && name.size() > 2) {
      given.flag = known(name.substr(0, 2));
      joined = name.substr(2);
    }
    if (given.flag == nullptr) refuse_unknown(given.typed, name);
    if (!given.key.empty() && given.flag->type != FlagType::kJson) {
      fail(fmt::format("{}: {} takes no keys", given.typed, given.flag->name));
    }
    take_values(given, joined, words, at);
    check(given);
    out_.flags.push_back(std::move(given));
  }

  void take_values(GivenFlag& given, const std::optional<std::string>& joined,
                   const std::vector<std::string>& words, std::size_t& at) const {
    const FlagType type = given.flag->type;
    if (type == FlagType::kFlag || type == FlagType::kSwitch) {
      if (joined) fail(fmt::format("{}: takes no value, got {}", given.typed, in_quotes(*joined)));
      return;
    }
    if (joined) {
      given.values.push_back(*joined);
      return;
    }
    const auto is_value = [&] { return at < words.size() && !is_flag_word(words[at]); };
    if (type == FlagType::kList) {
      while (is_value()) given.values.push_back(words[at++]);
    } else if (is_value()) {
      given.values.push_back(words[at++]);
    }
    if (given.values.empty() && type != FlagType::kOptional) {
      fail(fmt::format("{}: expected a value after it", given.typed));
    }
  }

  void check(const GivenFlag& given) const {
    const EngineFlag& flag = *given.flag;
    for (const std::string& value : given.values) {
      if (flag.type == FlagType::kInt && !whole(value)) {
        expected(given.typed, "an integer", value);
      }
      if (flag.type == FlagType::kCount && !count_of_flag(value) && value != "auto") {
        expected(given.typed, "an integer such as 4096 or 32K", value);
      }
      if (flag.type == FlagType::kFloat && !is_number(value)) {
        expected(given.typed, "a number", value);
      }
      if (flag.type == FlagType::kJson && given.key.empty() && !flag_accepts_word(flag) &&
          !nlohmann::json::accept(value)) {
        expected(given.typed, "JSON", value);
      }
      if (!flag.values.empty() &&
          std::find(flag.values.begin(), flag.values.end(), value) == flag.values.end()) {
        expected(given.typed, fmt::format("one of {}", fmt::join(flag.values, ", ")), value);
      }
    }
  }

  /// Flags that take JSON or a word: vLLM's `-O 3`, `--hf-overrides`, "image=2,video=1".
  static bool flag_accepts_word(const EngineFlag& flag) {
    return flag.name == "--compilation-config" || flag.name == "--limit-mm-per-prompt" ||
           flag.name == "--override-pooler-config";
  }

  void take_model(const std::vector<std::string>& positional) {
    const GivenFlag* by_flag = engine_.model_flag.empty() ? nullptr : out_.find(engine_.model_flag);
    std::size_t used = 0;
    if (by_flag != nullptr) {
      out_.model = by_flag->values.front();
    } else if (engine_.model_is_positional && !positional.empty()) {
      out_.model = positional.front();
      used = 1;
    }
    if (positional.size() > used) {
      fail(fmt::format("{}: unexpected word; it belongs to no flag of {}",
                       in_quotes(positional[used]), version_text()));
    }
    if (out_.model.empty()) fail("expected a model, got none");
  }

  EngineCommand& out_;
  const EngineFlags& engine_;
  std::string_view place_;
  bool strict_;
};

}  // namespace

const GivenFlag* EngineCommand::find(std::string_view name) const {
  const GivenFlag* found = nullptr;
  for (const GivenFlag& given : flags) {
    if (given.flag->name == name) found = &given;
  }
  return found;
}

const EngineFlags* engine_of_command(const std::vector<std::string>& words) {
  const std::vector<std::string> rest{words.begin() + environment_words(words), words.end()};
  for (const EngineFlags& engine : builtin_engine_flags()) {
    if (program_words(engine, rest) > 0) return &engine;
  }
  return nullptr;
}

EngineCommand parse_engine_command(const std::vector<std::string>& words, EngineVersion version,
                                   std::string_view place, bool strict) {
  EngineCommand out;
  out.version = version;
  const std::vector<std::string> rest{words.begin() + environment_words(words), words.end()};
  for (std::size_t i = 0; i + rest.size() < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos) continue;  // env
    out.environment.emplace_back(words[i].substr(0, equals), words[i].substr(equals + 1));
  }
  out.engine = engine_of_command(rest);
  if (out.engine == nullptr) {
    std::vector<std::string> known;
    for (const EngineFlags& engine : builtin_engine_flags()) {
      known.push_back(fmt::format("\"{}\"", fmt::join(engine.program, " ")));
    }
    throw InputError{place,
                     fmt::format("a command that begins with one of {}", fmt::join(known, ", ")),
                     rest.empty() ? "nothing" : in_quotes(rest.front())};
  }
  Reader{out, place, strict}.read(rest, program_words(*out.engine, rest));
  return out;
}

std::optional<std::int64_t> count_of_flag(std::string_view text) {
  if (const auto number = whole(text)) return number;
  if (text.empty()) return std::nullopt;
  std::int64_t unit = 0;
  switch (text.back()) {
    case 'k':
      unit = 1000;
      break;
    case 'K':
      unit = 1024;
      break;
    case 'm':
      unit = 1000 * 1000;
      break;
    case 'M':
      unit = 1024 * 1024;
      break;
    case 'g':
      unit = 1000 * 1000 * 1000;
      break;
    case 'G':
      unit = 1024 * 1024 * 1024;
      break;
    default:
      return std::nullopt;
  }
  text.remove_suffix(1);
  if (!is_number(text)) return std::nullopt;
  double value = 0;
  (void)number_from_chars(text.data(), text.data() + text.size(), value);
  const double product = value * static_cast<double>(unit);
  if (!(std::abs(product) < 1e15) || product != std::floor(product)) return std::nullopt;
  return static_cast<std::int64_t>(product);
}

}  // namespace kvsim
