// The operator graph's bytes compared exactly with the kernels' bytes counted by the simulator.
// They are equal, or the difference has a name and is checked too.

#include "kernels/basic/copies.hpp"
#include "kernels/basic/rows.hpp"
#include "kernels/decode/decode_attention.hpp"
#include "kernels/score/scores.hpp"
#include "kernels/select/compact.hpp"
#include "kernels/select/select.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "tests/kernels/graph_of.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

/// One decode step of one layer that attends to `entries` entries under `stack`.
struct GraphOf {
  Llm model = graph_llm();
  FullMethod full;
  OpGraph graph;

  GraphOf(const char* stack, std::int64_t batch, std::int64_t entries)
      : graph{decode_layer({.llm = &model,
                            .method = &full,
                            .stack = &find_stack(stack),
                            .weight_dtype = Dtype::kFp16,
                            .kv_dtype = Dtype::kFp16,
                            .batch = batch},
                           0, {.attended = entries, .before = entries - 1, .after = entries})} {}

  [[nodiscard]] const Op& op(std::string_view name) const { return op_of(graph, name); }
};

Counters run_attention(std::int64_t batch, std::int64_t entries, std::int64_t page,
                       std::int64_t& splits) {
  return run([&](Device& device) {
    kernels::DecodeShape shape{.batch = batch,
                               .n_heads = kHeads,
                               .n_kv_heads = kStored,
                               .head_dim = kHeadDim,
                               .entries = entries,
                               .capacity = entries,
                               .entries_per_split = 128};
    std::vector<std::int32_t> table;
    std::int64_t held = batch * kStored * entries;
    if (page > 0) {
      shape.page = page;
      shape.pages_per_sequence = kernels::ceil_div(entries, page);
      for (std::int64_t i = 0; i < batch * shape.pages_per_sequence; ++i) {
        table.push_back(static_cast<std::int32_t>(i));
      }
      held = std::ssize(table) * kStored * page;
    }
    splits = shape.splits();
    const std::int64_t rows = batch * kHeads;
    const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(rows * kHeadDim)};
    const Buffer<kv::Half> keys{device, "keys", numbers<kv::Half>(held * kHeadDim)};
    const Buffer<std::int32_t> pages{device, "pages", table};
    Buffer<kv::Half> to{device, "out", rows * kHeadDim};
    Buffer<float> partial{device, "partial", rows * splits * kHeadDim};
    Buffer<float> highest{device, "partial_max", rows * splits};
    Buffer<float> total{device, "partial_sum", rows * splits};
    decode_attention<kv::Half>({&device}, shape,
                               {.q = in(q),
                                .keys = in(keys),
                                .values = in(keys),
                                .bias = {},
                                .out = out(to),
                                .logits = {},
                                .log_sum = {},
                                .partial = out(partial),
                                .partial_max = out(highest),
                                .partial_sum = out(total),
                                .pages = in(pages)});
  });
}

TEST_CASE("graph: fused decode attention with bytes added by splitting and paging") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t entries : {1, 31, 257}) {
      for (const std::int64_t page : {0, 16}) {
        INFO("batch ", batch, " entries ", entries, " page ", page);
        const GraphOf of{"ideal", batch, entries};
        const Op& op = of.op("attention");
        std::int64_t splits = 0;
        const Counters counted = run_attention(batch, entries, page, splits);
        // Each split writes a partial row in fp32 with a maximum and a sum, which the second kernel
        // reads.
        const std::int64_t partials = 4 * batch * kHeads * splits * (kHeadDim + 2);
        // Each of the 128 threads of a split loads its 16 bytes of each of its queries; the graph
        // counts a query once.
        const std::int64_t groups = batch * kStored * splits;
        const std::int64_t queries =
            groups * 128 * 16 * (kHeads / kStored) - batch * kHeads * kHeadDim * 2;
        const std::int64_t table =
            page > 0 ? 4 * batch * kStored * kernels::ceil_div(entries, page) : 0;
        CHECK(static_cast<double>(counted.loaded_bytes) ==
              op.bytes_read + static_cast<double>(partials + queries + table));
        CHECK(static_cast<double>(counted.stored_bytes) ==
              op.bytes_written + static_cast<double>(partials));
        CHECK(static_cast<double>(counted.flops) == op.flops.count());
      }
    }
  }
}

