#include "models/cost/op.hpp"

#include <array>

namespace kvsim {

std::string_view name_of(OpFamily family) {
  constexpr std::array<std::string_view, kOpFamilies> kNames{"embedding",
                                                             "gemm",
                                                             "logits",
                                                             "prefill_attention",
                                                             "decode_attention",
                                                             "norm",
                                                             "rope",
                                                             "elementwise",
                                                             "cache_write",
                                                             "concat_copy",
                                                             "expand_copy",
                                                             "score_pass",
                                                             "compaction",
                                                             "method",
                                                             "collective",
                                                             "host_copy",
                                                             "recurrence",
                                                             "index",
                                                             "sparse_attention"};
  return kNames[static_cast<std::size_t>(family)];
}

std::string_view name_of(Owner owner) {
  constexpr std::array<std::string_view, kOwners> kNames{
      "activations", "compaction", "concat_copy", "context",   "kv_cache", "kv_expansion",
      "logits",      "mask",       "scores",      "side_data", "weights"};
  return kNames[static_cast<std::size_t>(owner)];
}

}  // namespace kvsim
