#pragma once

// References of methods whose decisions cover whole layers, step by step: sets of positions by
// layer, fp64, every row recomputed. For clarity, not speed.

#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <set>
#include <vector>

#include "tests/support/reference/reference_learned.hpp"

namespace kvsim::test {

struct ReferencePyramidSettings {
  double recent = 0.2, delta = 0.9;
  std::int64_t min_context = 64, interval = 1, sinks = 4;
  bool total = false;  // growth is counted in tokens of the context
};

/// PyramidInfer over a trace: `held[l]` is the kept set of layer l, after the prompt and after each
/// step.
class ReferencePyramid {
 public:
  ReferencePyramid(const WholeTrace& trace, const ReferencePyramidSettings& settings)
      : trace_{trace}, set_{settings} {
    const auto s = static_cast<std::int32_t>(trace.info.prompt_tokens);
    const std::int32_t layers = trace.info.n_layers;
    recent_ = static_cast<std::int32_t>(set_.recent * s) + 1;
    std::set<std::int32_t> alive;
    for (std::int32_t i = 0; i < s; ++i) alive.insert(i);
    std::int64_t context = s - recent_;
    for (std::int32_t l = 0; l < layers; ++l) {
      held.push_back(alive);
      after_prompt_.push_back(std::ssize(alive));
      rows_.emplace_back();
      // If growth counts tokens seen, thinning may use the prompt's last rows.
      for (std::int32_t t = s - recent_; set_.total && t < s; ++t) look(l, t);
      if (l + 1 == layers) break;
      if ((l + 1) % set_.interval == 0) {
        const double share = falling(l, set_.delta);
        const auto cut = static_cast<std::int64_t>(static_cast<double>(context) * share);
        if (cut > set_.min_context) context = cut;
      }
      bool sure = true;
      std::tie(alive, sure) =
          reference_passed_on(trace_, l, alive, recent_, set_.sinks, context + recent_);
      clear = clear && sure;
    }
  }
  void step(std::int32_t t) {
    for (std::int32_t l = 0; l < trace_.info.n_layers; ++l) {
      held[static_cast<std::size_t>(l)].insert(t);
      look(l, t);
      thin(l, t);
    }
  }
  std::vector<std::set<std::int32_t>> held;
  bool clear = true;
  std::int32_t thinned = 0;  // number of times that a layer dropped entries

 private:
  static constexpr std::int32_t kExceed = 16;

  double falling(std::int32_t layer, double end) const {
    return (1 - end) * (std::cos(std::numbers::pi * layer / trace_.info.n_layers) + 1) / 2 + end;
  }
  /// Attention of position t over the layer's entries up to it, all heads together.
  void look(std::int32_t layer, std::int32_t t) {
    std::vector<std::int32_t> seen;
    for (const std::int32_t i : held[static_cast<std::size_t>(layer)]) {
      if (i <= t) seen.push_back(i);
    }
    std::map<std::int32_t, double> row;
    for (std::int32_t h = 0; h < trace_.info.n_kv_heads; ++h) {
      const HeadVectors head = trace_.head(layer, h);
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto p = naive_attention(head, g, t, seen);
        for (std::size_t i = 0; i < seen.size(); ++i) row[seen[i]] += p[i];
      }
    }
    rows_[static_cast<std::size_t>(layer)].push_back(std::move(row));
  }
  void thin(std::int32_t layer, std::int32_t t) {
    const auto l = static_cast<std::size_t>(layer);
    const std::int64_t late = recent_ + kExceed;
    const std::int64_t grown = t + 1 - (set_.total ? after_prompt_[l] : trace_.info.prompt_tokens);
    if (grown < late || (!set_.total && (grown - late) % kExceed != 0)) return;
    // The 16 entries just before the recent ones.
    std::vector<std::int32_t> list(held[l].begin(), held[l].end());
    const std::int64_t from = std::ssize(list) - late;
    if (set_.total && from < set_.sinks) return;
    // 0.9 x 16 of them may stay in the first layer; the number decreases with a cosine to a tenth
    // of that.
    auto stay = static_cast<std::size_t>(
        std::max(static_cast<int>(kExceed * 0.9 * falling(layer, 0.1)), 1));
    std::vector<std::pair<double, std::int32_t>> ranked;
    for (std::int32_t i = 0; i < kExceed; ++i) {
      const std::int32_t id = list[static_cast<std::size_t>(from + i)];
      double score = 0;
      for (std::int32_t r = 0; r < recent_; ++r) {  // the newest row weighs 1.2, the oldest 1
        const auto& row = rows_[l][rows_[l].size() - static_cast<std::size_t>(recent_ - r)];
        const auto found = row.find(id);
        if (found != row.end()) score += (1 + 0.2 * r / std::max(recent_ - 1, 1)) * found->second;
      }
      ranked.emplace_back(id < set_.sinks ? -INFINITY : -score, id);
    }
    std::sort(ranked.begin(), ranked.end());
    while (ranked[stay].first == -INFINITY) ++stay;
    clear = clear && ranked[stay].first - ranked[stay - 1].first > 1e-6;
    for (std::size_t i = stay; i < ranked.size(); ++i) held[l].erase(ranked[i].second);
    ++thinned;
  }

  const WholeTrace& trace_;
  ReferencePyramidSettings set_;
  std::int32_t recent_ = 0;
  std::vector<std::int64_t> after_prompt_;
  std::vector<std::vector<std::map<std::int32_t, double>>> rows_;  // by layer and age
};

}  // namespace kvsim::test
