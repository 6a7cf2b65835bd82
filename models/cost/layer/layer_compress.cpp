#include "models/cost/layer/layer_builder.hpp"
#include "models/units/check.hpp"

namespace kvsim {

/// Ranks scores and gathers the kept entries: keys first, then values.
OpIndex LayerBuilder::compact(CacheTensors& cache, std::int64_t from, std::int64_t to,
                              OpIndex after) {
  double ranked = static_cast<double>(in_.batch * rows_.stored_heads() * from) * kFp32Bytes;
  OpIndex at = after;
  for (const CachePart& part : parts()) {
    const auto moved = static_cast<double>(payload(part, to).count());
    const Op op{.name = part.compact,
                .family = OpFamily::kCompaction,
                .bytes_read = moved + ranked,
                .bytes_written = moved,
                .launches = 2,
                .dtype = dtype_};
    at = at < 0 ? graph_.add(op) : graph_.add(op, {at});
    if (!is_preallocated(*in_.stack)) {
      replace(cache, part, part.compacted, Owner::kCompaction, to, at);
    }
    ranked = 0;
  }
  return at;
}

OpGraph LayerBuilder::compress(std::int64_t prompt, std::int64_t kept) {
  KVSIM_CHECK(kept < prompt, "compression from {} entries to {}", prompt, kept);
  CacheTensors cache;
  if (!is_preallocated(*in_.stack)) {
    for (const CachePart& part : parts()) hold_cache(cache, part, prompt, 0);
    hold_other(cache, prompt, 0);
    if (rows_.side(prompt) > Bytes{}) {
      hold("side data", Owner::kSideData, rows_.side_size(prompt), 0);
    }
  }
  compact(cache, prompt, kept, -1);
  return std::move(graph_);
}

}  // namespace kvsim
