#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Entries per tile: keys, values and weights of one tile fit in the L2 cache.
inline constexpr std::size_t kTileEntries = 256;

/// Placement of the queries of a block of steps in panels of `width` lanes. A step's queries are in
/// one panel if they fit; a lane without a query is 0.
struct PanelLayout {
  std::size_t steps = 0, group = 1, width = 1;

  [[nodiscard]] std::size_t panels_per_step() const { return (group + width - 1) / width; }
  [[nodiscard]] std::size_t steps_per_panel() const {
    return std::max<std::size_t>(width / group, 1);
  }
  [[nodiscard]] std::size_t panels() const {
    return (steps + steps_per_panel() - 1) / steps_per_panel() * panels_per_step();
  }
  /// First step of a panel's queries.
  [[nodiscard]] std::size_t first_step(std::size_t panel) const {
    return panel / panels_per_step() * steps_per_panel();
  }
  [[nodiscard]] std::size_t panel(std::size_t step, std::size_t g) const {
    return step / steps_per_panel() * panels_per_step() + g / width;
  }
  [[nodiscard]] std::size_t lane(std::size_t step, std::size_t g) const {
    return step % steps_per_panel() * group + g % width;
  }
};

/// Returns the number of steps per block: its queries fill panels, and their sums fit in the
/// caches.
[[nodiscard]] inline std::size_t block_steps(std::size_t group) {
  return std::clamp<std::size_t>(kTileEntries / group, 8, 64);
}

/// The queries of positions first … first + layout.steps - 1 as panels [panels, d, width]. `q`
/// [group, tokens, d].
template <class T>
void pack_queries(std::span<const float> q, std::int64_t tokens, std::int64_t first,
                  const PanelLayout& layout, std::size_t d, std::vector<T>& panels) {
  panels.assign(layout.panels() * d * layout.width, T{0});
  for (std::size_t step = 0; step < layout.steps; ++step) {
    for (std::size_t g = 0; g < layout.group; ++g) {
      const std::size_t row =
          g * static_cast<std::size_t>(tokens) + static_cast<std::size_t>(first) + step;
      const float* from = q.data() + row * d;
      T* to = panels.data() + layout.panel(step, g) * d * layout.width + layout.lane(step, g);
      for (std::size_t c = 0; c < d; ++c) to[c * layout.width] = static_cast<T>(from[c]);
    }
  }
}

}  // namespace kvsim
