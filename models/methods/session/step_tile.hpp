#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/math/attention/attend.hpp"
#include "models/math/tiles/running_attention.hpp"
#include "models/methods/view/entry_table.hpp"
#include "models/methods/view/vectors.hpp"

namespace kvsim {

/// Attention of one stored head over a block of decode steps, in tiles of steps by entries,
/// although entries change from step to step. Queries are known in advance, so one product computes
/// the scores of all steps with an entry, and another one the outputs at the end of the block.
///
/// A method that does not use attention only needs the outputs: each entry is then attended to by
/// the steps in which it was in the table (`plain`). Other methods receive each step's logits in
/// fp64 (`fill`), which equal the products of GroupAttention up to rounding.
class StepTile {
 public:
  StepTile(std::int32_t group, std::int32_t head_dim, double scale);

  /// Returns the number of steps of the next block for a table of `entries` entries, with or
  /// without `plain` steps.
  [[nodiscard]] std::int64_t steps(std::int64_t entries, bool plain) const;
  /// Starts a block for positions first … first + steps - 1.
  void start(const HeadVectors& head, std::int64_t first, std::int64_t steps, bool plain,
             EntryTable& entries);
  /// Called when the entries of step `step` are final. Plain blocks only.
  void see(std::int64_t step, EntryTable& entries);
  /// Writes the logits of step `step`, bias excluded, by slot. Not for plain blocks.
  void fill(std::int64_t step, EntryTable& entries, GroupAttention& attention);
  /// Stores the probabilities of the same step.
  void keep(std::int64_t step, const EntryTable& entries, const GroupAttention& attention);
  /// Computes the outputs after the block's last step, if they are `read`.
  void finish(EntryTable& entries, bool read = true);

  [[nodiscard]] std::span<const double> output(std::int64_t step) const {  // [group, d]
    return std::span{out_}.subspan(static_cast<std::size_t>(step) * group_ * d_, group_ * d_);
  }
  [[nodiscard]] double log_sum(std::int64_t step, std::int32_t g) const {
    return log_sum_[static_cast<std::size_t>(step) * group_ + static_cast<std::size_t>(g)];
  }

 private:
  void reserve_versions(std::size_t versions);
  void score(std::size_t first_version, std::span<const float> keys, std::size_t first_panel);
  void finish_plain(const EntryTable& entries);
  void mix_rows(std::span<const std::uint32_t> versions, std::span<const float> values);

  std::size_t group_, d_;
  double scale_;
  bool plain_ = false;
  std::size_t steps_ = 0;
  std::vector<double> out_, log_sum_;  // [steps, group, d], [steps, group]

  // Plain blocks: by version, the first step with it; by past row, the first step without it.
  RunningAttention running_;
  std::vector<std::int32_t> born_, gone_, slot_born_;

  // Other blocks: scores and weights by version, [panels, capacity, width].
  PanelLayout precise_, single_;  // of scores (fp64), of weights (fp32)
  std::size_t capacity_ = 0;
  std::vector<double> queries_;  // [panels, d, width]
  std::vector<double> scores_;
  std::vector<float> weights_;
  std::vector<double> keys_, total_;  // [kTileEntries, d]; [panels, d, width] of `single_`
  std::vector<float> part_;           // [d, width]
};

}  // namespace kvsim
