#include "models/methods/streaming_heads.hpp"

#include <vector>

#include "models/methods/params.hpp"

namespace kvsim {
namespace {

/// Returns the share of a layer's heads that do not grow with the sequence.
double bounded_share(const Method& method, std::int32_t layer, std::int32_t heads) {
  constexpr std::int64_t kFar = 1 << 20;  // longer than any streaming head
  std::vector<std::int64_t> once(static_cast<std::size_t>(heads));
  std::vector<std::int64_t> twice(static_cast<std::size_t>(heads));
  method.heads_held(layer, kFar, kFar, once);
  method.heads_held(layer, kFar, 2 * kFar, twice);
  double grown = 0;
  for (std::size_t h = 0; h < once.size(); ++h) grown += static_cast<double>(twice[h] - once[h]);
  return 1 - grown / static_cast<double>(heads * kFar);
}

}  // namespace

StreamingHeads streaming_heads(const Method& method, std::int32_t n_layers, std::int32_t heads) {
  const Params& params = method.params();
  for (const char* name : {"streaming_fraction", "n_sink", "n_recent"}) {
    if (!params.contains(name)) return {};
  }
  // An append-only cache: masks replace eviction.
  if (method.compaction() == Compaction::kAppend) return {};
  StreamingHeads out{
      .share = param_number(params, "streaming_fraction"),
      .entries = param_integer(params, "n_sink") + param_integer(params, "n_recent")};
  if (!method.ragged()) return out;
  out.share = 0;
  for (std::int32_t layer = 0; layer < n_layers; ++layer) {
    out.share += bounded_share(method, layer, heads);
  }
  out.share /= n_layers;
  return out;
}

}  // namespace kvsim
