#include "models/methods/view/prompt_scores.hpp"

#include <algorithm>
#include <limits>

#include "models/math/attention/causal_attention.hpp"
#include "models/units/check.hpp"

namespace kvsim {

const LayerVectors& PromptScores::layer() const {
  KVSIM_CHECK(layer_ != nullptr, "no layer was given for {} heads", heads_.size());
  return *layer_;
}

std::int32_t PromptScores::head_number(std::size_t h) const {
  const std::int32_t at = first_head_ + static_cast<std::int32_t>(h);
  if (layer_ == nullptr || layer_->head_numbers.empty()) return at;
  return layer_->head_numbers.at(static_cast<std::size_t>(at));
}

PromptScores PromptScores::of_head(std::size_t h) const {
  KVSIM_CHECK(h < heads_.size(), "head {} of {}", h, heads_.size());
  std::vector<HeadVectors> one{heads_[h]};
  if (layer_ == nullptr) return PromptScores{std::move(one), first_head_, nullptr};
  // Query heads with separate entries share the rows of a KV head.
  const std::int32_t split = layer_->heads.front().group / heads_[h].group;
  return PromptScores{std::move(one), first_head_ + static_cast<std::int32_t>(h) / split, layer_};
}

std::span<const double> PromptScores::column_sums(double decay) {
  const std::scoped_lock lock{guard_};
  const auto [at, fresh] = sums_.try_emplace(decay);
  if (fresh) {
    for (const HeadVectors& head : heads_) {
      std::vector<double> sums = prompt_column_sums(head.q, head.keys, head.group, head.head_dim,
                                                    head.tokens, head.prompt, head.scale, decay);
      if (at->second.empty()) {
        at->second = std::move(sums);
      } else {
        for (std::size_t i = 0; i < sums.size(); ++i) at->second[i] += sums[i];
      }
    }
  }
  return at->second;
}

const WindowRows& PromptScores::window(std::int32_t rows) {
  KVSIM_CHECK(rows >= 1, "a window of {} rows", rows);
  rows = std::min(rows, prompt());
  const std::scoped_lock lock{guard_};
  const auto [at, fresh] = windows_.try_emplace(rows);
  if (!fresh) return at->second;
  WindowRows& out = at->second;
  out.rows = rows;
  out.prompt = prompt();
  out.group = heads_.front().group;
  const auto p = static_cast<std::size_t>(prompt());
  const std::size_t all =
      heads_.size() * static_cast<std::size_t>(out.group) * static_cast<std::size_t>(rows) * p;
  out.logits.assign(all, -std::numeric_limits<double>::infinity());
  out.probabilities.assign(all, 0.0);
  each_row(out.prompt - rows, [&](const Row& row) {
    const auto r = static_cast<std::size_t>(row.t - (out.prompt - rows));
    const std::size_t to =
        ((row.head * static_cast<std::size_t>(out.group) + static_cast<std::size_t>(row.g)) *
             static_cast<std::size_t>(rows) +
         r) *
        p;
    std::copy(row.logits.begin(), row.logits.end(),
              out.logits.begin() + static_cast<std::ptrdiff_t>(to));
    std::copy(row.probabilities.begin(), row.probabilities.end(),
              out.probabilities.begin() + static_cast<std::ptrdiff_t>(to));
  });
  return out;
}

void PromptScores::each_row(std::int64_t first,
                            const std::function<void(const Row&)>& visit) const {
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const HeadVectors& head = heads_[h];
    each_causal_row(head.q, head.keys, head.group, head.head_dim, head.tokens, head.prompt,
                    std::clamp<std::int64_t>(first, 0, head.prompt), head.scale,
                    [&visit, h](const CausalRow& row) {
                      visit({.head = h,
                             .g = row.g,
                             .t = row.t,
                             .logits = row.logits,
                             .probabilities = row.probabilities});
                    });
  }
}

}  // namespace kvsim
