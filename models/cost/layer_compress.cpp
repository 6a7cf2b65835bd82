#include "models/cost/layer_builder.hpp"
#include "models/units/check.hpp"

namespace kvsim {

/// Scores ranked and the survivors gathered: keys first, then values.
OpIndex LayerBuilder::compact(CacheTensors& cache, std::int64_t from, std::int64_t to,
                              OpIndex after) {
  const auto gather = [&](std::string_view name, Bytes kept, double ranked, OpIndex before) {
    const auto moved = static_cast<double>(kept.count());
    const Op op{.name = name,
                .family = OpFamily::kCompaction,
                .bytes_read = moved + ranked,
                .bytes_written = moved,
                .launches = 2,
                .dtype = dtype_};
    return before < 0 ? graph_.add(op) : graph_.add(op, {before});
  };
  const double ranked = static_cast<double>(in_.batch * rows_.stored_heads() * from) * kFp32Bytes;
  const bool is_static = in_.stack->growth == CacheGrowth::kStatic;
  OpIndex at = gather("compact keys", rows_.keys(to), ranked, after);
  if (!is_static) {
    replace(cache.keys, "keys", "compacted keys", Owner::kCompaction, rows_.keys(to), at);
  }
  if (rows_.values(to) > Bytes{}) {
    at = gather("compact values", rows_.values(to), 0, at);
    if (!is_static) {
      replace(cache.values, "values", "compacted values", Owner::kCompaction, rows_.values(to), at);
    }
  }
  return at;
}

OpGraph LayerBuilder::compress(std::int64_t prompt, std::int64_t kept) {
  KVSIM_CHECK(kept < prompt, "compression from {} entries to {}", prompt, kept);
  CacheTensors cache;
  if (in_.stack->growth != CacheGrowth::kStatic) {
    cache.keys = hold_cache("keys", rows_.keys(prompt), 0);
    if (rows_.values(prompt) > Bytes{}) {
      cache.values = hold_cache("values", rows_.values(prompt), 0);
    }
    const Bytes side = charged_bytes(*in_.stack, rows_.side(prompt));
    if (side > Bytes{}) graph_.hold("side data", Owner::kSideData, side, 0);
  }
  compact(cache, prompt, kept, -1);
  return std::move(graph_);
}

}  // namespace kvsim
