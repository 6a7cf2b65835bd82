#include "sim/replay/paged.hpp"

#include <algorithm>
#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Bytes of K and V of one entry; the mean if rows of a format differ.
std::int64_t row_bytes(std::int64_t kv_bytes, std::int64_t entries) {
  if (entries == 0) return 0;
  return std::llround(static_cast<double>(kv_bytes) / static_cast<double>(entries));
}

}  // namespace

std::vector<std::int32_t> slots_of(std::span<const std::vector<std::int32_t>> kept,
                                   std::int64_t written) {
  KVSIM_CHECK(static_cast<std::int64_t>(kept.size()) <= written, "{} entries of {} tokens",
              kept.size(), written);
  std::vector<std::int32_t> slots;
  slots.reserve(kept.size());
  std::int32_t last = -1;
  for (const std::vector<std::int32_t>& members : kept) {
    const auto own = std::upper_bound(members.begin(), members.end(), last);
    slots.push_back(last = own == members.end() ? last + 1 : *own);
  }
  // Displaced entries must also be before the end.
  for (std::size_t i = slots.size(); i-- > 0;) {
    const auto highest =
        static_cast<std::int32_t>(written - static_cast<std::int64_t>(slots.size() - i));
    slots[i] = std::min(slots[i], highest);
  }
  return slots;
}

void PagedSummary::add_layer(const std::vector<HeadSeries>& heads) {
  PagedLayer before{.written = prompt_, .kept = {}};
  PagedLayer end{.written = tokens_, .kept = {}, .evicted_by_steps = 0};
  std::int64_t bytes_before = 0, bytes_end = 0, entries_before = 0, entries_end = 0;
  for (const HeadSeries& head : heads) {
    before.kept.push_back(head.slots_after_prefill);
    end.kept.push_back(head.slots);
    const auto at_prefill = static_cast<std::int64_t>(head.slots_after_prefill.size());
    const auto at_end = static_cast<std::int64_t>(head.slots.size());
    *end.evicted_by_steps += std::max<std::int64_t>(0, at_prefill + tokens_ - prompt_ - at_end);
    entries_before += at_prefill;
    entries_end += at_end;
    bytes_before += head.bytes_after_prefill.kv.count();
    bytes_end +=
        (head.costs.empty() ? head.bytes_after_prefill : head.costs.back().bytes).kv.count();
  }
  before.row_bytes = row_bytes(bytes_before, entries_before);
  end.row_bytes = row_bytes(bytes_end, entries_end);
  after_prefill_.push_back(std::move(before));
  at_end_.push_back(std::move(end));
}

std::vector<ReplayPaged> PagedSummary::reports(std::span<const std::int64_t> block_sizes) const {
  std::vector<ReplayPaged> out;
  for (const bool at_end : {false, true}) {
    for (const std::int64_t size : block_sizes) {
      for (const BlockLayout layout : kBlockLayouts) {
        out.push_back({at_end ? "end" : "prefill",
                       paged_report(at_end ? at_end_ : after_prefill_, size, layout)});
      }
    }
  }
  return out;
}

}  // namespace kvsim
