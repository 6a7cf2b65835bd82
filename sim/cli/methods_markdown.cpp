#include "sim/cli/methods_markdown.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"
#include "sim/report/catalogue/describe.hpp"

namespace kvsim {
namespace {

/// Escapes text for a table cell.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.replace(at, 1, "\\|");
  }
  return text.empty() ? "–" : text;
}

std::string axes_of(const MethodInfo& method) {
  std::string axes;
  for (const auto& [axis, choice] : method.axes) {
    axes += fmt::format("{}`{}={}`", axes.empty() ? "" : " ", axis, choice);
  }
  return axes;
}

}  // namespace

std::string methods_markdown() {
  std::string out =
      "# Compression methods\n\n"
      "Made by `kvsim list methods --markdown`; edits belong in `models/methods`. `kvsim show "
      "method "
      "NAME` prints one\nof these. T: tokens so far, s: of the prompt, B: the budget in entries, "
      "d: "
      "the head dimension; entries are of one\nlayer and stored head.\n\n"
      "A budget is the share of the full cache's K and V bytes that is kept at the end of the "
      "prompt. Methods that read\npart of what they hold (`read=…`) keep everything, and their "
      "budget is what a step reads. `rocketkv` is\ndifferent: its budget is what it keeps of the "
      "prompt, and `topk` limits what a step reads.\n\n"
      "With a budget of the whole sequence most methods are exact. `keepkv` is not: the budget is "
      "the mean over layers,\nwhich fall with depth as a cosine, and what a layer gets beyond the "
      "sequence is not given to others. `pyramidinfer`\nis not: it thins generated tokens at any "
      "budget. `rocketkv` is not: a step reads 64 pages.\n\n"
      "Results count what a merging method did (`counts`): `NAME_merged` are entries that joined\n"
      "another, `NAME_dropped` tokens that were lost.\n\n"
      "A method that is not here can be a Python class or a C library: [your own method](howto/"
      "own-method.md).\n\n"
      "| method | entries held | budget | scores needed | available in |\n|---|---|---|---|---|\n";
  for (const MethodInfo& method : builtin_methods()) {
    out += fmt::format("| [{0}](#{0}) | {1} | {2} | {3} | {4} |\n", method.name,
                       cell(method.size_law), takes_budget(method.name) ? "yes" : "none",
                       cell(method.cost_class), availability_titles(availability_of(method.name)));
  }
  for (const MethodInfo& method : builtin_methods()) {
    out += fmt::format(
        "\n## {}\n\n{}.\n\n- paper: {}\n- axes: {}\n- entries held: {}\n"
        "- scores needed: {}\n- available in: {}\n",
        method.name, method.summary, method.paper.empty() ? "–" : method.paper, axes_of(method),
        method.size_law, method.cost_class, availability_text(availability_of(method.name)));
    if (method.params.empty()) continue;
    out += "\n| parameter | default | range | what | source |\n|---|---|---|---|---|\n";
    for (const ParamInfo& param : method.params) {
      const std::string symbol = param.symbol.empty() ? "" : fmt::format(" ({})", param.symbol);
      out += fmt::format("| `{}`{} | {} | {} | {} | {} |\n", param.name, symbol,
                         cell(to_text(param.default_value)), cell(param.range), cell(param.help),
                         cell(param.source));
    }
  }
  return out;
}

}  // namespace kvsim
