// Cost of selecting the kept entries: the operator graph compared exactly with the kernels' bytes
// counted by the simulator. They are equal, or the difference has a name.

#include "kernels/quantise/quantise.hpp"
#include "kernels/score/scores.hpp"
#include "kernels/score/surrogate.hpp"
#include "kernels/select/select.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "tests/kernels/graph_of.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

TEST_CASE("graph: KeepKV's moving average of exponentials, byte for byte") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t entries : {31, 257}) {
      INFO("batch ", batch, " entries ", entries);
      const MethodGraph of{
          "select=logit_average+budget=uniform+merge=drop", {}, entries - 1, batch};
      const OpGraph graph = of.decode(entries, CacheChange::kOverwrite);
      const Op& row = op_of(graph, "score row");
      const Op& method = op_of(graph, "method");
      const kernels::ScoreShape shape{.rows = batch * kRows,
                                      .group = kHeads / kStored,
                                      .entries = entries,
                                      .stride = (entries + 3) / 4 * 4};
      const Counters counted = run([&](Device& device) {
        const Buffer<float> logits{device, "logits", draw(1, batch * kHeads * shape.stride)};
        Buffer<float> average{device, "average", draw(2, shape.rows * shape.stride)};
        update_log_average({&device}, shape, 0.9F, in(logits), out(average));
      });
      check_bytes(counted, row.bytes_read + method.bytes_read, 0, method.bytes_written, 0);
    }
  }
}

TEST_CASE("graph: the lowest score, which the graph finds during the update of scores") {
  const std::int64_t batch = 3;
  const std::int64_t entries = 257;
  const MethodGraph of{"h2o", {}, entries - 1, batch};
  const OpGraph graph = of.decode(entries, CacheChange::kOverwrite);
  const Op& method = op_of(graph, "method");
  const kernels::SelectShape shape{.rows = batch * kRows, .entries = entries, .stride = 260};
  const Counters counted = run([&](Device& device) {
    const Buffer<float> scores{device, "scores", draw(3, shape.rows * shape.stride)};
    Buffer<std::int64_t> position{device, "position", shape.rows};
    argmin_rows({&device}, shape, in(scores), out(position));
  });
  // The graph reads the scores once, with their update (compared in H2O's case): the search by a
  // separate kernel reads them once more and writes one position per row.
  check_bytes(counted, method.bytes_read, 0, 0, 8 * shape.rows);
}

TEST_CASE("graph: entries above a threshold except positions and their number") {
  const std::int64_t batch = 2;
  const std::int64_t prompt = 257;
  const Llm model = graph_llm();
  const FullMethod full;
  const OpGraph graph = compress_layer({.llm = &model,
                                        .method = &full,
                                        .stack = &find_stack("ideal"),
                                        .weight_dtype = Dtype::kFp16,
                                        .kv_dtype = Dtype::kFp16,
                                        .batch = batch},
                                       0, prompt, 31);
  const Op& keys = op_of(graph, "compact keys");
  const double ranked = keys.bytes_read - keys.bytes_written;  // in addition to the moved entries
  const kernels::SelectShape shape{.rows = batch * kRows, .entries = prompt, .stride = 260};
  std::int64_t kept = 0;
  const Counters counted = run([&](Device& device) {
    const Buffer<float> scores{device, "scores", draw(3, shape.rows * shape.stride)};
    Buffer<std::int32_t> positions{device, "kept", shape.rows * prompt};
    Buffer<std::int32_t> counts{device, "counts", shape.rows};
    threshold_rows({&device}, shape, 0.5F, in(scores), out(positions), out(counts));
    for (const std::int32_t n : counts.download()) kept += n;
  });
  CHECK(kept > 0);
  check_bytes(counted, ranked, 0, 0, 4 * kept + 4 * shape.rows);
}

