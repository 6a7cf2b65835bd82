#include "sim/serve/cache/fragmented_blocks.hpp"

#include <algorithm>
#include <numeric>

#include "models/units/check.hpp"
#include "sim/memory/block_allocator.hpp"

namespace kvsim {

std::int64_t rows_in_blocks(std::span<const std::int64_t> heads, std::int64_t block_tokens,
                            bool per_head) {
  const auto whole = [&](std::int64_t rows) {
    return (rows + block_tokens - 1) / block_tokens * block_tokens;
  };
  if (!per_head) return whole(heads.front()) * std::ssize(heads);
  std::int64_t rows = 0;
  for (const std::int64_t head : heads) rows += whole(head);
  return rows;
}

bool closes_holes(std::span<const std::int64_t> written, std::span<const std::int64_t> held,
                  std::int64_t block_tokens, bool per_head) {
  KVSIM_CHECK(!written.empty() && written.size() == held.size(), "{} heads written, {} held",
              written.size(), held.size());
  const std::int64_t room = rows_in_blocks(written, block_tokens, per_head);
  const std::int64_t kept = std::accumulate(held.begin(), held.end(), std::int64_t{0});
  return static_cast<double>(room - kept) > kCompactionSlack * static_cast<double>(room) &&
         rows_in_blocks(held, block_tokens, per_head) < room;
}

void FragmentedBlocks::add(std::size_t layer_class, std::span<const std::int64_t> held,
                           std::int64_t block_tokens, bool per_head) {
  LayerClass& of = layer_classes_[layer_class];
  ++of.reached;
  within(layer_class, of.reached, written_);
  if (closes_holes(written_, held, block_tokens, per_head)) {
    of.stretches.push_back({of.reached, {held.begin(), held.end()}});
  }
}

const FragmentedBlocks::Stretch& FragmentedBlocks::after(std::size_t layer_class,
                                                         std::int64_t step) const {
  const LayerClass& of = layer_classes_[layer_class];
  KVSIM_CHECK(!of.stretches.empty() && step >= 0 && step <= of.reached, "step {} of {} known", step,
              of.reached);
  const auto next =
      std::upper_bound(of.stretches.begin(), of.stretches.end(), step,
                       [](std::int64_t n, const Stretch& stretch) { return n < stretch.from; });
  return *(next - 1);
}

void FragmentedBlocks::within(std::size_t layer_class, std::int64_t step,
                              std::vector<std::int64_t>& heads) const {
  const Stretch& stretch = after(layer_class, step - 1);
  heads = stretch.heads;
  for (std::int64_t& head : heads) head += step - stretch.from;
}

}  // namespace kvsim
