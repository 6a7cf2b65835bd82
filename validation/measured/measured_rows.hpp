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

/// One measured time: the call as input of the cost model, and the labels of the report.
struct MeasuredRow {
  std::size_t line = 0;  // of its file
  const Gpu* gpu = nullptr;
  std::string gpu_label;  // as in the file
  std::string stack;      // column `source`: origin of the kernels, and their version
  KernelFormat format{};
  KernelCall call{};
  double us = 0;
  std::string shape{};  // key of the split into fitted and held-out rows: head counts, (n, k),
                        // model, …
};

/// The rows of one file that the cost model can express, and why others are left out.
struct MeasuredFile {
  std::string path;
  std::string skipped{};  // why the whole file was skipped; empty if it was not
  KernelOp op = KernelOp::kGemm;
  std::vector<MeasuredRow> rows{};
  std::map<std::string, std::int64_t> left_out{};  // reason → rows
};

/// Reads a CSV file in one of the layouts of docs/measured-data.md, which differ in their columns.
/// A file with an unknown layout is skipped, not an error. Errors: InputError with file and line
/// for a malformed cell.
[[nodiscard]] MeasuredFile read_measured(const std::filesystem::path& path);
[[nodiscard]] MeasuredFile read_measured(const CsvTable& table);
/// Reads every *.csv of a folder, sorted by name, or the given file. Errors: InputError if there is
/// none.
[[nodiscard]] std::vector<MeasuredFile> read_all_measured(const std::filesystem::path& path);

/// Whether rows of this shape are held out from the fit: a fifth of the shapes, by a hash of the
/// shape's name, the same on every machine and for every GPU.
[[nodiscard]] bool is_held_out(const MeasuredRow& row);
/// Hash that decides it; multiples of 5 are held out.
[[nodiscard]] std::uint64_t shape_hash(const std::string& shape);

}  // namespace kvsim
