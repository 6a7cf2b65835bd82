// A prompt packed by KIVI and layers paired by MiniCache: the operator graph compared exactly with
// the kernels' bytes counted by the simulator. They are equal, or the difference has a name.

#include "kernels/decode/decode_folded.hpp"
#include "kernels/merge/merge.hpp"
#include "kernels/merge/retention.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/select/compact.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "tests/kernels/graph_of.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

OpGraph prefill_of(const MethodGraph& of, std::int64_t prompt) {
  return prefill_layer(of.in, 0, {.prompt = prompt, .kept = prompt, .score_rows = prompt});
}

/// Entries [first, first + n) of each row of `entries`.
std::vector<std::int32_t> range_of(std::int64_t rows, std::int64_t first, std::int64_t n) {
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < rows * n; ++i) {
    positions.push_back(static_cast<std::int32_t>(first + i % n));
  }
  return positions;
}

TEST_CASE("graph: KIVI packs a prompt except keys' second read and the residual's positions") {
  for (const std::int64_t residual : {32, 64}) {
    for (const std::int64_t prompt : {1, 31, 64, 97, 257}) {
      INFO("residual ", residual, " prompt ", prompt);
      const std::int64_t batch = 2;
      const MethodGraph of{"kivi-2", {{"residual", residual}}, 0, batch, prompt};
      const OpGraph graph = prefill_of(of, prompt);
      // Packing is the write of the cache; the rest of the method moves no bytes.
      const Op& op = op_of(graph, "cache write");
      const Op& rest = op_of(graph, "method on the prompt");
      CHECK(rest.bytes_read + rest.bytes_written == 0);
      const std::int64_t rows = batch * kStored;
      const std::int64_t n_keys = kernels::packed_keys(prompt, residual);
      const std::int64_t n_values = kernels::packed_values(prompt, residual);
      const Counters counted = run([&](Device& device) {
        const std::int64_t n = rows * prompt * kHeadDim;
        const Buffer<kv::Half> from{device, "from", numbers<kv::Half>(n)};
        Buffer<std::uint16_t> codes{device, "codes", n / 8};
        Buffer<kv::Half> steps{device, "steps", n};
        Buffer<kv::Half> zeros{device, "zeros", n};
        Buffer<kv::Half> whole{device, "residual", rows * residual * kHeadDim};
        kernels::QuantShape shape{
            .rows = rows, .entries = n_keys, .capacity = prompt, .head_dim = kHeadDim};
        if (n_keys > 0) {
          kivi_quantise_keys<kv::Half, std::uint16_t>({&device}, shape, in(from), out(codes),
                                                      out(steps), out(zeros));
        }
        shape.entries = n_values;
        if (n_values > 0) {
          kivi_quantise_values<kv::Half, std::uint16_t>({&device}, shape, in(from), out(codes),
                                                        out(steps), out(zeros));
        }
        for (const std::int64_t packed : {n_keys, n_values}) {
          const std::int64_t kept = prompt - packed;
          if (kept == 0) continue;
          const Buffer<std::int32_t> positions{device, "positions", range_of(rows, packed, kept)};
          gather_entries<kv::Half>({&device},
                                   {.rows = rows,
                                    .entry_bytes = kEntry,
                                    .capacity_from = prompt,
                                    .capacity_to = residual,
                                    .kept = kept},
                                   in(from), in(positions), out(whole));
        }
      });
      const std::int64_t again = rows * n_keys * kEntry;
      const std::int64_t positions = rows * (2 * prompt - n_keys - n_values) * (kEntry / 16) * 4;
      check_bytes(counted, op.bytes_read, again + positions, op.bytes_written, 0);
    }
  }
}

struct Pair {
  const char* unit;
  std::int64_t rows_a_token, width;  // of one layer's keys, or values
};
constexpr Pair kPairs[] = {{"head", kStored, kHeadDim}, {"token", 1, kStored* kHeadDim}};

MethodGraph minicache(const Pair& pair, std::int64_t batch, std::int64_t prompt) {
  return MethodGraph{"minicache",
                     {{"first_layer", std::int64_t{0}},
                      {"unit", std::string{pair.unit}},
                      {"restore", std::string{"folded"}}},
                     0,
                     batch,
                     prompt,
                     2};
}

