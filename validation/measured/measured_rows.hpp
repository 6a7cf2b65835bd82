#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/cost/kernels/call.hpp"
#include "models/gpu/gpu.hpp"
#include "validation/measured/csv_table.hpp"

namespace kvsim {

/// One measured timing: the call as the cost model takes it, and how it is reported.
struct MeasuredRow {
  std::size_t line = 0;  // of its file
  const Gpu* gpu = nullptr;
  std::string gpu_label;  // as the file has it
  std::string stack;      // column `source`: whose kernels, and their version
  KernelFormat format{};
  KernelCall call{};
  double us = 0;
  std::string shape{};  // what a split keeps together: head counts, (n, k), model, …
};

/// The rows of one file that the cost model can express, and why the others are not among them.
struct MeasuredFile {
  std::string path;
  std::string skipped{};  // not empty: the whole file, and why
  KernelOp op = KernelOp::kGemm;
  std::vector<MeasuredRow> rows{};
  std::map<std::string, std::int64_t> left_out{};  // reason → rows
};

/// Reads a CSV of one of the layouts of docs/measured-data.md, which differ in their columns. A
/// file of no known layout is skipped, not an error. Errors: InputError with file and line on a
/// malformed cell.
[[nodiscard]] MeasuredFile read_measured(const std::filesystem::path& path);
[[nodiscard]] MeasuredFile read_measured(const CsvTable& table);
/// Every *.csv of a folder in the order of their names, or the one file. Errors: InputError if
/// there is none.
[[nodiscard]] std::vector<MeasuredFile> read_all_measured(const std::filesystem::path& path);

/// Whether a split keeps rows of this shape from the fit: a fifth of the shapes, by a hash of the
/// shape's name, the same on every machine and for every GPU.
[[nodiscard]] bool is_held_out(const MeasuredRow& row);
/// The hash for that; multiples of 5 are held out.
[[nodiscard]] std::uint64_t shape_hash(const std::string& shape);

}  // namespace kvsim
