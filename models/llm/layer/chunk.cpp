#include <cmath>

#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

/// Chunked local attention (Llama 4): a token attends to earlier tokens of the same chunk. A decode
/// step reads up to a chunk; a whole chunk is counted.
class ChunkKind final : public FullKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "chunk"; }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    return FullKind::describe(layer) +
           fmt::format(", chunks of {} tokens", with_commas(layer.attention.chunk));
  }
  [[nodiscard]] double pairs(const LayerSpec& layer, double tokens) const override {
    const double chunk = layer.attention.chunk;
    const double whole = std::floor(tokens / chunk);
    const double rest = tokens - whole * chunk;
    return whole * causal_pairs(chunk, 0) + causal_pairs(rest, 0);
  }
};

}  // namespace

const LayerKind& chunk_kind() {
  static const ChunkKind kind;
  return kind;
}

}  // namespace kvsim