TEST_CASE("graph: MiniCache folds a prompt's layers except norms and the retained rows") {
  const std::int64_t batch = 2;
  const std::int64_t prompt = 65;
  for (const Pair& pair : kPairs) {
    INFO("a direction a ", std::string{pair.unit});
    const MethodGraph of = minicache(pair, batch, prompt);
    const OpGraph graph = prefill_of(of, prompt);
    const Op& op = op_of(graph, "method on the prompt");
    const std::int64_t merges = batch * prompt * pair.rows_a_token;
    const kernels::MergeShape merge{.merges = merges, .entries = 0, .head_dim = pair.width};
    const kernels::SelectShape tokens{
        .rows = batch * pair.rows_a_token, .entries = prompt, .stride = prompt};
    const std::int64_t room = 8;
    std::int64_t retained = 0;
    kernels::KernelTraffic adds{Bytes{0}, Bytes{0}, 0, 0};
    const Counters counted = run([&](Device& device) {
      const std::int64_t n = merges * pair.width;
      for (int side = 0; side < 2; ++side) {  // keys, values
        const Buffer<kv::Half> shallow{
            device, "shallow", stored<kv::Half>(draw(static_cast<std::uint64_t>(21 + side), n))};
        const Buffer<kv::Half> deep{
            device, "deep", stored<kv::Half>(draw(static_cast<std::uint64_t>(31 + side), n))};
        Buffer<kv::Half> direction{device, "direction", n};
        Buffer<float> of_shallow{device, "norms", merges};
        Buffer<float> of_deep{device, "other norms", merges};
        Buffer<float> distance{device, "distance", merges};
        slerp_rows<kv::Half>({&device}, merge, 0.6F, in(shallow), in(deep), out(direction),
                             out(of_shallow), out(of_deep), out(distance));
        // Retained rows: their positions, and their rows of both layers.
        Buffer<std::int32_t> kept{device, "kept", tokens.rows * room};
        Buffer<std::int32_t> at{device, "retained_at", merges};
        Buffer<std::int32_t> counts{device, "counts", tokens.rows};
        retain_rows({&device}, tokens,
                    {.distance = in(distance),
                     .gamma = 0.05F,
                     .near_end = false,
                     .room = room,
                     .kept = out(kept),
                     .retained_at = out(at),
                     .counts = out(counts)});
        std::int64_t of_side = 0;
        for (const std::int32_t n_kept : counts.download()) of_side += n_kept;
        retained += of_side;
        adds = adds + retain_traffic(tokens, of_side);
        const kernels::GatherShape rows{.rows = 1,
                                        .entry_bytes = 2 * pair.width,
                                        .capacity_from = merges,
                                        .capacity_to = of_side,
                                        .kept = of_side};
        const Buffer<std::int32_t> first{device, "rows", range_of(1, 0, of_side)};
        for (const auto* layer : {&shallow, &deep}) {
          Buffer<kv::Half> own{device, "retained", of_side * pair.width};
          gather_entries<kv::Half>({&device}, rows, in(*layer), in(first), out(own));
          adds = adds + gather_traffic(rows);
        }
      }
    });
    CHECK(retained > 0);
    // Per row and side two norms and a distance, in fp32.
    const std::int64_t norms = 2 * merges * 12;
    // Each of the pair's two layers has half of the bytes.
    check_bytes(counted, 2 * op.bytes_read, adds.loaded.count(), 2 * op.bytes_written,
                norms + adds.stored.count());
  }
}

