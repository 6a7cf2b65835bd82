#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/cost/kernels/form.hpp"
#include "models/units/error.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;
constexpr double kPercent = 100;

ordered_json summary_json(const ErrorSummary& s) {
  if (s.n == 0) return nullptr;
  return {{"rows", s.n},          {"mape", s.mape},           {"median_ape", s.median_ape},
          {"p90_ape", s.p90_ape}, {"worst_ape", s.worst_ape}, {"bias", s.bias}};
}
std::string percent(double fraction) { return fmt::format("{:.1f}", kPercent * fraction); }

std::string summary_text(const ErrorSummary& s) {
  if (s.n == 0) return "none";
  return fmt::format("{} rows: {} % on average, 90 % within {} %, worst {} %, bias {:+.1f} %", s.n,
                     percent(s.mape), percent(s.p90_ape), percent(s.worst_ape), kPercent * s.bias);
}

}  // namespace

std::vector<NamedCalibration> named_calibrations() {
  std::vector<NamedCalibration> out;
  for (const KernelCalibrationFile& file : builtin_calibrations()) {
    for (const KernelCalibration& entry : file.entries) {
      out.push_back({.name = fmt::format("{}:{}:{}:{}", name_of(entry.op), entry.gpu, entry.stack,
                                         entry.format),
                     .file = &file,
                     .entry = &entry});
    }
  }
  return out;
}

NamedCalibration find_calibration(std::string_view name) {
  std::vector<std::string> known, longer;
  for (const NamedCalibration& one : named_calibrations()) {
    if (one.name == name) return one;
    known.push_back(one.name);
    if (one.name.starts_with(name)) longer.push_back(one.name);
  }
  // There are too many to name: list those with the same prefix, or say where they are listed.
  if (!longer.empty()) throw InputError{unknown_name("calibration", name, longer)};
  const std::string near = nearest(name, known);
  throw InputError{fmt::format("unknown calibration \"{}\"{}; `kvsim list calibrations` names all",
                               name,
                               near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near))};
}

ordered_json calibration_json(const NamedCalibration& named) {
  const KernelCalibration& entry = *named.entry;
  ordered_json coefficients = ordered_json::object();
  const KernelForm& form = form_of(entry.op);
  for (std::size_t i = 0; i < form.coefficients.size(); ++i) {
    const Coefficient& c = form.coefficients[i];
    coefficients[std::string{c.name}] = {
        {"value", entry.coefficients[i]}, {"unit", c.unit}, {"help", c.help}};
  }
  ordered_json ranges = ordered_json::object();
  const auto names = dimension_names(entry.op);
  for (std::size_t i = 0; i < kDimensions; ++i) {
    if (names[i].empty()) continue;
    ranges[std::string{names[i]}] = {entry.ranges[i].low, entry.ranges[i].high};
  }
  return {{"name", named.name},
          {"op", name_of(entry.op)},
          {"gpu", entry.gpu},
          {"kernels", entry.stack},
          {"format", entry.format},
          {"form", entry.form},
          {"fitted", summary_json(entry.fitted)},
          {"held_out", summary_json(entry.held_out)},
          {"log_q05", entry.q05},
          {"log_q95", entry.q95},
          {"ranges", std::move(ranges)},
          {"coefficients", std::move(coefficients)},
          {"split", named.file->split},
          {"source", named.file->provenance},
          {"date", named.file->date}};
}

std::string calibration_text(const NamedCalibration& named, std::size_t width) {
  const KernelCalibration& entry = *named.entry;
  Facts facts;
  facts.add("operators", std::string{name_of(entry.op)});
  facts.add("GPU", entry.gpu);
  facts.add("kernels", entry.stack);
  facts.add("format", entry.format);
  facts.add("form", entry.form);
  facts.add("fitted", summary_text(entry.fitted));
  facts.add("held out", summary_text(entry.held_out));
  facts.add("90 % lie", fmt::format("{:.3f} to {:.3f} times the prediction", std::exp(entry.q05),
                                    std::exp(entry.q95)));
  const auto names = dimension_names(entry.op);
  for (std::size_t i = 0; i < kDimensions; ++i) {
    if (names[i].empty()) continue;
    facts.add(fmt::format("measured {}", names[i]),
              fmt::format("{:.6g} to {:.6g}", entry.ranges[i].low, entry.ranges[i].high));
  }
  facts.add("split", named.file->split);
  facts.add("source", named.file->provenance);
  facts.add("date", named.file->date);
  Facts coefficients;
  const KernelForm& form = form_of(entry.op);
  for (std::size_t i = 0; i < form.coefficients.size(); ++i) {
    const Coefficient& c = form.coefficients[i];
    coefficients.add(std::string{c.name},
                     fmt::format("{:.6g}{}: {}", entry.coefficients[i],
                                 c.unit == "1" ? "" : fmt::format(" {}", c.unit), c.help));
  }
  return named.name + "\n" + facts.str(width) + "\ncoefficients\n" + coefficients.str(width);
}

std::string calibrations_text(const std::vector<NamedCalibration>& calibrations,
                              std::size_t width) {
  Table table{{{"kernels", Align::kLeft},
               {"format", Align::kLeft},
               {"rows", Align::kRight, "fitted"},
               {"MAPE", Align::kRight, "fitted"},
               {"rows", Align::kRight, "held out"},
               {"MAPE", Align::kRight, "held out"},
               {"p90", Align::kRight, "held out"}}};
  std::string heading;
  for (const NamedCalibration& named : calibrations) {
    const KernelCalibration& e = *named.entry;
    const std::string now = fmt::format("{}:{} ({})", name_of(e.op), e.gpu, named.file->date);
    if (now != heading) table.add_section(now);
    heading = now;
    const bool held = e.held_out.n > 0;
    table.add_row({"  " + e.stack, e.format, fmt::format("{}", e.fitted.n), percent(e.fitted.mape),
                   held ? fmt::format("{}", e.held_out.n) : "-",
                   held ? percent(e.held_out.mape) : "-",
                   held ? percent(e.held_out.p90_ape) : "-"});
  }
  return table.str(width) +
         "errors in %; ranges and sources: `kvsim show calibration OP:GPU:KERNELS:FORMAT`\n";
}

}  // namespace kvsim