TEST_CASE("graph: KVzap scores a prompt except repeated reads by heads and tokens and flags") {
  const std::int64_t tokens = 65;
  for (const bool mlp : {false, true}) {
    INFO("an inner layer: ", mlp);
    const std::int64_t width = kWidth / 8;
    const MethodGraph of{"kvzap", {{"model", std::string{mlp ? "mlp" : "linear"}}}, 0, 1, tokens};
    const OpGraph graph =
        prefill_layer(of.in, 0, {.prompt = tokens, .kept = tokens, .score_rows = tokens});
    const Op& op = op_of(graph, "method on the prompt");
    const Counters counted = run([&](Device& device) {
      const Buffer<kv::Half> hidden{device, "hidden", numbers<kv::Half>(tokens * kWidth)};
      const std::int64_t inputs = mlp ? width : kWidth;
      const Buffer<float> weights{device, "weights", draw(2, kStored * inputs)};
      const Buffer<float> biases{device, "biases", draw(3, kStored)};
      Buffer<float> scores{device, "scores", kStored * tokens};
      Buffer<std::int32_t> keeps{device, "keeps", kStored * tokens};
      const kernels::SurrogateShape shape{.tokens = tokens, .heads = kStored, .inputs = kWidth};
      if (!mlp) {
        linear_scores<kv::Half>(
            {&device}, shape, {in(hidden), in(weights), in(biases), 0.0F, out(scores), out(keeps)});
        return;
      }
      const Buffer<float> w1{device, "w1", draw(4, width * kWidth)};
      const Buffer<float> b1{device, "b1", draw(5, width)};
      Buffer<float> inner{device, "inner", tokens * width};
      mlp_scores<kv::Half>({&device}, shape, width,
                           {.hidden = in(hidden),
                            .w1 = in(w1),
                            .b1 = in(b1),
                            .inner = out(inner),
                            .outer = {in(std::as_const(inner)), in(weights), in(biases), 0.0F,
                                      out(scores), out(keeps)}});
    });
    // The graph has one read of hidden states and of weights in 16 bits, no biases, and scores.
    const std::int64_t n_weights = mlp ? kWidth * width + width * kStored : kWidth * kStored;
    CHECK(op.bytes_read == static_cast<double>(tokens * kWidth * 2 + n_weights * 2));
    // A pair of head and token reads a row of states, a row of weights in fp32 and a bias.
    const std::int64_t pairs = tokens * kStored;
    std::int64_t more = 0;
    std::int64_t more_written = 4 * pairs;  // the flags
    if (mlp) {
      // The inner layer is a tiled product with biases, whose output is read by the outer layer.
      const kernels::KernelTraffic product =
          kernels::gemm_traffic({.m = tokens, .n = width, .k = kWidth}, 2, 4, true);
      more = product.loaded.count() + pairs * (width * (4 + 4) + 4) -
             (tokens * kWidth + n_weights) * 2;
      more_written += 4 * tokens * width;
    } else {
      const std::int64_t states = pairs * kWidth * 2 - tokens * kWidth * 2;
      const std::int64_t weights = pairs * kWidth * 4 - n_weights * 2;
      more = states + weights + 4 * pairs;
    }
    check_bytes(counted, op.bytes_read, more, op.bytes_written, more_written);
  }
}

TEST_CASE("graph: a prompt written in fp8 except scales that are launch arguments") {
  for (const std::int64_t prompt : {1, 31, 257}) {
    const std::int64_t batch = 2;
    const MethodGraph of{"fp8-e4m3", {}, 0, batch, prompt};
    const OpGraph graph =
        prefill_layer(of.in, 0, {.prompt = prompt, .kept = prompt, .score_rows = prompt});
    const Op& op = op_of(graph, "cache write");
    const std::int64_t rows = batch * kStored;
    const Counters counted = run([&](Device& device) {
      const std::int64_t n = rows * prompt * kHeadDim;
      const Buffer<kv::Half> from{device, "from", numbers<kv::Half>(n)};
      Buffer<std::uint64_t> codes{device, "codes", n / 8};
      const kernels::QuantShape shape{
          .rows = rows, .entries = prompt, .capacity = prompt, .head_dim = kHeadDim};
      for (int side = 0; side < 2; ++side) {
        quantise_fp8<kv::Half>({&device}, shape, 0.5F, in(from), out(codes));
      }
    });
    const double scales = op.bytes_written - static_cast<double>(2 * rows * prompt * kHeadDim);
    CHECK((scales == 0 || scales == static_cast<double>(8 * rows)));  // two in fp32 per head
    check_bytes(counted, op.bytes_read, 0, op.bytes_written - scales, 0);
  }
}

}  // namespace
}  // namespace kvsim::on_sim