TEST_CASE("graph: a cache that grows by concatenation is copied, byte for byte") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t entries : {2, 31, 257}) {
      INFO("batch ", batch, " entries ", entries);
      const GraphOf of{"hf-flash", batch, entries};
      std::int32_t parts = 0;
      for (OpIndex i = 0; i < of.graph.size(); ++i) {
        const Op& op = of.graph.op(i);
        if (op.family != OpFamily::kConcatCopy) continue;
        ++parts;
        const kernels::ConcatShape shape{
            .rows = batch * kRows, .entry_bytes = kHeadDim * 2, .before = entries - 1};
        const Counters counted = run([&](Device& device) {
          const Buffer<kv::Half> old{device, "old",
                                     numbers<kv::Half>(shape.rows * shape.before * kHeadDim)};
          const Buffer<kv::Half> fresh{device, "fresh", numbers<kv::Half>(shape.rows * kHeadDim)};
          Buffer<kv::Half> longer{device, "longer", shape.rows * entries * kHeadDim};
          concat_entries<kv::Half>({&device}, shape, in(old), in(fresh), out(longer));
        });
        CHECK(static_cast<double>(counted.loaded_bytes) == op.bytes_read);
        CHECK(static_cast<double>(counted.stored_bytes) == op.bytes_written);
        CHECK(counted.launches == op.launches);
      }
      CHECK(parts == 2);  // keys and values
    }
  }
}

TEST_CASE("graph: an entry appended in place except slot indices") {
  for (const std::int64_t batch : {1, 3, 16}) {
    INFO("batch ", batch);
    const GraphOf of{"ideal", batch, 100};
    const Op& op = of.op("cache append");
    const kernels::AppendShape shape{
        .rows = batch * kRows, .entry_bytes = kHeadDim * 2, .slots = batch * kRows * 100};
    const Counters counted = run([&](Device& device) {
      const Buffer<kv::Half> fresh{device, "fresh", numbers<kv::Half>(shape.rows * kHeadDim)};
      std::vector<std::int64_t> at;
      for (std::int64_t r = 0; r < shape.rows; ++r) at.push_back(100 * r + 99);
      const Buffer<std::int64_t> slots{device, "slots", at};
      Buffer<kv::Half> keys{device, "keys", shape.slots * kHeadDim};
      Buffer<kv::Half> values{device, "values", shape.slots * kHeadDim};
      append_entries<kv::Half>({&device}, shape, in(fresh), in(slots), out(keys));
      append_entries<kv::Half>({&device}, shape, in(fresh), in(slots), out(values));
    });
    // A thread reads the slot's 8 bytes for its 16 bytes of the entry.
    const std::int64_t slots = 2 * shape.rows * (kHeadDim * 2 / 16) * 8;
    CHECK(static_cast<double>(counted.loaded_bytes) == op.bytes_read + static_cast<double>(slots));
    CHECK(static_cast<double>(counted.stored_bytes) == op.bytes_written);
  }
}

TEST_CASE("graph: compaction of a prompt's cache except positions and the passes of selection") {
  for (const std::int64_t batch : {1, 3}) {
    const std::int64_t prompt = 257;
    const std::int64_t kept = 31;
    const Llm model = graph_llm();
    const FullMethod full;
    const OpGraph graph = compress_layer({.llm = &model,
                                          .method = &full,
                                          .stack = &find_stack("ideal"),
                                          .weight_dtype = Dtype::kFp16,
                                          .kv_dtype = Dtype::kFp16,
                                          .batch = batch},
                                         0, prompt, kept);
    double read = 0;
    double written = 0;
    for (OpIndex i = 0; i < graph.size(); ++i) {
      read += graph.op(i).bytes_read;
      written += graph.op(i).bytes_written;
    }
    const std::int64_t rows = batch * kRows;
    const kernels::SelectShape select{.rows = rows, .entries = prompt, .stride = 260, .keep = kept};
    const kernels::GatherShape gather{.rows = rows,
                                      .entry_bytes = kHeadDim * 2,
                                      .capacity_from = prompt,
                                      .capacity_to = kept,
                                      .kept = kept};
    const Counters counted = run([&](Device& device) {
      const Buffer<float> scores{device, "scores", draw(3, rows * select.stride)};
      const Buffer<kv::Half> keys{device, "keys", numbers<kv::Half>(rows * prompt * kHeadDim)};
      Buffer<std::int32_t> positions{device, "positions", rows * kept};
      Buffer<kv::Half> to_keys{device, "kept keys", rows * kept * kHeadDim};
      Buffer<kv::Half> to_values{device, "kept values", rows * kept * kHeadDim};
      top_rows({&device}, select, in(scores), out(positions));
      gather_entries<kv::Half>({&device}, gather, in(keys), in(positions), out(to_keys));
      gather_entries<kv::Half>({&device}, gather, in(keys), in(positions), out(to_values));
    });
    // The graph reads the scores once; the radix selection reads them in five passes. It writes
    // positions, which each move of 16 bytes reads again.
    const std::int64_t passes = 4 * 4 * rows * prompt;
    const std::int64_t positions = 2 * rows * kept * (kHeadDim * 2 / 16) * 4;
    CHECK(static_cast<double>(counted.loaded_bytes) ==
          read + static_cast<double>(passes + positions));
    CHECK(static_cast<double>(counted.stored_bytes) ==
          written + static_cast<double>(4 * rows * kept));
  }
}

