#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/cost/step.hpp"
#include "sim/batch/point/storage_trend.hpp"

namespace kvsim {

/// Layers of one class: a group if the method's layers are equal, else one layer.
struct LayerClass {
  std::int32_t first = 0;
  std::int32_t count = 1;
  std::int32_t group = 0;        // index into layer_groups
  std::int32_t first_equal = 0;  // of the first group of equal layers
  std::int32_t size_class = 0;   // columns of one class hold and attend to equal numbers; from 0
                                 // without gaps
};
[[nodiscard]] std::vector<LayerClass> layer_columns(const std::vector<LayerGroup>& groups,
                                                    bool has_equal_layers);

/// The decode steps of one prompt, divided into segments along which every column's state is
/// constant or rises by one entry per step: the method's size law, found by evaluating it for every
/// step. If steps are summed along segments (`Lines::kOfFormat`), the bytes that other formats
/// store and move also follow lines along them or, if lines would be short, never fall.
class DecodeSegments {
 public:
  struct Segment {
    std::int64_t first = 1;  // steps, inclusive
    std::int64_t last = 1;
    bool stairs = false;  // the bytes that a format stores and moves rise in stairs, not along
                          // lines
  };

  enum class Lines : std::uint8_t { kOfEntries, kOfFormat };

  /// Uses only the model, method, stack, formats and `allocated` of `in`.
  DecodeSegments(const CostInput& in, const std::vector<LayerClass>& columns, std::int64_t prompt,
                 Lines lines);

  /// Extends the trajectory to `step`. Errors: InputError if the size law depends on data.
  void extend(const CostInput& in, std::int64_t step);
  /// True if every column rises by one entry per step, starting with the prompt's entries.
  [[nodiscard]] bool appends() const { return appends_; }
  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  /// Index of the segment that contains `step`. The trajectory must extend to it.
  [[nodiscard]] std::size_t segment_of(std::int64_t step) const;
  [[nodiscard]] DecodeState moment(std::size_t segment, const LayerClass& column,
                                   std::int64_t step) const {
    const Line& line =
        lines_[segment * first_layers_.size() + static_cast<std::size_t>(column.size_class)];
    return line.at(step - segments_[segment].first);
  }
  /// Entries after prefill.
  [[nodiscard]] std::int64_t prompt_entries(const LayerClass& column) const {
    return kept_[static_cast<std::size_t>(column.size_class)];
  }

 private:
  struct Line {
    DecodeState start{};
    std::int8_t attended = 0, before = 0, after = 0;  // rise per step: 0 or 1
    [[nodiscard]] DecodeState at(std::int64_t steps) const {
      DecodeState m = start;
      m.attended += steps * attended;
      m.before += steps * before;
      m.after += steps * after;
      return m;
    }
  };

  /// Returns whether every further step continues the last segment, whose lines are known.
  [[nodiscard]] bool is_straight() const;

  std::vector<std::int32_t> first_layers_;  // by layer class, as all below
  std::vector<bool> bounded_;               // attends to at most its limit
  std::vector<bool> grows_;                 // holds every token
  std::int64_t prompt_;
  bool appends_ = false;
  std::optional<std::int64_t> straight_from_;  // step; each limit is reached before it
  std::optional<StorageTrend> format_;         // not set for plain rows
  std::int64_t reached_ = 0;
  std::vector<std::int64_t> kept_;  // entries after prefill
  std::vector<std::int64_t> held_;  // after the step reached
  std::vector<Segment> segments_;
  std::vector<Line> lines_;  // [segments][size classes]
  std::vector<DecodeState> now_;
};

}  // namespace kvsim
