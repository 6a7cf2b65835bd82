#include "models/methods/session/step_tile.hpp"

#include <algorithm>
#include <utility>

#include "models/math/tiles/tile_kernels.hpp"

namespace kvsim {
namespace {

/// Maximum number of bytes for scores and weights of a block, unless kMinSteps steps already exceed
/// it.
constexpr std::size_t kBlockBytes = 48U << 20U;
constexpr std::size_t kMinSteps = 8;

}  // namespace

StepTile::StepTile(std::int32_t group, std::int32_t head_dim, double scale)
    : group_{static_cast<std::size_t>(group)},
      d_{static_cast<std::size_t>(head_dim)},
      scale_{scale},
      running_{group, head_dim, scale} {
  precise_ = {.steps = 0, .group = group_, .width = tile_kernels().width_precise};
  single_ = {.steps = 0, .group = group_, .width = tile_kernels().width};
}

std::int64_t StepTile::steps(std::int64_t entries, bool plain) const {
  const std::size_t max = block_steps(group_);
  if (plain) return static_cast<std::int64_t>(max);
  const std::size_t row = static_cast<std::size_t>(std::max<std::int64_t>(entries, 1)) * group_ *
                          (sizeof(double) + sizeof(float));
  return static_cast<std::int64_t>(std::clamp(kBlockBytes / row, kMinSteps, max));
}

void StepTile::start(const HeadVectors& head, std::int64_t first, std::int64_t steps, bool plain,
                     EntryTable& entries) {
  plain_ = plain;
  steps_ = static_cast<std::size_t>(steps);
  out_.resize(steps_ * group_ * d_);
  log_sum_.resize(steps_ * group_);
  entries.start_versions();
  if (plain) {
    running_.start(head.q, head.tokens, first, steps_);
    born_.assign(entries.next_version(), 0);
    gone_.clear();
    return;
  }
  precise_.steps = single_.steps = steps_;
  pack_queries(head.q, head.tokens, first, precise_, d_, queries_);
  capacity_ = 0;
  std::fill(weights_.begin(), weights_.end(), 0.0F);  // all scores are written, but not all weights
  reserve_versions(entries.next_version() + 2 * steps_);
  score(0, entries.keys(), 0);
}

void StepTile::reserve_versions(std::size_t versions) {
  if (versions <= capacity_) return;
  const std::size_t before = std::exchange(capacity_, versions + capacity_ / 2);
  const auto grow = [&]<class T>(std::vector<T>& panels, const PanelLayout& layout) {
    std::vector<T> old;
    if (before > 0) old.swap(panels);
    panels.resize(layout.panels() * capacity_ * layout.width);
    for (std::size_t p = 0; before > 0 && p < layout.panels(); ++p) {
      std::copy_n(old.data() + p * before * layout.width, before * layout.width,
                  panels.data() + p * capacity_ * layout.width);
    }
  };
  grow(scores_, precise_);
  grow(weights_, single_);
}

/// Computes scores of the rows `keys`, whose versions start at first_version, with the queries of
/// all panels starting at `first_panel`.
void StepTile::score(std::size_t first_version, std::span<const float> keys,
                     std::size_t first_panel) {
  const TileKernels& kernels = tile_kernels();
  const std::size_t rows = keys.size() / d_;
  keys_.resize(kTileEntries * d_);
  for (std::size_t at = 0; at < rows; at += kTileEntries) {
    const std::size_t count = std::min(kTileEntries, rows - at);
    std::copy_n(keys.data() + at * d_, count * d_, keys_.begin());
    for (std::size_t p = first_panel; p < precise_.panels(); ++p) {
      kernels.score_precise(keys_.data(), count, d_, queries_.data() + p * d_ * precise_.width,
                            scores_.data() + (p * capacity_ + first_version + at) * precise_.width);
    }
  }
}

void StepTile::see(std::int64_t step, EntryTable& entries) {
  born_.resize(entries.next_version(), static_cast<std::int32_t>(step));
  gone_.resize(entries.past_rows().versions.size(), static_cast<std::int32_t>(step));
  entries.mark_seen();
}

void StepTile::fill(std::int64_t step, EntryTable& entries, GroupAttention& attention) {
  const auto at = static_cast<std::size_t>(step);
  const std::span<const std::uint32_t> versions = entries.versions();
  const std::uint32_t known = entries.first_unseen();
  if (entries.next_version() > known) {
    reserve_versions(entries.next_version());
    for (std::size_t slot = 0; slot < versions.size(); ++slot) {
      if (versions[slot] < known) continue;
      score(versions[slot], entries.key(static_cast<std::int32_t>(slot)), precise_.panel(at, 0));
    }
    entries.mark_seen();
  }
  attention.resize(versions.size());
  for (std::size_t g = 0; g < group_; g += precise_.width) {
    const std::size_t heads = std::min(group_ - g, precise_.width);
    const double* panel =
        scores_.data() + precise_.panel(at, g) * capacity_ * precise_.width + precise_.lane(at, g);
    double* to = attention.mutable_logits(static_cast<std::int32_t>(g)).data();
    const std::size_t stride =
        heads > 1 ? static_cast<std::size_t>(
                        attention.mutable_logits(static_cast<std::int32_t>(g) + 1).data() - to)
                  : 0;
    for (std::size_t slot = 0; slot < versions.size(); ++slot) {
      const double* from = panel + versions[slot] * precise_.width;
      for (std::size_t i = 0; i < heads; ++i) to[i * stride + slot] = from[i] * scale_;
    }
  }
}

void StepTile::keep(std::int64_t step, const EntryTable& entries, const GroupAttention& attention) {
  const auto at = static_cast<std::size_t>(step);
  const std::span<const std::uint32_t> versions = entries.versions();
  for (std::size_t g = 0; g < group_; ++g) {
    log_sum_[at * group_ + g] = attention.log_sum(static_cast<std::int32_t>(g));
  }
  for (std::size_t g = 0; g < group_; g += single_.width) {
    const std::size_t heads = std::min(group_ - g, single_.width);
    float* panel =
        weights_.data() + single_.panel(at, g) * capacity_ * single_.width + single_.lane(at, g);
    const double* from = attention.probabilities(static_cast<std::int32_t>(g)).data();
    const std::size_t stride =
        heads > 1 ? static_cast<std::size_t>(
                        attention.probabilities(static_cast<std::int32_t>(g) + 1).data() - from)
                  : 0;
    for (std::size_t slot = 0; slot < versions.size(); ++slot) {
      float* to = panel + versions[slot] * single_.width;
      for (std::size_t i = 0; i < heads; ++i) to[i] = static_cast<float>(from[i * stride + slot]);
    }
  }
}

void StepTile::finish(EntryTable& entries, bool read) {
  if (!read) {
    entries.stop_versions();
    return;
  }
  if (plain_) {
    finish_plain(entries);
  } else {
    reserve_versions(entries.next_version());  // rows after the last attention have no weight
    total_.assign(single_.panels() * d_ * single_.width, 0.0);
    mix_rows(entries.versions(), entries.values());
    mix_rows(entries.past_rows().versions, entries.past_rows().values);
    for (std::size_t step = 0; step < steps_; ++step) {
      for (std::size_t g = 0; g < group_; ++g) {
        const double* from =
            total_.data() + single_.panel(step, g) * d_ * single_.width + single_.lane(step, g);
        double* to = out_.data() + (step * group_ + g) * d_;
        for (std::size_t c = 0; c < d_; ++c) to[c] = from[c * single_.width];
      }
    }
  }
  entries.stop_versions();
}

void StepTile::finish_plain(const EntryTable& entries) {
  const EntryTable::PastRows& past = entries.past_rows();
  gone_.resize(past.versions.size(), static_cast<std::int32_t>(steps_));
  const auto born_of = [this](std::span<const std::uint32_t> versions) {
    slot_born_.resize(versions.size());
    for (std::size_t i = 0; i < versions.size(); ++i) {
      // A row written after the block's last attention was never used.
      slot_born_[i] =
          versions[i] < born_.size() ? born_[versions[i]] : static_cast<std::int32_t>(steps_);
    }
    return std::span<const std::int32_t>{slot_born_};
  };
  running_.add(entries.keys(), entries.values(), born_of(entries.versions()));
  running_.add(past.keys, past.values, born_of(past.versions), gone_);
  running_.finish(std::span{out_}, std::span{log_sum_});
}

/// Adds the values of rows, weighted over all steps, to total_.
void StepTile::mix_rows(std::span<const std::uint32_t> versions, std::span<const float> values) {
  const TileKernels& kernels = tile_kernels();
  const std::size_t width = single_.width;
  part_.resize(d_ * width);
  const std::vector<double> one(width, 1.0);
  for (std::size_t at = 0; at < versions.size(); at += kTileEntries) {
    const auto rows = versions.subspan(at, std::min(kTileEntries, versions.size() - at));
    for (std::size_t p = 0; p < single_.panels(); ++p) {
      kernels.mix(values.data() + at * d_, rows.data(), rows.size(), d_,
                  weights_.data() + p * capacity_ * width, part_.data());
      kernels.accumulate(total_.data() + p * d_ * width, one.data(), part_.data(), d_);
    }
  }
}

}  // namespace kvsim
