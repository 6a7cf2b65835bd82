// kvsim completion: completions for bash, zsh and fish from the table of commands and options.

#include "sim/cli/command_completion.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using Values = Option::Values;

template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.emplace_back(entry.name);
  return names;
}

/// Words that may follow the option; empty for files and for values without a catalogue.
std::vector<std::string> completion_words(const Option& option) {
  switch (option.values) {
    case Values::kModels:
      return names_of(builtin_llms());
    case Values::kGpus:
      return names_of(builtin_gpus());
    case Values::kMethods:
      return names_of(builtin_methods());
    case Values::kStacks:
      return names_of(builtin_stacks());
    case Values::kFormats:
    case Values::kCacheFormats: {
      std::vector<std::string> names;
      for (const DtypeName& dtype : kDtypes) names.emplace_back(dtype.name);
      if (option.values == Values::kCacheFormats) {
        names.insert(names.end(), cache_formats().begin(), cache_formats().end());
        return names;
      }
      for (const WeightFormat& format : builtin_weight_formats()) names.emplace_back(format.name);
      return names;
    }
    case Values::kKeys: {
      std::vector<std::string> keys = scenario_pointers();
      for (std::string& key : keys) key += '=';
      return keys;
    }
    case Values::kWords:
      return option.words;
    case Values::kAny:
    case Values::kFiles:
    case Values::kFolders:
      return {};
  }
  return {};
}

/// Operands of a command.
std::vector<std::string> operands_of(const Command& command) {
  const std::vector<std::string> kinds{"models", "gpus", "methods", "stacks", "calibrations"};
  if (command.name == "list") {
    std::vector<std::string> words = kinds;
    words.emplace_back("devices");
    return words;
  }
  if (command.name == "show") return {"model", "gpu", "method", "stack", "calibration"};
  if (command.name == "completion") return {"bash", "zsh", "fish"};
  std::set<std::string> first;
  if (command.name == "help") {
    for (const Command& one : commands()) {
      first.emplace(one.name.substr(0, one.name.find(' ')));
    }
  }
  return {first.begin(), first.end()};
}

/// First words of commands, and the second words of each.
std::map<std::string, std::vector<std::string>> command_words() {
  std::map<std::string, std::vector<std::string>> out;
  for (const Command& command : commands()) {
    const std::string name{command.name};
    const std::size_t blank = name.find(' ');
    auto& seconds = out[name.substr(0, blank)];
    if (blank != std::string::npos) seconds.push_back(name.substr(blank + 1));
  }
  return out;
}

