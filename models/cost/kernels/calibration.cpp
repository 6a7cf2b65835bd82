#include "models/cost/kernels/calibration.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/json/embedded.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/folder.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> calibration_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kSchema = "kvsim.calibration/1";
constexpr double kHuge = 1e18;
constexpr std::array<std::string_view, 7> kBasisNames{
    "measured",         "other_version", "other_stack", "sibling",
    "other_generation", "other_format",  "nominal"};

double rounded(double value, int digits) {
  return value == 0 ? 0.0 : std::stod(fmt::format("{:.{}g}", value, digits));
}

Json summary_json(const ErrorSummary& s) {
  return {{"n", s.n},
          {"mape", rounded(s.mape, 4)},
          {"median_ape", rounded(s.median_ape, 4)},
          {"p90_ape", rounded(s.p90_ape, 4)},
          {"worst_ape", rounded(s.worst_ape, 4)},
          {"bias", rounded(s.bias, 4)}};
}

ErrorSummary read_summary(const Field& f) {
  f.allow_only({"n", "mape", "median_ape", "p90_ape", "worst_ape", "bias"});
  return {.n = f.at("n").integer(0, 1'000'000'000),
          .mape = f.at("mape").number(0, kHuge),
          .median_ape = f.at("median_ape").number(0, kHuge),
          .p90_ape = f.at("p90_ape").number(0, kHuge),
          .worst_ape = f.at("worst_ape").number(0, kHuge),
          .bias = f.at("bias").number(-1, kHuge)};
}

/// Calls `read` and prefixes its error message, which has no place, with the place of `f`.
template <class Read>
decltype(auto) placed(const Field& f, Read read) {
  try {
    return read();
  } catch (const InputError& error) {
    f.fail(error.what());
  }
}

KernelOp read_op(const Field& f) {
  const std::string word = f.string();
  std::vector<std::string> known;
  for (std::size_t i = 0; i < kKernelOps; ++i) {
    known.emplace_back(name_of(static_cast<KernelOp>(i)));
    if (known.back() == word) return static_cast<KernelOp>(i);
  }
  f.fail(unknown_name("operator family", word, known));
}

void read_coefficients(const Field& f, const KernelForm& form, std::vector<double>& out) {
  std::vector<std::string> names;
  for (const Coefficient& c : form.coefficients) names.emplace_back(c.name);
  f.allow_only(std::span<const std::string>{names});
  for (const Coefficient& c : form.coefficients) {
    // Rounding to 6 digits may exceed a bound.
    const double slack = 1e-5 * (std::abs(c.low) + std::abs(c.high));
    out.push_back(f.at(c.name).number(c.low - slack, c.high + slack));
  }
}

KernelCalibration read_entry(const Field& f, const std::string& gpu) {
  f.allow_only({"op", "stack", "format", "form", "coefficients", "fitted", "held_out", "q05", "q95",
                "ranges"});
  KernelCalibration entry;
  entry.gpu = gpu;
  entry.op = read_op(f.at("op"));
  entry.stack = f.at("stack").string();
  entry.format = f.at("format").string();
  placed(f.at("format"), [&] { return parse_kernel_format(entry.format); });
  entry.form = f.at("form").string();
  const KernelForm& form = form_of(entry.op);
  if (entry.form != form.id) f.at("form").expected(fmt::format("\"{}\"", form.id));
  read_coefficients(f.at("coefficients"), form, entry.coefficients);
  entry.fitted = read_summary(f.at("fitted"));
  if (const auto held = f.find("held_out")) entry.held_out = read_summary(*held);
  entry.q05 = f.at("q05").number(-10, 10);
  entry.q95 = f.at("q95").number(entry.q05, 10);
  const Field ranges = f.at("ranges");
  const auto names = dimension_names(entry.op);
  for (const auto& [name, range] : ranges.members()) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) range.fail("not a dimension of this family");
    const std::vector<Field> ends = range.items();
    if (ends.size() != 2) range.expected("[low, high]");
    const double low = ends[0].number(0, kHuge);
    entry.ranges[static_cast<std::size_t>(at - names.begin())] = {
        .low = low, .high = ends[1].number(low, kHuge)};
  }
  return entry;
}

Json entry_json(const KernelCalibration& entry) {
  const KernelForm& form = form_of(entry.op);
  KVSIM_CHECK(form.coefficients.size() == entry.coefficients.size(),
              "{} has {} coefficients, got {}", form.id, form.coefficients.size(),
              entry.coefficients.size());
  Json coefficients = Json::object();
  for (std::size_t i = 0; i < entry.coefficients.size(); ++i) {
    coefficients[std::string{form.coefficients[i].name}] = rounded(entry.coefficients[i], 6);
  }
  Json ranges = Json::object();
  const auto names = dimension_names(entry.op);
  for (std::size_t i = 0; i < kDimensions; ++i) {
    if (names[i].empty()) continue;
    ranges[std::string{names[i]}] = Json::array({entry.ranges[i].low, entry.ranges[i].high});
  }
  Json out{{"op", name_of(entry.op)},
           {"stack", entry.stack},
           {"format", entry.format},
           {"form", entry.form},
           {"coefficients", std::move(coefficients)},
           {"fitted", summary_json(entry.fitted)}};
  if (entry.held_out.n > 0) out["held_out"] = summary_json(entry.held_out);
  out["q05"] = rounded(entry.q05, 4);
  out["q95"] = rounded(entry.q95, 4);
  out["ranges"] = std::move(ranges);
  return out;
}

