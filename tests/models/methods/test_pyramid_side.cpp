// Bytes of the attention rows that PyramidInfer keeps for thinning generated tokens.

#include <cstdint>

#include "models/methods/budget/nested.hpp"
#include "models/methods/method.hpp"
#include "models/methods/params.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

TEST_CASE("PyramidInfer's attention rows, by hand: one set per layer, 4 bytes per entry") {
  constexpr std::int64_t kPrompt = 4096;
  for (const std::int32_t kv_heads : {1, 8, 32}) {
    const LayerShape shape{.n_heads = 32, .n_kv_heads = kv_heads, .head_dim = 128};
    const auto method = make_method({"pyramidinfer", {}, {}}, kPrompt,
                                    {.recorded = Dtype::kFp16, .shape = shape, .n_layers = 32});
    // The last int(0.2 * 4096) + 1 = 820 tokens score the others.
    CHECK(param_integer(method->params(), "recent_tokens") == 820);
    const auto side = [&](std::int32_t layer, std::int64_t tokens) {
      const std::int64_t held = *method->entries_held(layer, kPrompt, tokens);
      return method->side_bytes(layer, shape, Dtype::kFp16,
                                *method->entries_held(layer, kPrompt, kPrompt), held);
    };
    // The mean over heads, so there is one set of rows regardless of the number of heads:
    // 820 * 4096 * 4 in layer 0, 820 * 1541 * 4 in the last.
    CHECK(side(0, kPrompt) == Bytes{13'434'880});
    CHECK(side(31, kPrompt) == Bytes{5'054'480});
    // A generated token adds a column to every row: 820 * 10 * 4.
    CHECK(side(31, kPrompt + 10) - side(31, kPrompt) == Bytes{32'800});
    // After 820 + 16 of them, 15 of 16 leave the last layer: 820 * (1541 + 836 - 15) * 4.
    CHECK(side(31, kPrompt + 836) == Bytes{7'747'360});
  }
}

}  // namespace
}  // namespace kvsim
