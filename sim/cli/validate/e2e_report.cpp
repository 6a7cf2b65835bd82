#include "sim/cli/validate/e2e_report.hpp"

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

/// A measured quantity and its prediction; missing values are absent.
struct ComparedQuantity {
  const char* name;
  const char* unit;
  std::optional<double> measured, predicted;

  [[nodiscard]] std::optional<double> error() const {
    if (!measured || !predicted || *measured == 0) return std::nullopt;
    return *predicted / *measured - 1;
  }
};

double whole(std::int64_t n) { return static_cast<double>(n); }

std::vector<ComparedQuantity> quantities(const E2eScore& score) {
  const kernels::LoopMeasurement& m = *score.measured;
  std::vector<ComparedQuantity> out{
      {"throughput", "tok/s", 1e6 * whole(score.plan.loop.batch) / m.step_us, {}},
      {"peak_hbm", "B", whole(m.used.count()), {}},
      {"longest_sequence", "tokens", {}, {}}};
  if (m.longest) out[2].measured = whole(*m.longest);
  if (score.predicted) {
    out[0].predicted = score.predicted->tok_s;
    out[1].predicted = whole(score.predicted->peak.count());
    if (score.predicted->longest) out[2].predicted = whole(*score.predicted->longest);
  }
  return out;
}

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json check_json(const LoopCheck& check) {
  ordered_json ops = ordered_json::array();
  for (const CheckedOp& op : check.ops) {
    ordered_json differences = ordered_json::array();
    for (const NamedDifference& d : op.differences) {
      differences.push_back({{"what", d.what}, {"loaded", d.loaded}, {"stored", d.stored}});
    }
    ops.push_back({{"name", op.name},
                   {"runs", op.runs},
                   {"counted", {{"loaded", op.loaded}, {"stored", op.stored}}},
                   {"formula", {{"loaded", op.formula_loaded}, {"stored", op.formula_stored}}},
                   {"graph", {{"read", op.graph_read}, {"written", op.graph_written}}},
                   {"differences", std::move(differences)},
                   {"agrees", op.agrees()}});
  }
  return {{"steps", check.steps},
          {"entries_compared", check.entries_compared},
          {"error_allowed", check.allowed},
          {"projection_error", check.projection_error},
          {"attention_error", check.attention_error},
          {"cache_error", check.cache_error},
          {"logits_error", check.logits_error},
          {"operators", std::move(ops)},
          {"problems", check.problems}};
}

ordered_json measured_json(const kernels::LoopMeasurement& m) {
  ordered_json out{{"step_us", m.step_us},           {"spread", m.spread},
                   {"samples", m.samples},           {"launches_per_step", m.launches_per_step},
                   {"total_bytes", m.total.count()}, {"used_before_bytes", m.used_before.count()},
                   {"used_bytes", m.used.count()},   {"longest_sequence", nullptr},
                   {"longest_tries", m.tries}};
  if (m.longest) out["longest_sequence"] = *m.longest;
  return out;
}

std::string run_text(const E2eScore& s) {
  const bool bounded = s.plan.loop.method != kernels::LoopMethod::kFull;
  return fmt::format("{}, {} layers, {}{}, batch {}, prompt {}, {} steps, on {}", s.plan.llm.name,
                     s.plan.llm.n_layers(), s.request.method,
                     bounded ? fmt::format(" of {} entries", s.request.budget) : "",
                     s.request.batch, s.request.prompt, s.request.output, s.device);
}

std::string check_text(const LoopCheck& check, std::size_t width) {
  Facts facts;
  facts.add("steps", fmt::format("{}", check.steps));
  facts.add("entries compared", fmt::format("{}", check.entries_compared));
  facts.add("errors",
            fmt::format("projections {:.1e}, attention {:.1e}, cache {:.1e}, logits {:.1e} "
                        "(allowed {:.1e})",
                        check.projection_error, check.attention_error, check.cache_error,
                        check.logits_error, check.allowed));
  Table table{{{"operator", Align::kLeft},
               {"runs"},
               {"loaded"},
               {"stored"},
               {"graph reads"},
               {"writes"},
               {"agrees", Align::kLeft}}};
  for (const CheckedOp& op : check.ops) {
    table.add_row({op.name, fmt::format("{}", op.runs), fmt::format("{}", op.loaded),
                   fmt::format("{}", op.stored), fmt::format("{:.0f}", op.graph_read),
                   fmt::format("{:.0f}", op.graph_written), op.agrees() ? "yes" : "NO"});
  }
  std::string out = facts.str(width) + "\n" + table.str(width);
  for (const std::string& problem : check.problems) out += fmt::format("PROBLEM: {}\n", problem);
  out +=
      check.pass()
          ? "the loop equals its reference; bytes equal the graph's except for named differences\n"
          : "";
  return out;
}

}  // namespace

ordered_json e2e_json(const E2eScore& s) {
  ordered_json out{{"schema", "kvsim.validate-e2e/1"},
                   {"device", s.device},
                   {"driver", nullptr},
                   {"model", s.plan.llm.name},
                   {"layers", s.plan.llm.n_layers()},
                   {"stack", "kvsim-kernels"},
                   {"method", s.request.method},
                   {"params", ordered_json::object()},
                   {"budget", nullptr},
                   {"batch", s.request.batch},
                   {"prompt", s.request.prompt},
                   {"output", s.request.output},
                   {"seed", s.request.seed},
                   {"dtype", std::string{name_of(s.plan.dtype)}},
                   {"pass", s.pass()},
                   {"check", nullptr},
                   {"measured", nullptr},
                   {"quantities", ordered_json::array()},
                   {"notes", s.notes}};
  if (!s.driver.empty()) out["driver"] = s.driver;
  if (s.plan.loop.method != kernels::LoopMethod::kFull) out["budget"] = s.request.budget;
  for (const auto& [name, value] : s.plan.method->params()) out["params"][name] = to_text(value);
  if (s.check) out["check"] = check_json(*s.check);
  if (!s.measured) return out;
  out["measured"] = measured_json(*s.measured);
  for (const ComparedQuantity& q : quantities(s)) {
    out["quantities"].push_back({{"name", q.name},
                                 {"unit", q.unit},
                                 {"measured", or_null(q.measured)},
                                 {"predicted", or_null(q.predicted)},
                                 {"error", or_null(q.error())}});
  }
  return out;
}

std::string e2e_text(const E2eScore& s, std::size_t width) {
  std::string out = run_text(s) + "\n";
  if (s.check) out += check_text(*s.check, width);
  if (s.measured) {
    const kernels::LoopMeasurement& m = *s.measured;
    out += fmt::format("a step: {:.1f} us, spread {:.1f} %, {} samples, {:.0f} launches\n",
                       m.step_us, 100 * m.spread, m.samples, m.launches_per_step);
    Table table{{{"quantity", Align::kLeft},
                 {"unit", Align::kLeft},
                 {"measured"},
                 {"predicted"},
                 {"error"}}};
    const auto number = [](const std::optional<double>& value) {
      return value ? fmt::format("{:.10g}", *value) : std::string{"-"};
    };
    for (const ComparedQuantity& q : quantities(s)) {
      const auto error = q.error();
      table.add_row({q.name, q.unit, number(q.measured), number(q.predicted),
                     error ? fmt::format("{:+.1f} %", 100 * *error) : std::string{"-"}});
    }
    out += "\n" + table.str(width);
  }
  for (const std::string& note : s.notes) out += fmt::format("note: {}\n", note);
  return out;
}

}  // namespace kvsim
