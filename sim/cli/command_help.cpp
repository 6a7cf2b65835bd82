#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/cli/command_completion.hpp"
#include "sim/cli/command_plot.hpp"
#include "sim/cli/explain/command_compare.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/man_page.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kWidth = 80;        // of help
constexpr std::size_t kLongestWord = 60;  // of words that messages quote

constexpr std::string_view kToRun =
    "type `kvsim run --model llama-3.1-8b --gpu h100 --isl 8K --batch 8`; with --rate R requests "
    "per "
    "second it simulates a service";
constexpr std::string_view kToPlan =
    "type `kvsim plan --model llama-3.1-8b --gpu h100 --rate 5 --isl 2000 --osl 300 --ttft 2s` for "
    "GPUs and cost; without --rate for contexts and batches";

/// A command name of other tools, and the corresponding command of kvsim.
struct OtherWord {
  std::string_view word, answer;
};
constexpr std::array kOtherWords{
    OtherWord{"serve",
              "kvsim predicts services but does not run them; type `kvsim run --model "
              "llama-3.1-8b --gpu h100 --rate 2`, or `kvsim plan` with bounds such as "
              "--ttft 2s for the number of GPUs"},
    OtherWord{"simulate", kToRun},
    OtherWord{"sim", kToRun},
    OtherWord{"simulation", kToRun},
    OtherWord{"predict", kToRun},
    OtherWord{"bench", kToRun},
    OtherWord{"benchmark", kToRun},
    OtherWord{"estimate", kToPlan},
    OtherWord{"size", kToPlan},
    OtherWord{"optimize", kToPlan},
    OtherWord{"capacity", kToPlan},
    OtherWord{"recommend", kToPlan},
    OtherWord{"cost", kToPlan},
    OtherWord{"cli", kToPlan},
    OtherWord{"models", "type `kvsim list models` lists them, `kvsim show model NAME` shows one"},
    OtherWord{"gpus", "type `kvsim list gpus` lists them, `kvsim show gpu NAME` shows one"},
    OtherWord{"methods",
              "type `kvsim list methods` lists them, `kvsim show method NAME` shows one"},
    OtherWord{"stacks", "type `kvsim list stacks` lists them, `kvsim show stack NAME` shows one"},
    OtherWord{
        "info",
        "type `kvsim show model NAME`, or `kvsim trace info` and `kvsim requests info` for files"},
};

/// The error text for `given`, whose nearest known word is `word`; empty if there is no hint.
std::string other_word(std::string_view word, std::string_view given) {
  for (const OtherWord& other : kOtherWords) {
    if (other.word != word) continue;
    return fmt::format("unknown command \"{}\"; {}", given, other.answer);
  }
  // A scenario file without a command.
  if (word.ends_with(".json")) {
    return fmt::format("unknown command \"{}\"; to simulate a scenario type `kvsim run {}`", word,
                       word);
  }
  return "";
}

/// Throws InputError for a two-word command whose first word is valid. `known`: the full names.
[[noreturn]] void refuse_second_word(std::span<const std::string> words,
                                     std::span<const std::string> known) {
  const std::string& first = words.front();
  const bool is_scenario = words.size() > 1 && words[1].ends_with(".json");
  if (words.size() > 1 && !words[1].starts_with('-') && !is_scenario) {
    const std::string given = fmt::format("{} {}", first, words[1]);
    const std::string near = nearest(given, known);
    if (!near.empty()) {
      throw InputError{fmt::format("unknown command \"{}\"; did you mean \"{}\"?", given, near)};
    }
  }
  throw InputError{fmt::format(
      "{}: expected one of {}{}; `kvsim help {}` explains them{}", first, fmt::join(known, ", "),
      words.size() > 1 ? fmt::format(", got \"{}\"", words[1]) : "", first,
      is_scenario ? "; `kvsim run FILE` checks a scenario and runs it" : "")};
}

std::string indented(std::string_view lines, std::string_view by) {
  std::string out;
  std::size_t from = 0;
  while (from <= lines.size()) {
    const std::size_t end = std::min(lines.find('\n', from), lines.size());
    out += fmt::format("{}{}\n", by, lines.substr(from, end - from));
    from = end + 1;
  }
  return out;
}

/// Writes kvsim.1 and a page for each command.
void write_man_pages(const std::filesystem::path& folder) {
  std::error_code status;
  std::filesystem::create_directories(folder, status);  // a failure is reported for the first file
  write_file_atomically(folder / "kvsim.1", general_man_page());
  for (const Command& command : commands()) {
    std::string name = fmt::format("kvsim-{}.1", command.name);
    std::replace(name.begin(), name.end(), ' ', '-');
    write_file_atomically(folder / name, man_page(command));
  }
}