TEST_CASE("graph: attention over MiniCache's directions except lanes' norms and splitting") {
  const std::int64_t batch = 2;
  for (const Pair& pair : kPairs) {
    for (const std::int64_t entries : {1, 31, 257}) {
      for (const std::int64_t every : {0, 7}) {  // no entry retained, and every seventh
        INFO("a direction a ", std::string{pair.unit}, ", entries ", entries, ", every ", every);
        const MethodGraph of = minicache(pair, batch, entries);
        const OpGraph graph = of.decode(entries, CacheChange::kGrow, 1);
        const Op& op = op_of(graph, "attention");
        const kernels::DecodeShape shape{.batch = batch,
                                         .n_heads = kHeads,
                                         .n_kv_heads = kStored,
                                         .head_dim = kHeadDim,
                                         .entries = entries,
                                         .capacity = entries,
                                         .entries_per_split = 128};
        const std::int64_t rows = batch * kStored * entries;
        std::vector<std::int32_t> at;
        for (std::int64_t i = 0; i < rows; ++i) {
          const bool whole = every > 0 && i % every == 0;
          at.push_back(whole ? static_cast<std::int32_t>(i / every) : -1);
        }
        const std::int64_t retained = 2 * (every > 0 ? kernels::ceil_div(rows, every) : 0);
        const Counters counted = run([&](Device& device) {
          const std::int64_t heads = batch * kHeads;
          const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(heads * kHeadDim)};
          const Buffer<kv::Half> directions{device, "directions",
                                            numbers<kv::Half>(rows * kHeadDim)};
          const Buffer<float> norms{device, "norms", draw(3, rows, 1, 2)};
          const Buffer<std::int32_t> retained_at{device, "retained_at", at};
          Buffer<kv::Half> to{device, "out", heads * kHeadDim};
          Buffer<float> partial{device, "partial", heads * shape.splits() * kHeadDim};
          Buffer<float> highest{device, "partial_max", heads * shape.splits()};
          Buffer<float> total{device, "partial_sum", heads * shape.splits()};
          const FoldedRows<kv::Half> folded{in(directions), in(norms), in(retained_at),
                                            in(directions)};
          decode_attention_folded<kv::Half>({&device}, shape, folded, folded,
                                            {.q = in(q),
                                             .keys = {},
                                             .values = {},
                                             .bias = {},
                                             .out = out(to),
                                             .logits = {},
                                             .log_sum = {},
                                             .partial = out(partial),
                                             .partial_max = out(highest),
                                             .partial_sum = out(total)});
        });
        // The graph reads one norm per row of keys and of values, with the width of an element.
        // Each lane reads an entry's retained_at and, if it is not retained, its norm in fp32.
        const std::int64_t of_graph = batch * entries * pair.rows_a_token * 2 * 2;
        const std::int64_t of_lanes = kEntry / 16 * 4 * (2 * 2 * rows - retained);
        const std::int64_t partials = 4 * batch * kHeads * shape.splits() * (kHeadDim + 2);
        const std::int64_t lane_rows = kernels::kDecodeThreads * 8 / kHeadDim;
        const std::int64_t queries = batch * kHeads * kEntry * (shape.splits() * lane_rows - 1);
        check_bytes(counted, op.bytes_read, of_lanes - of_graph + partials + queries,
                    op.bytes_written, partials);
      }
    }
  }
}

TEST_CASE("graph: MiniCache merges a step's rows of two layers except norms") {
  for (const Pair& pair : kPairs) {
    for (const std::int64_t batch : {1, 3}) {
      INFO("a direction a ", std::string{pair.unit}, ", batch ", batch);
      const MethodGraph of = minicache(pair, batch, 100);
      double read = 0;
      double written = 0;
      for (const std::int32_t layer : {0, 1}) {
        const OpGraph graph = of.decode(101, CacheChange::kGrow, layer);
        read += op_of(graph, "evict and merge").bytes_read;
        written += op_of(graph, "evict and merge").bytes_written;
        // The deeper layer's rows reach the cache as directions: its append is part of the merge.
        if (layer == 0) continue;
        read += op_of(graph, "cache append").bytes_read;
        written += op_of(graph, "cache append").bytes_written;
      }
      const std::int64_t merges = batch * pair.rows_a_token;
      const Counters counted = run([&](Device& device) {
        const std::int64_t n = merges * pair.width;
        const Buffer<kv::Half> parked{device, "parked", numbers<kv::Half>(n)};
        const Buffer<kv::Half> fresh{device, "fresh", stored<kv::Half>(draw(5, n))};
        Buffer<kv::Half> direction{device, "direction", n};
        Buffer<float> norm{device, "norm", merges};
        Buffer<float> other{device, "other norm", merges};
        for (int side = 0; side < 2; ++side) {
          slerp_rows<kv::Half>({&device}, {.merges = merges, .entries = 0, .head_dim = pair.width},
                               0.6F, in(parked), in(fresh), out(direction), out(norm), out(other));
        }
      });
      check_bytes(counted, read, 0, written, 2 * merges * 8);
    }
  }
}

}  // namespace
}  // namespace kvsim::on_sim
