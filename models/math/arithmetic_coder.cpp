#include "models/math/arithmetic_coder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::uint32_t kTotalBits = 16;
constexpr std::uint64_t kTop = std::uint64_t{1} << 32U;
constexpr std::uint64_t kHalf = kTop / 2, kQuarter = kTop / 4;

class BitWriter {
 public:
  void put(bool bit) {
    if (used_ % 8 == 0) bytes_.push_back(0);
    if (bit) bytes_.back() |= static_cast<std::uint8_t>(128U >> used_ % 8);
    ++used_;
  }
  void put(bool bit, std::int64_t opposite) {
    put(bit);
    for (; opposite > 0; --opposite) put(!bit);
  }
  [[nodiscard]] std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint32_t used_ = 0;
};

/// Bits past the end are zero.
class BitReader {
 public:
  explicit BitReader(std::span<const std::uint8_t> bytes) : bytes_{bytes} {}
  std::uint64_t get() {
    const std::size_t byte = at_ / 8;
    const std::uint64_t bit =
        byte < bytes_.size() ? (bytes_[byte] >> (7 - at_ % 8)) & 1U : std::uint64_t{0};
    ++at_;
    return bit;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

struct Interval {
  std::uint64_t low = 0, high = kTop - 1;
  void narrow(std::uint64_t from, std::uint64_t to) {
    const std::uint64_t range = high - low + 1;
    high = low + (range * to >> kTotalBits) - 1;
    low += range * from >> kTotalBits;
  }
};

std::uint64_t end_of(std::span<const std::uint32_t> cumulative, std::size_t symbol) {
  return symbol + 1 < cumulative.size() ? cumulative[symbol + 1] : std::uint64_t{1} << kTotalBits;
}

}  // namespace

std::vector<std::uint32_t> cumulative_frequencies(std::span<const std::uint8_t> symbols,
                                                  std::int32_t kinds) {
  std::vector<double> counts(static_cast<std::size_t>(kinds));
  for (const std::uint8_t symbol : symbols) {
    KVSIM_CHECK(symbol < kinds, "symbol {} of {}", symbol, kinds);
    ++counts[symbol];
  }
  const double scale = static_cast<double>((std::int32_t{1} << kTotalBits) - kinds);
  std::vector<std::uint32_t> out(counts.size());
  double before = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    out[i] = static_cast<std::uint32_t>(
                 std::nearbyint(before / static_cast<double>(symbols.size()) * scale)) +
             static_cast<std::uint32_t>(i);
    before += counts[i];
  }
  return out;
}

std::vector<std::uint8_t> arithmetic_encode(std::span<const std::uint8_t> symbols,
                                            std::span<const std::uint32_t> cumulative) {
  BitWriter out;
  Interval at;
  std::int64_t pending = 0;
  for (const std::uint8_t symbol : symbols) {
    KVSIM_CHECK(symbol < cumulative.size(), "symbol {} of {}", symbol, cumulative.size());
    at.narrow(cumulative[symbol], end_of(cumulative, symbol));
    for (;;) {
      if (at.high < kHalf || at.low >= kHalf) {
        out.put(at.low >= kHalf, pending);
        pending = 0;
        const std::uint64_t off = at.low >= kHalf ? kHalf : 0;
        at.low -= off;
        at.high -= off;
      } else if (at.low >= kQuarter && at.high < kHalf + kQuarter) {
        ++pending;
        at.low -= kQuarter;
        at.high -= kQuarter;
      } else {
        break;
      }
      at.low *= 2;
      at.high = at.high * 2 + 1;
    }
  }
  out.put(at.low >= kQuarter, pending + 1);
  return out.take();
}

std::vector<std::uint8_t> arithmetic_decode(std::span<const std::uint8_t> code, std::size_t count,
                                            std::span<const std::uint32_t> cumulative) {
  BitReader in{code};
  std::uint64_t value = 0;
  for (int i = 0; i < 32; ++i) value = value * 2 + in.get();
  Interval at;
  std::vector<std::uint8_t> out;
  out.reserve(count);
  while (out.size() < count) {
    const std::uint64_t range = at.high - at.low + 1;
    const std::uint64_t target = (((value - at.low + 1) << kTotalBits) - 1) / range;
    const auto above = std::upper_bound(cumulative.begin(), cumulative.end(), target);
    const auto symbol = static_cast<std::size_t>(above - cumulative.begin()) - 1;
    out.push_back(static_cast<std::uint8_t>(symbol));
    at.narrow(cumulative[symbol], end_of(cumulative, symbol));
    for (;;) {
      std::uint64_t off = 0;
      if (at.high >= kHalf) {
        if (at.low >= kHalf) {
          off = kHalf;
        } else if (at.low >= kQuarter && at.high < kHalf + kQuarter) {
          off = kQuarter;
        } else {
          break;
        }
      }
      at.low = (at.low - off) * 2;
      at.high = (at.high - off) * 2 + 1;
      value = (value - off) * 2 + in.get();
    }
  }
  return out;
}

double entropy_bits(std::span<const std::uint8_t> symbols) {
  std::array<std::int64_t, 256> counts{};
  for (const std::uint8_t symbol : symbols) ++counts[symbol];
  const auto total = static_cast<double>(symbols.size());
  double bits = 0;
  for (const std::int64_t n : counts) {
    if (n > 0) bits -= static_cast<double>(n) * std::log2(static_cast<double>(n) / total);
  }
  return bits;
}

}  // namespace kvsim