int run_help(const Arguments& arguments) {
  arguments.expect_words(0, 2, "a command");
  if (const auto folder = arguments.value("out")) {
    if (!arguments.has("man") || !arguments.words().empty()) {
      throw InputError{"help: -o needs --man without a command: it writes all pages"};
    }
    write_man_pages(*folder);
    return kDone;
  }
  if (arguments.has("man")) {
    write_out(arguments.words().empty() ? general_man_page()
                                        : man_page(find_command(arguments.words())));
    return kDone;
  }
  if (arguments.words().empty()) {
    write_out(general_help());
    return kDone;
  }
  const std::string group =
      arguments.words().size() == 1 ? group_help(arguments.words().front()) : std::string{};
  write_out(group.empty() ? command_help(find_command(arguments.words())) : group);
  return kDone;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = [] {
    std::vector<Command> list{run_command(),
                              compare_command(),
                              explain_command(),
                              plot_command(),
                              replay_command(),
                              sweep_command(),
                              plan_command(),
                              explorer_command(),
                              trace_info_command(),
                              trace_check_command(),
                              trace_generate_command(),
                              trace_convert_command(),
                              quality_command(),
                              requests_info_command(),
                              requests_convert_command(),
                              requests_generate_command(),
                              fit_surrogate_command(),
                              calibrate_command(),
                              list_command(),
                              show_command(),
                              schema_command()};
    for (Command& command : validate_commands()) list.push_back(std::move(command));
    list.push_back(completion_command());
    list.push_back(help_command());
    for (Command& command : list) {
      const std::string group = command.options.empty() ? "" : command.options.back().group;
      command.options.push_back({.name = "color",
                                 .value = "WHEN",
                                 .help = "auto (on a terminal, without NO_COLOR), always or never",
                                 .values = Option::Values::kWords,
                                 .words = {"auto", "always", "never"},
                                 .group = group});
      command.options.push_back(
          {.name = "help", .letter = 'h', .help = "this text", .group = group});
    }
    return list;
  }();
  return all;
}

std::size_t name_length(const Command& command) {
  return 1 + static_cast<std::size_t>(std::count(command.name.begin(), command.name.end(), ' '));
}

const Command& find_command(std::span<const std::string> words) {
  const std::string& given = words.front();
  std::vector<std::string> known;
  for (const Command& command : commands()) {
    const std::string_view first = command.name.substr(0, command.name.find(' '));
    if (first == words.front()) {
      if (name_length(command) == 1) return command;
      if (words.size() > 1 && command.name == words[0] + " " + words[1]) return command;
      known.emplace_back(command.name);
    }
  }
  if (!known.empty()) refuse_second_word(words, known);
  for (const Command& command : commands()) known.emplace_back(command.name);
  const std::string answer = other_word(given, given);
  if (!answer.empty()) throw InputError{answer};
  const std::string near = nearest(given, known);
  if (near.empty()) {
    std::vector<std::string> others;
    for (const OtherWord& other : kOtherWords) others.emplace_back(other.word);
    if (const std::string slip = nearest(given, others); !slip.empty()) {
      throw InputError{other_word(slip, given)};
    }
  }
  throw InputError{fmt::format("unknown command \"{}\"; {}", shortened(given, kLongestWord),
                               near.empty() ? "`kvsim help` lists the commands"
                                            : fmt::format("did you mean \"{}\"?", near))};
}

std::string general_help() {
  std::string out = fmt::format(
      "kvsim {}: what a KV-cache compression method does to a GPU's memory, time\n"
      "and accuracy\n\n"
      "usage: kvsim COMMAND …\n\n",
      kvsim_version());
  for (const Command& command : commands()) {
    constexpr std::size_t kIndent = 21;
    out += fmt::format("  {:<18} {}", command.name, paragraph(command.summary, kWidth, kIndent));
  }
  out +=
      "\n"
      "  kvsim help COMMAND    its options, with examples\n"
      "  kvsim --version       version, build and calibrations; with --json as JSON\n\n"
      "start with: kvsim plan --model llama-3.1-8b --gpu h100 --method snapkv\n"
      "            kvsim run scenarios/zeromerge-a800.json\n"
      "exit status: 0 done (running out of memory is a result), 1 the answer is \"does\n"
      "             not fit\", 2 bad input, 3 a bug in kvsim\n";
  return out;
}

std::string group_help(std::string_view first) {
  std::string out;
  for (const Command& command : commands()) {
    if (name_length(command) == 1 || !command.name.starts_with(fmt::format("{} ", first))) continue;
    constexpr std::size_t kIndent = 29;
    out +=
        fmt::format("  kvsim {:<20} {}", command.name, paragraph(command.summary, kWidth, kIndent));
  }
  if (out.empty()) return out;
  return fmt::format("kvsim {} …: one of\n\n{}\n  kvsim help {} …    its options, with examples\n",
                     first, out, first);
}

std::string command_help(const Command& command) {
  const std::string head = fmt::format("kvsim {}: {}", command.name, command.summary);
  std::string out =
      fmt::format("{}\nusage:\n{}", paragraph(head, kWidth), indented(command.usage, "  "));
  if (!command.options.empty()) {
    out += command.options.front().group.empty() ? "\noptions:\n" : "\n";
    out += options_help(command.options);
  }
  if (!command.examples.empty()) out += "\nexamples:\n" + indented(command.examples, "  ");
  return out;
}

Command help_command() {
  return {.name = "help",
          .summary = "print this text, or the help of a command",
          .usage = "kvsim help [COMMAND] [--man [-o DIR]]",
          .examples =
              "kvsim help replay\n"
              "kvsim help --man run | man -l -",
          .options = {{"man", 0, "", false, "as a manual page (roff)"},
                      {"out", 'o', "DIR", false, "with --man: folder for the pages of all commands",
                       Option::Values::kFolders}},
          .run = run_help};
}

}  // namespace kvsim