TEST_CASE("graph: H2O's score row and update except the pass from logits to probabilities") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t entries : {64, 257}) {
      INFO("batch ", batch, " entries ", entries);
      const Llm model = graph_llm();
      const auto method =
          make_method({.name = "h2o", .params = {}, .budget = Budget{.entries = entries}}, 1000,
                      {.recorded = Dtype::kFp16,
                       .shape = {.n_heads = kHeads, .n_kv_heads = kStored, .head_dim = kHeadDim}});
      const OpGraph graph =
          decode_layer({.llm = &model,
                        .method = method.get(),
                        .stack = &find_stack("ideal"),
                        .weight_dtype = Dtype::kFp16,
                        .kv_dtype = Dtype::kFp16,
                        .batch = batch},
                       0, {.attended = entries, .before = entries - 1, .after = entries});
      const Op* row = nullptr;
      const Op* update = nullptr;
      for (OpIndex i = 0; i < graph.size(); ++i) {
        if (graph.op(i).name == "score row") row = &graph.op(i);
        if (graph.op(i).name == "method") update = &graph.op(i);
      }
      REQUIRE(row != nullptr);
      REQUIRE(update != nullptr);
      const std::int64_t stride = (entries + 3) / 4 * 4;
      const std::int64_t query_rows = batch * kHeads;
      Counters normalised;
      const Counters counted = run([&](Device& device) {
        Buffer<float> rows{device, "rows", draw(5, query_rows * stride)};
        const Buffer<float> sums{device, "log_sum", draw(6, query_rows)};
        Buffer<float> scores{device, "scores", draw(7, batch * kRows * stride)};
        normalise_rows({&device}, query_rows, entries, stride, in(sums), out(rows));
        normalised = device.counters();
        update_scores({&device},
                      {.rows = batch * kRows,
                       .group = kHeads / kStored,
                       .entries = entries,
                       .stride = stride},
                      1.0F, in(rows), out(scores));
      });
      // The graph's write of the row belongs to attention and is of logits: 4 bytes per query head
      // and entry (decode_traffic with logits). Its read belongs to the update.
      CHECK(row->bytes_written == static_cast<double>(4 * query_rows * entries));
      const Counters of_update = difference(counted, normalised);
      CHECK(static_cast<double>(of_update.loaded_bytes) == row->bytes_read + update->bytes_read);
      CHECK(static_cast<double>(of_update.stored_bytes) == update->bytes_written);
      // Not in the graph: the pass from logits to probabilities, which reads and writes the row
      // once more, and in which each thread reads its row's sum.
      const std::int64_t threads = entries / 4 + entries % 4;
      CHECK(normalised.loaded_bytes == 4 * query_rows * (entries + threads));
      CHECK(normalised.stored_bytes == 4 * query_rows * entries);
    }
  }
}

TEST_CASE("graph: eager softmax in fp32 except its second read") {
  for (const std::int64_t entries : {2, 31, 257}) {
    const GraphOf of{"hf-eager", 2, entries};
    const Op& op = of.op("softmax");
    const kernels::RowsShape shape{.rows = 2 * kHeads, .width = entries};
    const Counters counted = run([&](Device& device) {
      const Buffer<kv::Half> logits{device, "logits", numbers<kv::Half>(shape.rows * entries)};
      Buffer<float> p{device, "probabilities", shape.rows * entries};
      softmax_rows<kv::Half>({&device}, shape, in(logits), out(p));
    });
    const std::int64_t again = 2 * shape.rows * entries;  // maxima and sums are a separate pass
    CHECK(static_cast<double>(counted.loaded_bytes) == op.bytes_read + static_cast<double>(again));
    CHECK(static_cast<double>(counted.stored_bytes) == op.bytes_written);
  }
}

TEST_CASE("graph: a norm except its weights") {
  for (const std::int64_t batch : {1, 3}) {
    const GraphOf of{"ideal", batch, 100};
    const Op* norm = nullptr;
    for (OpIndex i = 0; i < of.graph.size(); ++i) {
      if (of.graph.op(i).family == OpFamily::kNorm) norm = &of.graph.op(i);
    }
    REQUIRE(norm != nullptr);
    const kernels::RowsShape shape{.rows = batch, .width = kWidth};
    const Counters counted = run([&](Device& device) {
      const Buffer<kv::Half> x{device, "x", numbers<kv::Half>(batch * kWidth)};
      const Buffer<kv::Half> weight{device, "weight", numbers<kv::Half>(kWidth)};
      Buffer<kv::Half> y{device, "y", batch * kWidth};
      rms_norm_rows<kv::Half>({&device}, shape, 1e-5F, in(x), in(weight), out(y));
    });
    const double weights = static_cast<double>(batch * kWidth * 2);  // each row reads them
    CHECK(static_cast<double>(counted.loaded_bytes) == norm->bytes_read + weights);
    CHECK(static_cast<double>(counted.stored_bytes) == norm->bytes_written);
  }
}

}  // namespace
}  // namespace kvsim::on_sim
