#include "validation/measured/calibrate_kernels.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

#include "models/cost/kernels/spread.hpp"
#include "models/cost/kernels/work.hpp"
#include "sim/engine/parallel.hpp"
#include "validation/measured/fit.hpp"
#include "validation/measured/kernel_accuracy.hpp"

namespace kvsim {
namespace {

using Pointers = std::vector<const MeasuredRow*>;

ErrorSummary errors_of(const KernelForm& form, const std::vector<double>& c, const Pointers& rows) {
  std::vector<double> errors;
  for (const MeasuredRow* row : rows) {
    const double us = form.microseconds(row->call, row->format, kernel_gpu(*row->gpu), c.data());
    errors.push_back(us / row->us - 1);
  }
  return summarise(std::move(errors));
}

bool has_floor(const KernelForm& form) {
  return std::any_of(form.coefficients.begin(), form.coefficients.end(),
                     [](const Coefficient& c) { return c.name == "least_us"; });
}

/// Returns the form's start with its floor at the shortest time. A floor far from it affects no
/// time, so that a descent cannot find it.
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

/// Whether a time is possible according to the data sheet. A call that exceeds the cache and is
/// faster than the memory bandwidth did less work than stated, for example because some experts
/// received no tokens.
bool is_possible(const MeasuredRow& row) {
  constexpr double kTolerance = 0.95;  // of data-sheet rates
  const KernelGpu gpu = kernel_gpu(*row.gpu);
  return work_of(row.call, row.format).bytes < 2 * gpu.l2 ||
         row.us >= kTolerance * ideal_microseconds(row.call, row.format, gpu);
}

/// Returns log(measured / predicted) by shape, each from a fit without this shape: one of five fits
/// that each leave out a fifth of the shapes. With only one shape, the errors are those of the full
/// fit.
Clusters cross_validate(const KernelForm& form, const Pointers& rows, const FitResult& fit) {
  constexpr std::size_t kFolds = 5;
  constexpr int kRounds = 3;  // of reweighting; few, since the start is close
  std::map<std::pair<std::uint64_t, std::string>, Pointers> shapes;  // in the order of the split
  for (const MeasuredRow* row : rows) {
    shapes[{shape_hash(row->shape) / kFolds, row->shape}].push_back(row);
  }
  const std::size_t folds = std::min(kFolds, shapes.size());
  Clusters out;
  for (std::size_t fold = 0; fold < folds; ++fold) {
    Pointers kept;
    std::vector<const Pointers*> left_out;
    std::size_t i = 0;
    for (const auto& [name, members] : shapes) {
      const bool out_of_it = i++ % folds == fold;
      if (out_of_it) left_out.push_back(&members);
      if (!out_of_it || folds == 1) kept.insert(kept.end(), members.begin(), members.end());
    }
    const std::vector<double> c =
        folds == 1 ? fit.coefficients
                   : refit_form(form, kept, fit, {.rounds = kRounds}).coefficients;
    for (const Pointers* members : left_out) {
      out.emplace_back();
      for (const MeasuredRow* row : *members) {
        out.back().push_back(std::log(
            row->us / form.microseconds(row->call, row->format, kernel_gpu(*row->gpu), c.data())));
      }
    }
  }
  return out;
}

/// The same with inverted signs: low values become high.
Clusters negated(Clusters clusters) {
  for (std::vector<double>& cluster : clusters) {
    for (double& value : cluster) value = -value;
  }
  return clusters;
}

constexpr double kEnd = 0.95;  // on either side of a 90 % interval

double plain_limit(const Clusters& clusters) {
  std::vector<double> all;
  for (const auto& cluster : clusters) all.insert(all.end(), cluster.begin(), cluster.end());
  return quantile_of(std::move(all), kEnd);
}

/// Sets the ends of the calibrations' intervals. The correlation of errors within a shape is
/// estimated over a family, because one calibration has too few shapes.
void set_intervals(std::vector<KernelCalibration>& fits, const std::vector<Clusters>& errors) {
  std::map<KernelOp, std::array<ExceedanceCorrelation, 2>> families;
  for (std::size_t i = 0; i < fits.size(); ++i) {
    const Clusters low = negated(errors[i]);
    families[fits[i].op][0].add(low, plain_limit(low));
    families[fits[i].op][1].add(errors[i], plain_limit(errors[i]));
  }
  for (std::size_t i = 0; i < fits.size(); ++i) {
    const auto& family = families.at(fits[i].op);
    fits[i].q05 = -upper_limit(negated(errors[i]), kEnd, family[0].value());
    fits[i].q95 = upper_limit(errors[i], kEnd, family[1].value());
  }
}

KernelCalibration calibrate(const Pointers& rows, std::span<const std::vector<double>> starts,
                            Clusters& by_shape) {
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
  if (fitted.size() < kMinRows / 2) std::swap(fitted, held);  // only one shape, and held out
  std::vector<std::vector<double>> all_starts(starts.begin(), starts.end());
  if (has_floor(form)) all_starts.push_back(floored_start(form, fitted));
  const FitResult fit = fit_form(form, fitted, all_starts);
  out.coefficients = fit.coefficients;
  by_shape = cross_validate(form, fitted, fit);
  out.fitted = errors_of(form, out.coefficients, fitted);
  out.held_out = errors_of(form, out.coefficients, held);
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

using Key = std::tuple<std::string, int, std::string, std::string>;  // GPU, op, stack, format

std::map<Key, Pointers> grouped(const std::vector<MeasuredFile>& files) {
  std::map<Key, Pointers> groups;
  for (const MeasuredFile& file : files) {
    for (const MeasuredRow& row : file.rows) {
      groups[{row.gpu->name, static_cast<int>(op_of(row.call)), row.stack, row.format.name}]
          .push_back(&row);
    }
  }
  return groups;
}

}  // namespace

std::vector<TimingGroup> timing_groups(const std::vector<MeasuredFile>& files) {
  std::vector<TimingGroup> out;
  for (const auto& [key, rows] : grouped(files)) {
    const auto& [gpu, op, stack, format] = key;
    out.push_back({gpu, static_cast<KernelOp>(op), stack, format, rows.size()});
  }
  return out;
}

std::vector<TimingGroup> groups_with_too_few_rows(const std::vector<MeasuredFile>& files) {
  std::vector<TimingGroup> out = timing_groups(files);
  std::erase_if(out, [](const TimingGroup& group) { return group.rows >= kMinRows; });
  return out;
}

std::string calibration_file_name(const KernelCalibrationFile& file) {
  std::string name = fmt::format("{}-{}.json", name_of(file.entries.front().op), file.gpu);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::vector<KernelCalibrationFile> calibrate_kernels(
    const std::vector<MeasuredFile>& files, const std::string& provenance, const std::string& date,
    const std::function<void(std::size_t done, std::size_t all)>& progress) {
  std::map<Key, Pointers> groups = grouped(files);
  std::vector<std::pair<Key, Pointers>> tasks;
  for (auto& [key, rows] : groups) {
    if (rows.size() >= kMinRows) tasks.emplace_back(key, std::move(rows));
  }
  std::vector<KernelCalibration> fits(tasks.size());
  std::vector<Clusters> errors(tasks.size());
  std::mutex mutex;
  std::size_t done = 0;
  parallel_for(tasks.size(), 0, [&](std::size_t i) {
    fits[i] = calibrate(tasks[i].second, {}, errors[i]);
    const std::scoped_lock lock{mutex};
    ++done;
    if (progress) progress(done, tasks.size());
  });
  set_intervals(fits, errors);
  std::map<std::pair<std::string, int>, KernelCalibrationFile> out;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto& [gpu, op, stack, format] = tasks[i].first;
    KernelCalibrationFile& file = out[{gpu, op}];
    file.gpu = gpu;
    file.provenance = provenance;
    file.date = date;
    file.split =
        "a fifth of the shapes, by a hash of the shape's name, was kept from the fit; so were rows "
        "faster than the data sheet allows; ends of intervals are of a cross-validation over the "
        "shapes fitted";
    file.entries.push_back(std::move(fits[i]));
  }
  std::vector<KernelCalibrationFile> list;
  for (const auto& [key, file] : out) list.push_back(file);
  for (KernelTransfer& one : transfers_of(files, KernelLibrary{list})) {
    const auto file = out.find({one.hidden.gpu, static_cast<int>(one.op)});
    if (file != out.end()) file->second.transfers.push_back(std::move(one));
  }
  list.clear();
  for (auto& [key, file] : out) list.push_back(std::move(file));
  return list;
}

}  // namespace kvsim
