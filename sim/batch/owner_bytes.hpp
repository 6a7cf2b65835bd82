#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "models/cost/op.hpp"
#include "models/units/units.hpp"
#include "sim/memory/hbm.hpp"

namespace kvsim {

/// Bytes per owner, indexed by enumerator; convert with named().
struct OwnerBytes {
  std::array<Bytes, kOwners> by_owner{};

  Bytes& operator[](Owner owner) { return by_owner[static_cast<std::size_t>(owner)]; }
  [[nodiscard]] Bytes total() const {
    Bytes sum;
    for (const Bytes n : by_owner) sum += n;
    return sum;
  }
  void add(const std::array<Bytes, kOwners>& other) {
    for (std::size_t i = 0; i < kOwners; ++i) by_owner[i] += other[i];
  }
  [[nodiscard]] Owners named() const {
    Owners owners;
    for (std::size_t i = 0; i < kOwners; ++i) {
      if (by_owner[i] > Bytes{}) {
        owners[std::string{name_of(static_cast<Owner>(i))}] = by_owner[i];
      }
    }
    return owners;
  }
};

}  // namespace kvsim
