// Attention over quantised caches, their packing, and the prompt's scores: the operator graph
// compared exactly with the kernels' bytes counted by the simulator. They are equal, or the
// difference has a name.

#include "kernels/quantise/decode_quantised.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/score/eager_scores.hpp"
#include "kernels/score/prefill_scores.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "tests/kernels/attention_run.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

TEST_CASE("graph: attention over an fp8 cache with bytes added by splitting") {
  for (const std::int64_t entries : {1, 257}) {
    const std::int64_t batch = 2;
    const MethodGraph of{"fp8-e4m3", {}, 0, batch};
    const OpGraph graph = of.decode(entries, CacheChange::kGrow);
    const Op& op = op_of(graph, "attention");
    const auto shape = decode_shape(batch, entries);
    const std::int64_t words = batch * kStored * entries * kHeadDim / 8;
    const Counters counted = run([&](Device& device) {
      const Buffer<std::uint64_t> codes{
          device, "codes",
          std::vector<std::uint64_t>(static_cast<std::size_t>(words), 0x3031323334353637U)};
      const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(batch * kHeads * kHeadDim)};
      AttentionMemory memory{device, shape};
      decode_attention_fp8<kv::Half>({&device}, shape, {in(codes), in(codes), 0.5F, 0.5F},
                                     memory.arguments(in(q)));
    });
    const SplitAdds adds = split_adds(shape);
    // Scales are arguments of the launch; the graph has two per head in fp32, if it counts them.
    const double scales =
        op.bytes_read - static_cast<double>(2 * batch * kStored * entries * kHeadDim +
                                            batch * kHeads * kHeadDim * 2);
    CHECK((scales == 0 || scales == static_cast<double>(batch * kStored * 8)));
    check_bytes(counted, op.bytes_read - scales, adds.read, op.bytes_written, adds.written);
  }
}

TEST_CASE("graph: attention over KIVI's cache except scales that every lane reads") {
  for (const std::int64_t residual : {32, 64}) {
    for (const std::int64_t entries : {1, 31, 64, 257}) {
      INFO("residual ", residual, " entries ", entries);
      const std::int64_t batch = 2;
      const MethodGraph of{"kivi-2", {{"residual", residual}}, 0, batch};
      const OpGraph graph = of.decode(entries, CacheChange::kGrow);
      const Op& op = op_of(graph, "attention");
      const auto shape = decode_shape(batch, entries);
      const std::int64_t rows = batch * kStored;
      const std::int64_t codes = rows * entries * kHeadDim / 8;
      const std::int64_t steps = rows * kernels::ceil_div(entries, 32) * kHeadDim;
      const Counters counted = run([&](Device& device) {
        const Buffer<std::uint16_t> all{
            device, "codes", std::vector<std::uint16_t>(static_cast<std::size_t>(codes), 0x1B1B)};
        const Buffer<kv::Half> of_keys{device, "key steps", numbers<kv::Half>(steps)};
        const Buffer<kv::Half> of_values{device, "value steps",
                                         numbers<kv::Half>(rows * entries * kHeadDim / 32)};
        const Buffer<kv::Half> whole{device, "residual",
                                     numbers<kv::Half>(rows * residual * kHeadDim)};
        const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(batch * kHeads * kHeadDim)};
        AttentionMemory memory{device, shape};
        decode_attention_kivi<kv::Half, std::uint16_t>(
            {&device}, shape,
            {in(all), in(all), in(of_keys), in(of_keys), in(of_values), in(of_values)},
            {in(whole), in(whole), residual}, memory.arguments(in(q)));
      });
      const SplitAdds adds = split_adds(shape);
      check_bytes(counted, op.bytes_read,
                  adds.read + rows * kernels::kivi_scale_rereads(shape, residual), op.bytes_written,
                  adds.written);
      CHECK(static_cast<double>(counted.flops) == op.flops.count());
    }
  }
}

TEST_CASE("graph: KIVI packs a key and a value per step on average except keys' second read") {
  const std::int64_t residual = 32;
  const std::int64_t batch = 3;
  const MethodGraph of{"kivi-4", {{"residual", residual}}, 0, batch};
  const OpGraph graph = of.decode(257, CacheChange::kGrow);
  const Op& op = op_of(graph, "evict and merge");
  const std::int64_t rows = batch * kStored;
  // Between two flushes, one value is packed per step; a flush packs the same number of keys at
  // once.
  const Counters counted = run([&](Device& device) {
    const Buffer<kv::Half> from{device, "from", numbers<kv::Half>(rows * residual * kHeadDim)};
    Buffer<std::uint32_t> codes{device, "codes", rows * residual * kHeadDim / 8};
    Buffer<kv::Half> steps{device, "steps", rows * residual * kHeadDim};
    Buffer<kv::Half> zeros{device, "zeros", rows * residual * kHeadDim};
    kernels::QuantShape shape{
        .rows = rows, .entries = residual, .capacity = residual, .head_dim = kHeadDim};
    kivi_quantise_keys<kv::Half, std::uint32_t>({&device}, shape, in(from), out(codes), out(steps),
                                                out(zeros));
    shape.entries = 1;
    for (std::int64_t step = 0; step < residual; ++step) {
      kivi_quantise_values<kv::Half, std::uint32_t>({&device}, shape, in(from), out(codes),
                                                    out(steps), out(zeros));
    }
  });
  const auto steps = static_cast<double>(residual);
  check_bytes(counted, steps * op.bytes_read, rows * residual * kEntry, steps * op.bytes_written,
              0);
}

