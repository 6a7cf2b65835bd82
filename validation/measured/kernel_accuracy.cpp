#include "validation/measured/kernel_accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "models/cost/kernels/spread.hpp"

namespace kvsim {
namespace {

/// Returns the library without the calibrations that `unseen` hides from rows of this GPU and
/// stack, and without transfer cases that depend on them.
KernelLibrary without(const KernelLibrary& library, const Gpu& gpu, const std::string& stack,
                      Unseen unseen) {
  KernelCalibrationFile kept;
  const auto hides = [&](const std::string& its_gpu, const std::string& its_stack) {
    return has_equal_times(find_gpu(its_gpu), gpu) &&
           (unseen == Unseen::kGpu || its_stack == stack);
  };
  for (const KernelCalibration* entry : library.entries()) {
    if (!hides(entry->gpu, entry->stack)) kept.entries.push_back(*entry);
  }
  for (const KernelTransfer* one : library.transfers()) {
    const bool rests_on_it =
        hides(one->hidden.gpu, one->hidden.stack) ||
        std::any_of(one->from.begin(), one->from.end(),
                    [&](const KernelSource& s) { return hides(s.gpu, s.stack); });
    if (!rests_on_it) kept.transfers.push_back(*one);
  }
  return KernelLibrary{{std::move(kept)}};
}

}  // namespace

std::vector<PredictedRow> predict(const std::vector<MeasuredFile>& files,
                                  const KernelLibrary& library, Unseen unseen) {
  using PairKey = std::tuple<const Gpu*, std::string>;
  using ChoiceKey = std::tuple<const Gpu*, std::string, KernelOp, std::string>;
  std::map<PairKey, KernelLibrary> hidden;
  std::map<ChoiceKey, KernelChoice> choices;
  std::map<const Gpu*, KernelGpu> gpus;
  std::vector<PredictedRow> out;
  for (const MeasuredFile& file : files) {
    for (const MeasuredRow& row : file.rows) {
      const KernelLibrary* source = &library;
      if (unseen != Unseen::kNothing) {
        const PairKey pair{row.gpu, unseen == Unseen::kPair ? row.stack : std::string{}};
        auto found = hidden.find(pair);
        if (found == hidden.end()) {
          found = hidden.emplace(pair, without(library, *row.gpu, row.stack, unseen)).first;
        }
        source = &found->second;
      }
      const ChoiceKey key{row.gpu, row.stack, op_of(row.call), row.format.name};
      auto choice = choices.find(key);
      if (choice == choices.end()) {
        choice =
            choices.emplace(key, source->choose(op_of(row.call), *row.gpu, row.stack, row.format))
                .first;
        gpus.try_emplace(row.gpu, kernel_gpu(*row.gpu));
      }
      out.push_back(
          {.row = &row,
           .estimate = choice->second.estimate(row.call),
           .ideal_us = ideal_microseconds(row.call, row.format, gpus.at(row.gpu)),
           .basis = choice->second.basis(),
           .held_out = is_held_out(row) || choice->second.basis() != KernelBasis::kMeasured});
    }
  }
  return out;
}

std::vector<KernelTransfer> transfers_of(const std::vector<MeasuredFile>& files,
                                         const KernelLibrary& library) {
  using Key = std::tuple<std::string, KernelOp, std::string, std::string>;
  std::map<Key, std::vector<const MeasuredRow*>> groups;
  for (const MeasuredFile& file : files) {
    for (const MeasuredRow& row : file.rows) {
      if (is_held_out(row)) continue;
      groups[{row.gpu->name, op_of(row.call), row.stack, row.format.name}].push_back(&row);
    }
  }
  std::vector<KernelTransfer> out;
  for (const auto& [key, rows] : groups) {
    if (rows.size() < kTransferErrors) continue;
    const auto& [gpu, op, stack, format] = key;
    std::optional<KernelBasis> before;
    for (const Unseen unseen : {Unseen::kPair, Unseen::kGpu}) {
      const MeasuredRow& first = *rows.front();
      const KernelLibrary hidden = without(library, *first.gpu, stack, unseen);
      const KernelChoice choice = hidden.choose(op, *first.gpu, stack, first.format);
      if (choice.basis() == KernelBasis::kMeasured || choice.basis() == before) continue;
      before = choice.basis();
      KernelTransfer one{.op = op,
                         .hidden = {.gpu = gpu, .stack = stack, .format = format},
                         .basis = choice.basis()};
      for (const KernelChoice::Factor& f : choice.factors()) {
        if (f.calibration == nullptr) continue;
        one.from.push_back({.gpu = f.calibration->gpu,
                            .stack = f.calibration->stack,
                            .format = f.calibration->format});
      }
      std::vector<double> errors;
      for (const MeasuredRow* row : rows) {
        errors.push_back(std::abs(std::log(row->us / choice.microseconds(row->call))));
      }
      for (std::size_t i = 0; i < kTransferErrors; ++i) {
        const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(kTransferErrors);
        one.errors.push_back(quantile_of(errors, share));
      }
      out.push_back(std::move(one));
    }
  }
  return out;
}

ErrorSummary summarise(std::vector<double> errors) {
  ErrorSummary out{.n = static_cast<std::int64_t>(errors.size())};
  if (errors.empty()) return out;
  const auto n = static_cast<double>(errors.size());
  for (double& error : errors) {
    out.bias += error / n;
    error = std::abs(error);
    out.mape += error / n;
  }
  std::sort(errors.begin(), errors.end());
  const auto at = [&](double share) {
    // Linear between the order statistics.
    const double place = share * (n - 1);
    const auto low = static_cast<std::size_t>(place);
    const std::size_t high = std::min(low + 1, errors.size() - 1);
    return errors[low] + (place - static_cast<double>(low)) * (errors[high] - errors[low]);
  };
  out.median_ape = at(0.5);
  out.p90_ape = at(0.9);
  out.worst_ape = errors.back();
  return out;
}

std::vector<AccuracyGroup> group_rows(const std::vector<PredictedRow>& rows) {
  struct Parts {
    std::vector<double> all, large, held_out;
    std::int64_t covered = 0, extrapolated = 0;
    std::map<std::string, std::int64_t> bases;
  };
  using Key = std::tuple<int, std::string, std::string, std::string>;
  std::map<Key, Parts> parts;
  const auto add = [](Parts& p, const PredictedRow& row) {
    const double error = row.error();
    p.all.push_back(error);
    if (row.ideal_us >= kLargeMicroseconds) p.large.push_back(error);
    if (row.held_out) p.held_out.push_back(error);
    p.covered += row.row->us >= row.estimate.low && row.row->us <= row.estimate.high;
    p.extrapolated += row.estimate.extrapolated;
    ++p.bases[std::string{name_of(row.basis)}];
  };
  for (const PredictedRow& row : rows) {
    const int op = static_cast<int>(op_of(row.row->call));
    add(parts[{op, row.row->gpu_label, row.row->stack, row.row->format.name}], row);
    add(parts[{op, "", "", ""}], row);
  }
  std::vector<AccuracyGroup> out;
  for (auto& [key, p] : parts) {
    const auto& [op, gpu, stack, dtype] = key;
    out.push_back({.op = std::string{name_of(static_cast<KernelOp>(op))},
                   .gpu = gpu,
                   .stack = stack,
                   .dtype = dtype,
                   .all = summarise(p.all),
                   .large = summarise(p.large),
                   .held_out = summarise(p.held_out),
                   .covered = static_cast<double>(p.covered) / static_cast<double>(p.all.size()),
                   .extrapolated = p.extrapolated,
                   .bases = p.bases});
  }
  std::stable_partition(out.begin(), out.end(), [](const auto& g) { return !g.gpu.empty(); });
  return out;
}

}  // namespace kvsim
