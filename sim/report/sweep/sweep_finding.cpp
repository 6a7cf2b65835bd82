#include "sim/report/sweep/sweep_finding.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/report/text/method_cases.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

}  // namespace

std::string sweep_finding(const ScenarioSweep& sweep) {
  const auto column = [&](std::string_view name) -> const SweepColumn* {
    for (const SweepColumn& one : sweep.columns()) {
      if (one.name == name) return &one;
    }
    return nullptr;
  };
  const SweepColumn* method = column("method");
  if (method == nullptr) return "";
  const auto measure =
      std::find_if(sweep.measures().begin(), sweep.measures().end(), [](const SweepMeasure& one) {
        return one.path == "decode_tok_s" || one.path == "throughput_tok_s" ||
               one.path == "goodput";
      });
  const bool serves = sweep.plan().kind() == "serve";
  std::map<std::string, std::size_t> known;
  std::vector<MethodCase> cases;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    if (sweep.skipped(i)) continue;
    // A case is a combination of the values of all axes except the method's.
    json key = json::array();
    const std::vector<json> values = sweep.plan().values(i);
    for (std::size_t a = 0; a < values.size(); ++a) {
      const std::string& pointer = sweep.plan().axes()[a].pointer;
      if (a != method->axis && !pointer.ends_with("/budget")) key.push_back(values[a]);
    }
    const auto [at, is_new] = known.emplace(key.dump(), cases.size());
    if (is_new) cases.emplace_back();
    MethodCase& one = cases[at->second];
    const std::string name = sweep_value_text(sweep.value(*method, i));
    const SweepColumn* budget = column("budget");
    const json share = budget == nullptr ? json(nullptr) : sweep.value(*budget, i);
    MethodCase::Rival rival{
        .label =
            share.is_null() ? name : fmt::format("{} budget {}", name, sweep_value_text(share)),
        .runs = !sweep.ran_out(i),
        .value = measure == sweep.measures().end() ? std::nullopt : sweep.measure(*measure, i)};
    if (name == "full") {
      one.full = std::move(rival);
    } else {
      one.methods.push_back(std::move(rival));
    }
  }
  CaseWords words = static_case_words();
  if (serves) {
    words = service_case_words(true);
    words.gain = "has {} times the goodput";
    words.only = "has any goodput";
    words.no_gain = "no method has over 5 % more goodput";
  } else if (measure != sweep.measures().end() && measure->path == "throughput_tok_s") {
    words.gain = "gives {} times the tokens per second";
    words.no_gain = "no method gives over 5 % more tokens per second";
  }
  return finding_of(cases, words);
}

}  // namespace kvsim
