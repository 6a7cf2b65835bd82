#include "models/units/units_parse.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "models/units/number_text.hpp"

namespace kvsim {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKi = 1024.0;
constexpr std::array kByteUnits{Unit{"B", 1.0},
                                Unit{"KiB", kKi},
                                Unit{"MiB", kKi* kKi},
                                Unit{"GiB", kKi* kKi* kKi},
                                Unit{"TiB", kKi* kKi* kKi* kKi},
                                Unit{"kB", 1e3},
                                Unit{"KB", 1e3},
                                Unit{"MB", 1e6},
                                Unit{"GB", 1e9},
                                Unit{"TB", 1e12}};
constexpr std::array kBandwidthUnits{
    Unit{"B/s", 1.0},   Unit{"kB/s", 1e3},       Unit{"MB/s", 1e6},           Unit{"GB/s", 1e9},
    Unit{"TB/s", 1e12}, Unit{"MiB/s", kKi* kKi}, Unit{"GiB/s", kKi* kKi* kKi}};
constexpr std::array kFlopUnits{Unit{"FLOP/s", 1.0},   Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12},
                                Unit{"PFLOP/s", 1e15}, Unit{"TOP/s", 1e12},  Unit{"TFLOPS", 1e12}};
constexpr std::array kTimeUnits{Unit{"ps", 1e-12}, Unit{"ns", 1e-9}, Unit{"us", 1e-6},
                                Unit{"ms", 1e-3},  Unit{"s", 1.0},   Unit{"min", 60.0},
                                Unit{"h", 3600.0}};

std::optional<double> parse(std::string_view text, std::span<const Unit> units) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  double value = 0;
  const auto [end, status] = number_from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || !std::isfinite(value) || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  for (const Unit& unit : units) {
    if (unit.name != text) continue;
    const double scaled = value * unit.factor;
    return std::isfinite(scaled) ? std::optional{scaled} : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Bytes> parse_bytes(std::string_view text) {
  const auto value = parse(text, kByteUnits);
  // 1 EiB: sums of several such numbers, and multiples by tensor parallelism, stay below 2^63.
  if (!value || *value > 0x1p60) return std::nullopt;
  return Bytes{static_cast<std::int64_t>(std::llround(*value))};
}

std::optional<BytesPerSecond> parse_bandwidth(std::string_view text) {
  const auto value = parse(text, kBandwidthUnits);
  return value ? std::optional{BytesPerSecond{*value}} : std::nullopt;
}

std::optional<FlopsPerSecond> parse_flops(std::string_view text) {
  const auto value = parse(text, kFlopUnits);
  return value ? std::optional{FlopsPerSecond{*value}} : std::nullopt;
}

std::optional<Seconds> parse_duration(std::string_view text) {
  const auto value = parse(text, kTimeUnits);
  return value && *value <= kLongestTime.count() ? std::optional{Seconds{*value}} : std::nullopt;
}

}  // namespace kvsim
