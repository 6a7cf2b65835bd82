#include "sim/cli/options/man_page.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

/// Escapes text for roff, so that it contains no requests and no special characters: "-" as typed,
/// "…" as dots.
std::string roff(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    if (text.substr(i, 3) == "…") {
      out += "...";
      i += 2;
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '`') {
      out += "\\(ga";
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else {
      out += c;
    }
  }
  return out;
}

std::string dashed_name(std::string_view name) {
  std::string out = fmt::format("kvsim-{}", name);
  std::replace(out.begin(), out.end(), ' ', '-');
  return out;
}

std::string head(const std::string& name, std::string_view summary) {
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(".TH {} 1 \"\" \"kvsim {}\" \"kvsim manual\"\n.SH NAME\n{} \\- {}\n",
                     roff(upper), kvsim_version(), roff(name), roff(summary));
}

/// Lines printed verbatim.
std::string literal(std::string_view lines) { return fmt::format(".nf\n{}\n.fi\n", roff(lines)); }

std::string option_entry(const Option& option) {
  const std::string value =
      option.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.value));
  const std::string letter =
      option.letter == 0 ? "" : fmt::format("\\fB\\-{}\\fR, ", option.letter);
  return fmt::format(".TP\n{}\\fB{}\\fR{}\n{}\n", letter, roff(fmt::format("--{}", option.name)),
                     value, roff(full_help(option)));
}

constexpr std::string_view kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\ndone; running out of memory inside a run is a result\n"
    ".TP\n1\nthe answer is \"does not fit\", or \"differs\", if that was the question\n"
    ".TP\n2\nbad input, or output that cannot be written\n"
    ".TP\n3\na bug in kvsim\n"
    ".TP\n130, 143, 129\nended by SIGINT, SIGTERM or SIGHUP\n";

}  // namespace

std::string general_man_page() {
  std::string out =
      head("kvsim", "what a KV-cache compression method does to a GPU's memory, time and accuracy");
  out += ".SH SYNOPSIS\n" + literal(
                                "kvsim COMMAND [words] [options]\nkvsim help [COMMAND]\n"
                                "kvsim --version [--json]");
  out += ".SH COMMANDS\n";
  for (const Command& command : commands()) {
    out += fmt::format(".TP\n\\fB{}\\fR\n{}; see \\fB{}\\fR(1)\n", roff(command.name),
                       roff(command.summary), roff(dashed_name(command.name)));
  }
  out += kExitStatus;
  out +=
      ".SH ENVIRONMENT\n"
      ".TP\nNO_COLOR\nset and not empty: no colour\n"
      ".TP\nTERM\n\"dumb\": neither colour nor sparklines\n";
  return out;
}

std::string man_page(const Command& command) {
  std::string out = head(dashed_name(command.name), command.summary);
  out += ".SH SYNOPSIS\n" + literal(command.usage);
  if (!command.options.empty()) out += ".SH OPTIONS\n";
  std::string group;
  for (const Option& option : command.options) {
    if (option.group != group) out += fmt::format(".SS {}\n", roff(option.group));
    group = option.group;
    out += option_entry(option);
  }
  if (!command.examples.empty()) out += ".SH EXAMPLES\n" + literal(command.examples);
  out += kExitStatus;
  return out + ".SH SEE ALSO\n\\fBkvsim\\fR(1)\n";
}

}  // namespace kvsim