std::string option_words(const Command& command) {
  std::vector<std::string> words;
  for (const Option& option : command.options) {
    words.push_back(fmt::format("--{}", option.name));
    words.insert(words.end(), option.aliases.begin(), option.aliases.end());
    if (option.letter != 0) words.push_back(fmt::format("-{}", option.letter));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string bash_completion() {
  std::string firsts;
  std::string seconds;
  for (const auto& [first, after] : command_words()) {
    firsts += fmt::format("{}{}", firsts.empty() ? "" : " ", first);
    if (!after.empty()) {
      seconds += fmt::format("    {}) words=\"{}\" ;;\n", first, fmt::join(after, " "));
    }
  }
  std::string options;
  std::string values;
  for (const Command& command : commands()) {
    options += fmt::format("    \"{}\") options=\"{}\"; words=\"{}\" ;;\n", command.name,
                           option_words(command), fmt::join(operands_of(command), " "));
    for (const Option& option : command.options) {
      if (option.value.empty()) continue;
      std::string spellings;
      for (const std::string& alias : option.aliases) {
        spellings += fmt::format("|\"{} {}\"", command.name, alias);
      }
      if (option.letter != 0) {
        spellings += fmt::format("|\"{} -{}\"", command.name, option.letter);
      }
      const bool files = option.values == Values::kFiles || option.values == Values::kAny;
      const std::string what =
          option.values == Values::kFolders ? "-d"
          : files                           ? "-f"
                  : fmt::format("-W \"{}\"", fmt::join(completion_words(option), " "));
      values += fmt::format("    \"{} --{}\"{}) _kvsim_values {} ;;\n", command.name, option.name,
                            spellings, what);
    }
  }
  return fmt::format(R"(# bash completion of kvsim, made by `kvsim completion bash`.

# Offers files (-f), folders (-d) or words (-W), of a list joined by commas for its last part.
_kvsim_values() {{
  local before=
  if [[ $cur == *,* ]]; then before=${{cur%,*}},; fi
  if [[ $1 == -W ]]; then
    COMPREPLY=($(compgen -P "$before" -W "$2" -- "${{cur##*,}}"))
    if [[ ${{#COMPREPLY[@]}} -gt 0 ]]; then compopt -o nospace 2>/dev/null; fi
  else
    COMPREPLY=($(compgen "$1" -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
  return 0
}}

_kvsim() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command=${{COMP_WORDS[1]}} words= options=
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{} --help --version" -- "$cur"))
    return 0
  fi
  # A value after "=" is a separate word.
  if [[ $cur == = ]]; then cur=; elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case $command in
{}  esac
  if [[ -n $words ]]; then
    if [[ $COMP_CWORD -eq 2 ]]; then
      COMPREPLY=($(compgen -W "$words" -- "$cur"))
      return 0
    fi
    command="$command ${{COMP_WORDS[2]}}"
  fi
  case "$command $before" in
{}    *) ;;
  esac
  if [[ ${{#COMPREPLY[@]}} -gt 0 ]]; then return 0; fi
  words=
  case $command in
{}  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else
    COMPREPLY=($(compgen -f -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
  return 0
}}
complete -F _kvsim kvsim
)",
                     firsts, seconds, values, options);
}

/// Quotes `text` in single quotes, so that zsh and fish do not interpret it.
std::string quoted(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "\u2019";
    } else {
      out += c;
    }
  }
  return fmt::format("'{}'", out);
}

std::string zsh_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_values(const Option& option) {
  if (option.value.empty()) return "";
  std::string action = "_files";
  if (option.values == Values::kFolders) action = "_files -/";
  const std::vector<std::string> words = completion_words(option);
  if (!words.empty()) {
    // One of these words, or several joined by commas.
    const std::string all = fmt::format("{}", fmt::join(words, " "));
    action = option.values == Values::kKeys ? fmt::format("compadd -S \"\" - {}", all)
             : option.values == Values::kWords && option.value != "NAMES"
                 ? fmt::format("({})", all)
                 : fmt::format("_sequence compadd - {}", all);
  }
  return fmt::format(":{}:{}", zsh_escaped(option.value), action);
}

std::string zsh_completion() {
  std::string cases;
  for (const Command& command : commands()) {
    std::string arguments;
    for (const Option& option : command.options) {
      const std::string help = zsh_escaped(option.help);
      const std::string star = option.repeats ? "*" : "";
      arguments += fmt::format(
          " \\\n        {}",
          quoted(fmt::format("{}--{}[{}]{}", star, option.name, help, zsh_values(option))));
      for (const std::string& alias : option.aliases) {
        arguments +=
            fmt::format(" \\\n        {}",
                        quoted(fmt::format("{}{}[{}]{}", star, alias, help, zsh_values(option))));
      }
      if (option.letter != 0) {
        arguments += fmt::format(
            " \\\n        {}",
            quoted(fmt::format("{}-{}[{}]{}", star, option.letter, help, zsh_values(option))));
      }
    }
    const std::vector<std::string> operands = operands_of(command);
    arguments += fmt::format(
        " \\\n        {}",
        quoted(operands.empty() ? std::string{"*:file:_files"}
                                : fmt::format("*:word:({})", fmt::join(operands, " "))));
    cases += fmt::format("    ({})\n      _arguments -s{} ;;\n", quoted(std::string{command.name}),
                         arguments);
  }
  std::string firsts;
  std::string seconds;
  for (const auto& [first, after] : command_words()) {
    firsts += fmt::format(" {}", first);
    if (!after.empty()) {
      seconds += fmt::format(
          "    ({})\n      if (( CURRENT == 3 )); then compadd {}; return; fi\n"
          "      command=\"$command $words[3]\"; shift words; (( CURRENT-- )) ;;\n",
          first, fmt::join(after, " "));
    }
  }
  return fmt::format(R"(#compdef kvsim
# zsh completion of kvsim, made by `kvsim completion zsh`.

_kvsim() {{
  local command=$words[2]
  if (( CURRENT == 2 )); then compadd --{} --help --version; return; fi
  case $command in
{}  esac
  shift words; (( CURRENT-- ))
  case $command in
{}  esac
}}

_kvsim "$@"
)",
                     firsts, seconds, cases);
}

std::string fish_completion() {
  std::string out = "# fish completion of kvsim, made by `kvsim completion fish`.\n";
  std::map<std::string, std::string> summaries;
  for (const Command& command : commands()) {
    const std::string name{command.name};
    const std::size_t blank = name.find(' ');
    const std::string first = name.substr(0, blank);
    const std::string where = fmt::format("-n {}", quoted("__fish_use_subcommand"));
    if (summaries.emplace(first, command.summary).second) {
      out += fmt::format("complete -c kvsim {} -f -a {} -d {}\n", where, first,
                         quoted(blank == std::string::npos ? std::string{command.summary}
                                                           : fmt::format("{} …", first)));
    }
    std::string seen = fmt::format("__fish_seen_subcommand_from {}", first);
    if (blank != std::string::npos) {
      const std::string second = name.substr(blank + 1);
      out += fmt::format("complete -c kvsim -n {} -f -a {} -d {}\n", quoted(seen), second,
                         quoted(std::string{command.summary}));
      seen += fmt::format("; and __fish_seen_subcommand_from {}", second);
    }
    const std::vector<std::string> operands = operands_of(command);
    if (!operands.empty()) {
      out += fmt::format("complete -c kvsim -n {} -f -a {}\n", quoted(seen),
                         quoted(fmt::format("{}", fmt::join(operands, " "))));
    }
    for (const Option& option : command.options) {
      out += fmt::format("complete -c kvsim -n {} -l {}", quoted(seen), option.name);
      for (const std::string& alias : option.aliases) {
        // fish calls "-tp" an old-style option.
        out += alias.starts_with("--") ? fmt::format(" -l {}", alias.substr(2))
                                       : fmt::format(" -o {}", alias.substr(1));
      }
      if (option.letter != 0) out += fmt::format(" -s {}", option.letter);
      if (!option.value.empty()) out += " -r";
      const std::vector<std::string> words = completion_words(option);
      if (!words.empty()) {
        // In a comma-separated list, the last part is completed.
        out += fmt::format(" -f -a {}",
                           quoted(fmt::format("(__fish_complete_list , \"printf %s\\n {}\")",
                                              fmt::join(words, " "))));
      } else if (option.values == Values::kFolders) {
        out += " -f -a '(__fish_complete_directories)'";
      }
      out += fmt::format(" -d {}\n", quoted(option.help));
    }
  }
  return out;
}

int run_completion(const Arguments& arguments) {
  arguments.expect_words(1, 1, "bash, zsh or fish");
  const std::string& shell = arguments.words().front();
  if (shell == "bash") {
    write_out(bash_completion());
  } else if (shell == "zsh") {
    write_out(zsh_completion());
  } else if (shell == "fish") {
    write_out(fish_completion());
  } else {
    throw InputError{unknown_name("shell", shell, std::vector<std::string>{"bash", "zsh", "fish"})};
  }
  return kDone;
}

}  // namespace

Command completion_command() {
  return {.name = "completion",
          .summary = "print shell completion of commands, options and catalogue names",
          .usage = "kvsim completion bash|zsh|fish",
          .examples =
              "source <(kvsim completion bash)\n"
              "kvsim completion fish > ~/.config/fish/completions/kvsim.fish",
          .options = {},
          .run = run_completion};
}

}  // namespace kvsim
