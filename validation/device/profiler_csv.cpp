#include "validation/device/profiler_csv.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "validation/measured/csv_table.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kRead = "dram__bytes_read.sum";
constexpr std::string_view kWritten = "dram__bytes_write.sum";
constexpr std::string_view kError = "==ERROR==";
constexpr std::string_view kNotPermitted = "ERR_NVGPUCTRPERM";

/// Replaces the profiler's messages by blank lines, so that line numbers are unchanged.
std::string table_of(std::string_view text) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (!line.starts_with("==")) out += line;
    out += '\n';
    begin = end + 1;
  }
  return out;
}

[[noreturn]] void refuse(const CsvTable& table, std::size_t row, std::string_view column,
                         const std::string& expected, const std::string& got) {
  throw InputError{fmt::format("{}:{}: {}: expected {}, got \"{}\"", table.place(), table.line(row),
                               column, expected, got)};
}

/// Thousands may be separated by commas.
double value_of(const CsvTable& table, std::size_t row, std::size_t column) {
  const std::string& text = table.text(row, column);
  std::string digits;
  for (const char c : text) {
    if (c != ',') digits += c;
  }
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, value);
  if (digits.empty() || error != std::errc{} || at != end || !std::isfinite(value) || value < 0) {
    refuse(table, row, table.columns()[column], "a number of bytes", text);
  }
  return value;
}

double factor_of(const CsvTable& table, std::size_t row, std::size_t column) {
  constexpr std::array<std::pair<std::string_view, double>, 5> kUnits{
      {{"byte", 1}, {"Kbyte", 1e3}, {"Mbyte", 1e6}, {"Gbyte", 1e9}, {"Tbyte", 1e12}}};
  const std::string& unit = table.text(row, column);
  for (const auto& [word, factor] : kUnits) {
    if (unit == word) return factor;
  }
  refuse(table, row, table.columns()[column], "byte, Kbyte, Mbyte, Gbyte or Tbyte", unit);
}

struct Launch {
  std::size_t row = 0;  // its first row
  std::optional<double> read, written;
};

}  // namespace

std::vector<LaunchCounters> read_profiler_csv(std::string_view text, const std::string& place) {
  const CsvTable table = CsvTable::parse(table_of(text), place);
  const std::size_t id = table.index("ID");
  const std::size_t kernel = table.index("Kernel Name");
  const std::size_t metric = table.index("Metric Name");
  const std::size_t unit = table.index("Metric Unit");
  const std::size_t value = table.index("Metric Value");
  std::vector<Launch> launches;
  std::map<std::string, std::size_t> of_id;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto [found, fresh] = of_id.try_emplace(table.text(row, id), launches.size());
    if (fresh) launches.push_back({.row = row, .read = {}, .written = {}});
    Launch& launch = launches[found->second];
    const std::string& name = table.text(row, metric);
    if (name != kRead && name != kWritten) continue;
    std::optional<double>& slot = name == kRead ? launch.read : launch.written;
    if (slot) refuse(table, row, "Metric Name", "each metric of a launch once", name);
    slot = value_of(table, row, value) * factor_of(table, row, unit);
  }
  std::vector<LaunchCounters> out;
  for (const Launch& launch : launches) {
    if (!launch.read || !launch.written) {
      refuse(table, launch.row, "Metric Name",
             fmt::format("{} and {} of launch {}", kRead, kWritten, table.text(launch.row, id)),
             launch.read      ? "the first alone"
             : launch.written ? "the second alone"
                              : "neither");
    }
    out.push_back({table.text(launch.row, kernel), *launch.read, *launch.written});
  }
  return out;
}

std::string profiler_problem(std::string_view text) {
  if (text.find(kNotPermitted) != std::string_view::npos) {
    return fmt::format("counters not permitted: {}", kNotPermitted);
  }
  const std::size_t at = text.find(kError);
  if (at == std::string_view::npos) return {};
  std::string_view line = text.substr(at + kError.size());
  line = line.substr(0, line.find('\n'));
  while (line.starts_with(' ')) line.remove_prefix(1);
  while (line.ends_with(' ') || line.ends_with('\r')) line.remove_suffix(1);
  return fmt::format("the profiler says: {}", line);
}

std::vector<LaunchCounters> counters_by_case(const std::vector<LaunchCounters>& rows,
                                             const std::vector<std::int64_t>& launches,
                                             const std::string& place) {
  const std::int64_t all = std::accumulate(launches.begin(), launches.end(), std::int64_t{0});
  if (all != std::ssize(rows)) {
    throw InputError{
        fmt::format("{}: expected the counters of {} launches, got {}", place, all, rows.size())};
  }
  std::vector<LaunchCounters> out;
  auto row = rows.begin();
  for (const std::int64_t n : launches) {
    LaunchCounters sum;
    for (std::int64_t i = 0; i < n; ++i, ++row) {
      if (i == 0) sum.kernel = row->kernel;
      sum.dram_read += row->dram_read;
      sum.dram_written += row->dram_written;
    }
    out.push_back(std::move(sum));
  }
  return out;
}

}  // namespace kvsim
