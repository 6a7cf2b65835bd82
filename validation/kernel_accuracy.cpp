#include "validation/kernel_accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// The library without what `unseen` hides from rows of this GPU and stack.
KernelLibrary without(const KernelLibrary& library, const Gpu& gpu, const std::string& stack,
                      Unseen unseen) {
  KernelCalibrationFile kept;
  for (const KernelCalibration* entry : library.entries()) {
    const bool same_gpu = times_alike(find_gpu(entry->gpu), gpu);
    const bool same_stack = entry->stack == stack;
    if (unseen == Unseen::kGpu ? same_gpu : same_gpu && same_stack) continue;
    kept.entries.push_back(*entry);
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