TEST_CASE("graph: the prompt's scores in eager steps except tiles and softmax's second read") {
  for (const char* name : {"h2o", "snapkv"}) {
    const bool window = std::string_view{name} == "snapkv";
    const std::int64_t batch = 2;
    const std::int64_t prompt = 129;
    const MethodGraph of{name, {}, 40, batch, prompt};
    const MethodNeeds needs = of.method->needs();
    REQUIRE(needs.prompt_scores ==
            (window ? PromptScoreClass::kLastWindow : PromptScoreClass::kColumnSums));
    const OpGraph graph =
        prefill_layer(of.in, 0, {.prompt = prompt, .kept = 40, .score_rows = prompt});
    const Op& op = op_of(graph, window ? "window scores" : "attention scores");
    const std::int64_t query_rows =
        window ? std::min<std::int64_t>(needs.prompt_window, prompt) : prompt;
    const kernels::EagerScoreShape shape{.n_heads = batch * kHeads,
                                         .n_kv_heads = batch * kStored,
                                         .head_dim = kHeadDim,
                                         .tokens = prompt,
                                         .first = prompt - query_rows,
                                         .rows = query_rows};
    const std::int64_t n = shape.n_heads * shape.rows * shape.tokens;
    const Counters counted = run([&](Device& device) {
      const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(shape.n_heads * prompt * kHeadDim)};
      const Buffer<kv::Half> keys{device, "keys",
                                  numbers<kv::Half>(shape.n_kv_heads * prompt * kHeadDim)};
      Buffer<kv::Half> logits{device, "logits", n};
      Buffer<float> p{device, "probabilities", n};
      Buffer<float> mass{device, "mass", shape.n_kv_heads * prompt};
      eager_scores<kv::Half>({&device}, shape,
                             {.q = in(q),
                              .keys = in(keys),
                              .scale = 0.125F,
                              .decay = 1,
                              .logits = out(logits),
                              .probabilities = out(p),
                              .mass = out(mass)});
    });
    const std::int64_t keys = shape.n_kv_heads * prompt * kEntry;
    const std::int64_t queries = shape.n_heads * prompt * kEntry;
    const std::int64_t tiles = score_matrix_traffic(shape, 2).loaded.count();
    if (window) {
      // The graph has one matrix, in fp32, and omits the few queries; the kernels also have the
      // logits in 16 bits, which softmax reads twice.
      check_bytes(counted, op.bytes_read, tiles - keys + 2 * 2 * n, op.bytes_written, 2 * n);
      CHECK(counted.launches == op.launches);
    } else {
      // Copies of the matrix beyond the first are casts that the kernels do not make.
      REQUIRE(needs.fp32_softmax);
      const std::int64_t casts = 2 * n * (needs.score_copies - 1);
      check_bytes(counted, op.bytes_read, tiles - keys - queries + 2 * n - casts, op.bytes_written,
                  -casts);
    }
  }
}

TEST_CASE("graph: the prompt's scores in two passes except repeated reads of tiles") {
  const std::int64_t batch = 2;
  const std::int64_t prompt = 129;
  const MethodGraph of{"h2o", {{"score_exec", std::string{"fused_two_pass"}}}, 40, batch, prompt};
  const OpGraph graph =
      prefill_layer(of.in, 0, {.prompt = prompt, .kept = 40, .score_rows = prompt});
  const Op& op = op_of(graph, "column sums");
  const kernels::PrefillScoreShape shape{.n_heads = batch * kHeads,
                                         .n_kv_heads = batch * kStored,
                                         .head_dim = kHeadDim,
                                         .tokens = prompt,
                                         .first = 0};
  const Counters counted = run([&](Device& device) {
    const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(shape.n_heads * prompt * kHeadDim)};
    const Buffer<kv::Half> keys{device, "keys",
                                numbers<kv::Half>(shape.n_kv_heads * prompt * kHeadDim)};
    Buffer<float> sums{device, "log_sum", shape.n_heads * prompt};
    Buffer<float> mass{device, "mass", shape.n_kv_heads * prompt};
    prefill_scores<kv::Half>({&device}, shape,
                             {.q = in(q),
                              .keys = in(keys),
                              .scale = 0.125F,
                              .decay = 1,
                              .log_sum = out(sums),
                              .mass = out(mass)});
  });
  // The graph reads queries, keys and the rows' sums once, in the second pass only: the first pass
  // belongs to attention, which leaves the sums. The kernels run both passes: their additional
  // loads are the first pass and the repeated reads of tiles, all in the formula; the sums are
  // written.
  const std::int64_t once =
      (shape.n_heads + shape.n_kv_heads) * prompt * kEntry + 4 * shape.n_heads * prompt;
  CHECK(op.bytes_read == static_cast<double>(once));
  const std::int64_t again = prefill_score_traffic(shape, 2).loaded.count() - once;
  CHECK(again > 0);
  check_bytes(counted, op.bytes_read, again, op.bytes_written, 4 * shape.n_heads * prompt);
}

}  // namespace
}  // namespace kvsim::on_sim
