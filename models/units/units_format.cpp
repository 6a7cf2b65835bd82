#include "models/units/units_format.hpp"

#include <array>
#include <cmath>
#include <string_view>

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 7> kBinary{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
constexpr std::array<std::string_view, 7> kDecimal{"", "k", "M", "G", "T", "P", "E"};

std::string binary(double value) {
  std::size_t prefix = 0;
  while (std::abs(value) >= 1024.0 && prefix + 1 < kBinary.size()) {
    value /= 1024.0;
    ++prefix;
  }
  return fmt::format("{:.4g} {}", value, kBinary[prefix]);
}

std::string decimal(double value, std::string_view unit) {
  std::size_t prefix = 0;
  while (std::abs(value) >= 1000.0 && prefix + 1 < kDecimal.size()) {
    value /= 1000.0;
    ++prefix;
  }
  return fmt::format("{:.4g} {}{}", value, kDecimal[prefix], unit);
}

}  // namespace

std::string to_text(Bytes n) { return binary(static_cast<double>(n.count())); }

std::string to_text(Seconds t) {
  const double s = t.count();
  const double magnitude = std::abs(s);
  if (magnitude >= 3600.0) {
    const auto minutes = static_cast<long long>(std::llround(s / 60.0));
    return fmt::format("{} h {} min", minutes / 60, std::abs(minutes % 60));
  }
  if (magnitude >= 1.0 || magnitude == 0.0) return fmt::format("{:.4g} s", s);
  if (magnitude >= 1e-3) return fmt::format("{:.4g} ms", s * 1e3);
  if (magnitude >= 1e-6) return fmt::format("{:.4g} us", s * 1e6);
  return fmt::format("{:.4g} ns", s * 1e9);
}

std::string to_text(BytesPerSecond rate) { return decimal(rate.count(), "B/s"); }
std::string to_text(FlopsPerSecond rate) { return decimal(rate.count(), "FLOP/s"); }
std::string to_text(FlopCount n) { return decimal(n.count(), "FLOP"); }
std::string to_text(SimTime t) { return to_text(to_seconds(t)); }

std::string with_commas(std::int64_t value) {
  const std::string digits = fmt::format("{}", value);
  const std::size_t first = value < 0 ? 1 : 0;
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace kvsim