KernelSource read_source(const Field& f) {
  f.allow_only({"gpu", "stack", "format"});
  const Field gpu = f.at("gpu");
  return {.gpu = placed(gpu, [&] { return find_gpu(gpu.string()).name; }),
          .stack = f.at("stack").string(),
          .format = f.at("format").string()};
}

KernelTransfer read_transfer(const Field& f, const std::string& gpu) {
  f.allow_only({"op", "stack", "format", "basis", "from", "errors"});
  KernelTransfer out{
      .op = read_op(f.at("op")),
      .hidden = {.gpu = gpu, .stack = f.at("stack").string(), .format = f.at("format").string()}};
  const std::string basis = f.at("basis").string();
  const auto* const found = std::find(kBasisNames.begin(), kBasisNames.end(), basis);
  if (found == kBasisNames.end()) {
    const std::vector<std::string> known{kBasisNames.begin(), kBasisNames.end()};
    f.at("basis").fail(unknown_name("basis", basis, known));
  }
  out.basis = static_cast<KernelBasis>(found - kBasisNames.begin());
  for (const Field& source : f.at("from").items()) out.from.push_back(read_source(source));
  for (const Field& error : f.at("errors").items()) {
    out.errors.push_back(error.number(out.errors.empty() ? 0 : out.errors.back(), 100));
  }
  if (out.errors.size() != kTransferErrors) {
    f.at("errors").expected(fmt::format("{} numbers", kTransferErrors));
  }
  return out;
}

Json transfer_json(const KernelTransfer& transfer) {
  Json from = Json::array();
  for (const KernelSource& s : transfer.from) {
    from.push_back({{"gpu", s.gpu}, {"stack", s.stack}, {"format", s.format}});
  }
  Json errors = Json::array();
  for (const double error : transfer.errors) errors.push_back(rounded(error, 4));
  return {{"op", name_of(transfer.op)},       {"stack", transfer.hidden.stack},
          {"format", transfer.hidden.format}, {"basis", name_of(transfer.basis)},
          {"from", std::move(from)},          {"errors", std::move(errors)}};
}

}  // namespace

std::string_view name_of(KernelBasis basis) { return kBasisNames[static_cast<std::size_t>(basis)]; }

std::array<std::string_view, kDimensions> dimension_names(KernelOp op) {
  switch (op) {
    case KernelOp::kDecodeAttention:
      return {"batch", "kv_len", "q_heads", "kv_heads"};
    case KernelOp::kPrefillAttention:
      return {"batch", "new_tokens", "prefix", "q_heads"};
    case KernelOp::kMla:
      return {"batch", "seq_len", "heads", ""};
    case KernelOp::kGemm:
      return {"m", "n", "k", ""};
    case KernelOp::kGroupedGemm:
      return {"rows", "experts", "n", "k"};
    case KernelOp::kMoe:
      return {"tokens", "hidden", "experts", "ep"};
    case KernelOp::kElementwise:
      return {"rows", "bytes", "kernels", ""};
    case KernelOp::kCollective:
      return {"bytes", "gpus", "nodes", ""};
    case KernelOp::kRecurrence:
      return {"batch", "tokens", "heads", ""};
    case KernelOp::kConvolution:
      return {"tokens", "channels", "", ""};
    case KernelOp::kIndexScores:
      return {"batch", "queries", "keys", "heads"};
    case KernelOp::kIndexChoice:
      return {"rows", "length", "chosen", ""};
    case KernelOp::kSparseAttention:
      return {"batch", "queries", "chosen", "heads"};
    case KernelOp::kCopy:
      break;
  }
  return {"bytes", "pieces", "", ""};
}

