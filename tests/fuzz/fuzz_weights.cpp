// Weights and scores of heads that methods take from files: surrogates, trained feature maps,
// DuoAttention's tables.
#include "models/methods/budget/head_table.hpp"
#include "models/methods/merge/low_rank_weights.hpp"
#include "sim/replay/surrogates.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const auto path = fuzz::as_file(fuzz::text_of(data, size));
  fuzz::expect_answer([&] { (void)read_surrogates(path); });
  fuzz::expect_answer([&] {
    const auto weights = LowRankWeights::read(path);
    (void)weights->of(weights->n_layers() - 1, weights->n_heads() - 1);
  });
  return fuzz::expect_answer([&] { (void)read_head_table(path.string()); });
}
