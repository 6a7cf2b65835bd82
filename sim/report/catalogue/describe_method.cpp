#include <variant>

#include <fmt/format.h>

#include "models/methods/resolve/availability.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_text.hpp"

namespace kvsim {

using nlohmann::ordered_json;

ordered_json method_json(const MethodInfo& method) {
  ordered_json out{{"name", method.name},
                   {"summary", method.summary},
                   {"paper", method.paper},
                   {"axes", method.axes},
                   {"takes_budget", takes_budget(method.name)},
                   {"size_law", method.size_law},
                   {"cost_class", method.cost_class}};
  out["available_in"] = ordered_json::array();
  for (const Availability& one : availability_of(method.name)) {
    out["available_in"].push_back({{"software", software_title(one.software)}, {"as", one.as}});
  }
  out["params"] = ordered_json::array();
  for (const ParamInfo& param : method.params) {
    ordered_json one{{"name", param.name}, {"symbol", param.symbol}};
    std::visit([&](const auto& value) { one["default"] = value; }, param.default_value);
    one["range"] = param.range;
    one["help"] = param.help;
    one["source"] = param.source;
    one["aliases"] = param.aliases;
    out["params"].push_back(std::move(one));
  }
  return out;
}

std::string method_text(const MethodInfo& method, std::size_t width) {
  Facts facts;
  facts.add("what", method.summary);
  if (!method.paper.empty()) facts.add("paper", method.paper);
  std::string axes;
  for (const auto& [axis, choice] : method.axes) {
    axes += fmt::format("{}{}={}", axes.empty() ? "" : ", ", axis, choice);
  }
  facts.add("composed of", axes);
  facts.add("entries held", method.size_law + " per layer and stored head, T tokens so far");
  facts.add("scores needed", method.cost_class);
  facts.add("budget", takes_budget(method.name)
                          ? "yes: a fraction of the prompt's cache, or entries per head"
                          : "none");
  facts.add("available in", availability_text(availability_of(method.name)));
  std::string out = method.name + "\n" + facts.str(width);
  if (!method.params.empty()) out += "\nparameters\n";
  for (const ParamInfo& param : method.params) {
    out += fmt::format("  {} = {}\n", param.name, to_text(param.default_value));
    Facts lines;
    if (!param.symbol.empty()) lines.add("  symbol", param.symbol);
    lines.add("  what", param.help);
    lines.add("  range", param.range);
    if (!param.source.empty()) lines.add("  source", param.source);
    out += lines.str(width);
  }
  return out;
}

}  // namespace kvsim
