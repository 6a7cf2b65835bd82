#pragma once

#include <cstdint>
#include <vector>

#include "models/cost/step.hpp"

namespace kvsim {

/// Layers that one law serves: a group where the method's layers are alike, else one layer.
struct LayerColumn {
  std::int32_t first = 0;
  std::int32_t count = 1;
  std::int32_t group = 0;  // index into layer_groups
  std::int32_t like = 0;   // of the first group of layers alike
};
[[nodiscard]] std::vector<LayerColumn> layer_columns(const std::vector<LayerGroup>& groups,
                                                     bool layers_alike);

/// The decode steps of one prompt cut into segments along which every column's moment stands still
/// or rises by one entry a step: what a method's size law is, learnt by asking it for every step.
class Trajectory {
 public:
  struct Segment {
    std::int64_t first = 1;  // steps, both included
    std::int64_t last = 1;
  };

  /// `columns` outlives it; of `in` the model, method, stack and `allocated` matter. Unless `joins`,
  /// every step is a segment of its own.
  Trajectory(const CostInput& in, const std::vector<LayerColumn>& columns, std::int64_t prompt,
             bool joins);

  /// Knows all steps up to `step`. Errors: InputError where the law depends on data.
  void extend(const CostInput& in, std::int64_t step);
  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  /// Index of the segment of `step`, which was reached.
  [[nodiscard]] std::size_t segment_of(std::int64_t step) const;
  [[nodiscard]] DecodeMoment moment(std::size_t segment, std::size_t column,
                                    std::int64_t step) const {
    const Line& line = lines_[segment * columns_->size() + column];
    const std::int64_t n = step - segments_[segment].first;
    DecodeMoment m = line.start;
    m.attended += n * line.attended;
    m.before += n * line.before;
    m.after += n * line.after;
    return m;
  }
  [[nodiscard]] std::int64_t prompt_entries(std::size_t column) const { return kept_[column]; }

 private:
  struct Line {
    DecodeMoment start{};
    std::int8_t attended = 0, before = 0, after = 0;  // rise a step: 0 or 1
  };

  const std::vector<LayerColumn>* columns_;
  std::int64_t prompt_;
  bool joins_;
  std::int64_t reached_ = 0;
  std::vector<std::int64_t> kept_;  // by column: entries after prefill
  std::vector<std::int64_t> held_;  // by column: after the step reached
  std::vector<Segment> segments_;
  std::vector<Line> lines_;  // [segments][columns]
  std::vector<DecodeMoment> now_;
};

}  // namespace kvsim
