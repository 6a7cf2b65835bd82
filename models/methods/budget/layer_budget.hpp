#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/units/check.hpp"

namespace kvsim {

/// A budget per layer that is known in advance; INT64_MAX if a layer is not compressed.
class LayerBudget : public BudgetRule {
 public:
  explicit LayerBudget(std::vector<std::int64_t> entries) : entries_{std::move(entries)} {}

  std::optional<std::int64_t> entries(std::int32_t layer) const override {
    KVSIM_CHECK(layer >= 0 && layer < std::ssize(entries_), "layer {} of {}", layer,
                entries_.size());
    return entries_[static_cast<std::size_t>(layer)];
  }
  bool keeps_whole(std::int32_t layer) const override {
    return entries(layer) == std::numeric_limits<std::int64_t>::max();
  }
  bool has_equal_layers() const override {
    return std::all_of(entries_.begin(), entries_.end(),
                       [this](std::int64_t each) { return each == entries_.front(); });
  }

 private:
  std::vector<std::int64_t> entries_;
};

}  // namespace kvsim
