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

/// "; every case fits", "; 2 of 3 cases run out of memory", "; memory runs out from batch 64 on".
std::string memory_words(const ScenarioSweep& sweep, const std::vector<std::size_t>& cases) {
  const bool serves = sweep.plan().kind() == "serve";
  const auto n_out = static_cast<std::size_t>(
      std::count_if(cases.begin(), cases.end(), [&](std::size_t i) { return sweep.ran_out(i); }));
  if (n_out == 0) return serves ? "" : "; every case fits";
  const std::string some = fmt::format("; {} of {} cases {}", n_out, cases.size(),
                                       serves ? "serve no request" : "run out of memory");
  if (serves || sweep.columns().size() != 1) return some;
  // If one number varies, the cases that run out may be exactly those above some value.
  const SweepColumn& column = sweep.columns().front();
  for (const std::size_t i : cases) {
    if (!sweep.value(column, i).is_number()) return some;
  }
  std::vector<std::size_t> order = cases;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sweep.value(column, a).get<double>() < sweep.value(column, b).get<double>();
  });
  const auto first = order.end() - static_cast<std::ptrdiff_t>(n_out);
  if (!std::all_of(first, order.end(), [&](std::size_t i) { return sweep.ran_out(i); })) {
    return some;
  }
  return fmt::format("; memory runs out at {} {} and above", column.name,
                     sweep_value_text(sweep.value(column, *first)));
}

/// The range of the sweep's main measure, for sweeps in which no method varies.
std::string range_finding(const ScenarioSweep& sweep, const SweepMeasure* measure) {
  std::vector<std::size_t> cases, running;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    if (sweep.skipped(i)) continue;
    cases.push_back(i);
    if (!sweep.ran_out(i)) running.push_back(i);
  }
  if (cases.empty()) return "No case is possible: every point is skipped.";
  const bool serves = sweep.plan().kind() == "serve";
  if (running.empty()) return serves ? "No case serves a request." : "No case fits.";
  std::vector<std::size_t> measured;
  for (const std::size_t i : running) {
    if (measure != nullptr && sweep.measure(*measure, i)) measured.push_back(i);
  }
  const std::string memory = memory_words(sweep, cases);
  if (measured.empty()) {
    return memory.empty() ? ""
                          : fmt::format("Of {} cases, {} {}{}.", cases.size(), running.size(),
                                        serves ? "serve requests" : "fit",
                                        running.size() == cases.size() ? "" : memory);
  }
  const auto number = [&](std::size_t i) {
    return fmt::format("{:.4g}", *sweep.measure(*measure, i) / measure->divisor);
  };
  const std::string unit = measure->unit.empty() ? "" : " " + measure->unit;
  const auto [low, high] =
      std::minmax_element(measured.begin(), measured.end(), [&](std::size_t a, std::size_t b) {
        return *sweep.measure(*measure, a) < *sweep.measure(*measure, b);
      });
  if (measured.size() == 1) {
    const std::string name = sweep_point_words(sweep, *low);
    return fmt::format("The only case with a result{} has {}{} of {}{}.",
                       name.empty() ? "" : fmt::format(" ({})", name), number(*low), unit,
                       measure->words, memory);
  }
  if (number(*low) == number(*high)) {
    return fmt::format("Every case with a result has {}{} of {}{}.", number(*low), unit,
                       measure->words, memory);
  }
  return fmt::format("The range of {} is {} to {}{}: lowest at {}, highest at {}{}.",
                     measure->words, number(*low), number(*high), unit,
                     sweep_point_words(sweep, *low), sweep_point_words(sweep, *high), memory);
}

}  // namespace

std::string sweep_finding(const ScenarioSweep& sweep) {
  const auto column = [&](std::string_view name) -> const SweepColumn* {
    for (const SweepColumn& one : sweep.columns()) {
      if (one.name == name) return &one;
    }
    return nullptr;
  };
  const SweepColumn* method = column("method");
  const auto measure =
      std::find_if(sweep.measures().begin(), sweep.measures().end(), [](const SweepMeasure& one) {
        return one.path == "decode_tok_s" || one.path == "throughput_tok_s" ||
               one.path == "goodput";
      });
  if (method == nullptr) {
    const SweepMeasure* main = nullptr;
    if (!sweep.measures().empty()) main = &sweep.measures().front();
    if (measure != sweep.measures().end()) main = &*measure;
    return range_finding(sweep, main);
  }
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
    words.gain = "has {} times the tokens per second";
    words.no_gain = "no method has over 5 % more tokens per second";
  }
  return finding_of(cases, words);
}

}  // namespace kvsim
