// A cache at its ceiling on stacks that concatenate: its new entry comes in a longer copy too.

#include "models/cost/step.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

bool concatenates(const Stack& stack) {
  return stack.growth == CacheGrowth::kConcatLayer || stack.growth == CacheGrowth::kConcatAll;
}

double concat_bytes(const OpGraph& graph) {
  double bytes = 0;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    if (op.family == OpFamily::kConcatCopy) bytes += op.bytes_read + op.bytes_written;
  }
  return bytes;
}

TEST_CASE("a full cache pays the copy that a growing one of its length pays, on no other stack") {
  const Llm llm = llama31_8b();
  for (const Stack& stack : builtin_stacks()) {
    for (const Compaction how : {Compaction::kRing, Compaction::kSwap, Compaction::kGather}) {
      const BoundedMethod bounded{{.budget = 1000, .compaction = how}};
      const FullMethod all;
      const CostInput in{.llm = &llm, .method = &bounded, .stack = &stack};
      const CostInput growing{.llm = &llm, .method = &all, .stack = &stack};
      const DecodeMoment full = decode_moment(in, 0, 2000, 2001, 1000);
      const DecodeMoment grows{.attended = 1001, .before = 1000, .after = 1001};
      const OpGraph graph = decode_layer(in, 0, full);
      const OpGraph other = decode_layer(growing, 0, grows);
      INFO(stack.name);
      CHECK(full.attended == 1001);
      // By hand: keys and values of 1,001 entries of 8 heads of 128 channels, read and written.
      CHECK(concat_bytes(graph) == (concatenates(stack) ? 2 * 2 * 1001 * 8 * 128 * 2 : 0));
      CHECK(concat_bytes(graph) == concat_bytes(other));
      // The caller that holds old caches holds those of full ones.
      CHECK(left_behind(in, 0, full).total() == left_behind(growing, 0, grows).total());
      // What stands after the step is what the method holds.
      Bytes held;
      for (const Tensor& tensor : graph.tensors()) {
        if (tensor.owner == Owner::kKvCache && tensor.last >= graph.size()) held += tensor.bytes;
      }
      if (!is_preallocated(stack)) CHECK(held == layer_cache(in, 0, 1000).total());
    }
  }
}

TEST_CASE("a window that is full is concatenated as well") {
  Llm llm = llama31_8b();
  for (LayerSpec& layer : llm.layers) layer.attention.window = 500;
  const FullMethod all;
  for (const Stack& stack : builtin_stacks()) {
    const CostInput in{.llm = &llm, .method = &all, .stack = &stack};
    const DecodeMoment full = decode_moment(in, 0, 2000, 2001, 500);
    INFO(stack.name);
    CHECK(full.attended == 500);
    CHECK(concat_bytes(decode_layer(in, 0, full)) ==
          (concatenates(stack) ? 2 * 2 * 501 * 8 * 128 * 2 : 0));
  }
}

}  // namespace
}  // namespace kvsim
