#include "validation/calibrate_kernels.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

#include "models/cost/kernels/work.hpp"
#include "sim/engine/parallel.hpp"
#include "validation/fit.hpp"
#include "validation/kernel_accuracy.hpp"

namespace kvsim {
namespace {

using Pointers = std::vector<const MeasuredRow*>;

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

ErrorSummary errors_of(const KernelForm& form, const std::vector<double>& c, const Pointers& rows,
                       std::vector<double>& logs) {
  std::vector<double> errors;
  for (const MeasuredRow* row : rows) {
    const double us = form.microseconds(row->call, row->format, kernel_gpu(*row->gpu), c.data());
    errors.push_back(us / row->us - 1);
    logs.push_back(std::log(row->us / us));
  }
  return summarise(std::move(errors));
}

bool has_floor(const KernelForm& form) {
  return std::any_of(form.coefficients.begin(), form.coefficients.end(),
                     [](const Coefficient& c) { return c.name == "least_us"; });
}

/// The form's start with its floor at the shortest time: far from that a floor
/// leaves no trace in any time, and a descent does not find it.
std::vector<double> floored_start(const KernelForm& form, const Pointers& rows) {
  const auto shortest =
      std::min_element(rows.begin(), rows.end(),
                       [](const MeasuredRow* a, const MeasuredRow* b) { return a->us < b->us; });
  std::vector<double> start;
  for (const Coefficient& c : form.coefficients) {
    start.push_back(c.name == "least_us" ? std::clamp((*shortest)->us, c.low, c.high) : c.start);
  }
  return start;
}

/// Whether the data sheet allows a time. A call that is too large for the cache and yet faster than
/// the memory could feed it did other work than it says: experts that no token reached, say.
bool is_possible(const MeasuredRow& row) {
  constexpr double kTolerance = 0.95;  // of data-sheet rates
  const KernelGpu gpu = kernel_gpu(*row.gpu);
  return work_of(row.call, row.format).bytes < 2 * gpu.l2 ||
         row.us >= kTolerance * ideal_microseconds(row.call, row.format, gpu);
}

KernelCalibration calibrate(const Pointers& rows, std::span<const std::vector<double>> starts) {
  const MeasuredRow& first = *rows.front();
  KernelCalibration out{.op = op_of(first.call),
                        .gpu = first.gpu->name,
                        .stack = first.stack,
                        .format = first.format.name};
  const KernelForm& form = form_of(out.op);
  out.form = form.id;
  Pointers fitted, held;
  for (const MeasuredRow* row : rows) {
    if (is_held_out(*row)) {
      held.push_back(row);
    } else if (is_possible(*row)) {
      fitted.push_back(row);
    }
  }
  if (fitted.size() < kLeastRows / 2) std::swap(fitted, held);  // one shape alone, and held out
  std::vector<std::vector<double>> all_starts(starts.begin(), starts.end());
  if (has_floor(form)) all_starts.push_back(floored_start(form, fitted));
  out.coefficients = fit_form(form, fitted, all_starts).coefficients;
  std::vector<double> fitted_logs, held_logs;
  out.fitted = errors_of(form, out.coefficients, fitted, fitted_logs);
  out.held_out = errors_of(form, out.coefficients, held, held_logs);
  const std::vector<double>& logs = held_logs.size() >= kLeastRows ? held_logs : fitted_logs;
  out.q05 = quantile(logs, 0.05);
  out.q95 = quantile(logs, 0.95);
  for (KernelRange& range : out.ranges) {
    range = {.low = std::numeric_limits<double>::infinity(), .high = 0};
  }
  for (const MeasuredRow* row : fitted) {
    const auto at = dimensions_of(row->call);
    for (std::size_t i = 0; i < kDimensions; ++i) {
      out.ranges[i].low = std::min(out.ranges[i].low, at[i]);
      out.ranges[i].high = std::max(out.ranges[i].high, at[i]);
    }
  }
  return out;
}

}  // namespace

std::string calibration_file_name(const KernelCalibrationFile& file) {
  std::string name = fmt::format("{}-{}.json", name_of(file.entries.front().op), file.gpu);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::vector<KernelCalibrationFile> calibrate_kernels(const std::vector<MeasuredFile>& files,
                                                     const std::string& provenance,
                                                     const std::string& date,
                                                     const std::function<void(double)>& progress) {
  using Key = std::tuple<std::string, int, std::string, std::string>;  // GPU, op, stack, format
  std::map<Key, Pointers> groups;
  for (const MeasuredFile& file : files) {
    for (const MeasuredRow& row : file.rows) {
      groups[{row.gpu->name, static_cast<int>(op_of(row.call)), row.stack, row.format.name}]
          .push_back(&row);
    }
  }
  std::vector<std::pair<Key, Pointers>> tasks;
  for (auto& [key, rows] : groups) {
    if (rows.size() >= kLeastRows) tasks.emplace_back(key, std::move(rows));
  }
  std::vector<KernelCalibration> fits(tasks.size());
  std::mutex mutex;
  std::size_t done = 0;
  parallel_for(tasks.size(), 0, [&](std::size_t i) {
    fits[i] = calibrate(tasks[i].second, {});
    const std::scoped_lock lock{mutex};
    ++done;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(tasks.size()));
  });
  std::map<std::pair<std::string, int>, KernelCalibrationFile> out;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto& [gpu, op, stack, format] = tasks[i].first;
    KernelCalibrationFile& file = out[{gpu, op}];
    file.gpu = gpu;
    file.provenance = provenance;
    file.date = date;
    file.split =
        "a fifth of the shapes, by a hash of the shape's name, was kept from the fit; so were rows "
        "faster than the data sheet allows";
    file.entries.push_back(std::move(fits[i]));
  }
  std::vector<KernelCalibrationFile> list;
  for (auto& [key, file] : out) list.push_back(std::move(file));
  return list;
}

}  // namespace kvsim
