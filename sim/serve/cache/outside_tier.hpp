#pragma once

// Internal to sim/serve: one GPU's share of host memory or NVMe.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/units/check.hpp"
#include "models/units/units.hpp"
#include "sim/memory/hbm.hpp"

namespace kvsim {

enum class OutsideOwner : std::uint8_t { kSwapped, kOffloaded };

/// The bytes in one tier, by owner. Callers allocate and free them, and check first that they fit.
class OutsideTier {
 public:
  OutsideTier() = default;
  /// nullopt: no limit is known.
  OutsideTier(std::string_view name, std::optional<Bytes> capacity)
      : name_{name}, capacity_{capacity} {}

  [[nodiscard]] std::string_view name() const { return name_; }
  [[nodiscard]] std::optional<Bytes> capacity() const { return capacity_; }
  [[nodiscard]] Bytes used() const { return used_[0] + used_[1]; }
  [[nodiscard]] Bytes used(OutsideOwner owner) const { return used_[index(owner)]; }
  [[nodiscard]] Bytes peak() const { return peak_[0] + peak_[1]; }
  [[nodiscard]] Bytes free() const {
    return capacity_ ? std::max(Bytes{}, *capacity_ - used()) : Bytes{};
  }
  [[nodiscard]] bool fits(Bytes more) const { return !capacity_ || used() + more <= *capacity_; }
  void take(OutsideOwner owner, Bytes n) {
    used_[index(owner)] += n;
    if (used() > peak()) peak_ = used_;
  }
  void give(OutsideOwner owner, Bytes n) {
    used_[index(owner)] -= n;
    KVSIM_CHECK(used_[index(owner)] >= Bytes{}, "{} B are left in {}", used_[index(owner)].count(),
                name_);
  }
  [[nodiscard]] Owners owners() const { return named(used_); }
  /// Bytes by owner at the peak.
  [[nodiscard]] Owners peak_owners() const { return named(peak_); }

 private:
  using ByOwner = std::array<Bytes, 2>;
  [[nodiscard]] static std::size_t index(OutsideOwner owner) {
    return static_cast<std::size_t>(owner);
  }
  [[nodiscard]] static Owners named(const ByOwner& bytes) {
    Owners owners;
    if (bytes[0] > Bytes{}) owners["kv_swapped"] = bytes[0];
    if (bytes[1] > Bytes{}) owners["kv_offloaded"] = bytes[1];
    return owners;
  }

  std::string_view name_;
  std::optional<Bytes> capacity_;
  ByOwner used_{}, peak_{};
};

}  // namespace kvsim