namespace {

std::array<double, kDimensions> dims(const DecodeAttentionCall& c) {
  return {c.batch, c.kv_len, static_cast<double>(c.q_heads), static_cast<double>(c.kv_heads)};
}
std::array<double, kDimensions> dims(const PrefillAttentionCall& c) {
  return {c.batch, c.new_tokens, c.prefix, static_cast<double>(c.q_heads)};
}
std::array<double, kDimensions> dims(const MlaCall& c) {
  return {c.batch, c.seq_len, static_cast<double>(c.heads), 0};
}
std::array<double, kDimensions> dims(const GemmCall& c) { return {c.m, c.n, c.k, 0}; }
std::array<double, kDimensions> dims(const GroupedGemmCall& c) {
  return {c.rows, c.experts, c.n, c.k};
}
std::array<double, kDimensions> dims(const MoeCall& c) {
  return {c.tokens, c.hidden, c.experts, c.ep};
}
std::array<double, kDimensions> dims(const ElementwiseCall& c) {
  return {c.rows, c.bytes_read + c.bytes_written, c.kernels, 0};
}
std::array<double, kDimensions> dims(const CollectiveCall& c) {
  return {c.bytes, c.gpus, std::max(1.0, c.gpus / c.gpus_per_node), 0};
}
std::array<double, kDimensions> dims(const CopyCall& c) { return {c.bytes, c.pieces, 0, 0}; }
std::array<double, kDimensions> dims(const RecurrenceCall& c) {
  return {c.batch, c.tokens, c.heads, 0};
}
std::array<double, kDimensions> dims(const ConvolutionCall& c) {
  return {c.tokens, c.channels, 0, 0};
}
std::array<double, kDimensions> dims(const IndexScoresCall& c) {
  return {c.batch, c.queries, c.keys, c.heads};
}
std::array<double, kDimensions> dims(const IndexChoiceCall& c) {
  return {c.rows, c.length, c.chosen, 0};
}
std::array<double, kDimensions> dims(const SparseAttentionCall& c) {
  return {c.batch, c.queries, c.chosen, c.heads};
}

}  // namespace

std::array<double, kDimensions> dimensions_of(const KernelCall& call) {
  return std::visit([](const auto& c) { return dims(c); }, call);
}

KernelCalibrationFile read_calibration(const Field& document) {
  if (const auto schema = document.find("schema");
      schema && schema->is_string() && schema->string() == "kvsim.calibrate-device/1") {
    schema->fail(
        "this file holds a device's shares of its data sheet, not kernel forms; use it as a "
        "scenario's \"calibration\"");
  }
  document.allow_only({"schema", "gpu", "provenance", "date", "split", "entries", "transfers"});
  if (document.at("schema").string() != kSchema) {
    document.at("schema").expected(fmt::format("\"{}\"", kSchema));
  }
  const Field gpu = document.at("gpu");
  KernelCalibrationFile file{.gpu = placed(gpu, [&] { return find_gpu(gpu.string()).name; }),
                             .provenance = document.at("provenance").string(),
                             .date = document.at("date").string(),
                             .split = document.at("split").string()};
  for (const Field& entry : document.at("entries").items()) {
    file.entries.push_back(read_entry(entry, file.gpu));
  }
  if (const auto transfers = document.find("transfers")) {
    for (const Field& one : transfers->items()) {
      file.transfers.push_back(read_transfer(one, file.gpu));
    }
  }
  return file;
}

std::string write_calibration(const KernelCalibrationFile& file) {
  Json out{{"schema", kSchema}, {"gpu", file.gpu},     {"provenance", file.provenance},
           {"date", file.date}, {"split", file.split}, {"entries", Json::array()}};
  for (const KernelCalibration& entry : file.entries) out["entries"].push_back(entry_json(entry));
  if (!file.transfers.empty()) {
    out["transfers"] = Json::array();
    for (const KernelTransfer& one : file.transfers) {
      out["transfers"].push_back(transfer_json(one));
    }
  }
  return out.dump(1) + "\n";
}

std::vector<KernelCalibrationFile> read_calibrations(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> paths;
  if (std::error_code status; std::filesystem::is_directory(path, status)) {
    paths = files_in(path, ".json");
    if (paths.empty()) throw InputError{path.string(), "calibration files (*.json)", "none"};
  } else {
    paths.push_back(path);
  }
  std::vector<KernelCalibrationFile> out;
  for (const auto& one : paths) out.push_back(read_calibration(Field::read_file(one)));
  return out;
}

std::vector<ShippedCalibration> shipped_calibrations() {
  std::vector<ShippedCalibration> out;
  for (const auto& [name, text] : embedded::calibration_files()) {
    const std::string_view file = name;
    const std::size_t dash = file.find('-');
    const auto op = find_kernel_op(file.substr(0, dash));
    KVSIM_CHECK(op && dash != std::string_view::npos, "calibration file {}: no operator", file);
    out.push_back({.name = file,
                   .text = text,
                   .op = *op,
                   .generation = find_gpu(file.substr(dash + 1)).generation});
  }
  return out;
}

KernelCalibrationFile read_shipped(const ShippedCalibration& file) {
  return read_calibration(
      Field::parse(file.text, fmt::format("models/cost/kernels/data/{}.json", file.name)));
}

const std::vector<KernelCalibrationFile>& builtin_calibrations() {
  static const std::vector<KernelCalibrationFile> files = [] {
    std::vector<KernelCalibrationFile> out;
    for (const ShippedCalibration& file : shipped_calibrations()) out.push_back(read_shipped(file));
    return out;
  }();
  return files;
}

}  // namespace kvsim
