// Bytes that methods add to a step by dropping and merging: the operator graph compared exactly
// with the kernels' bytes counted by the simulator. They are equal, or the difference has a name.

#include "kernels/basic/copies.hpp"
#include "kernels/merge/merge.hpp"
#include "kernels/merge/nearest_merge.hpp"
#include "kernels/score/scores.hpp"
#include "kernels/select/compact.hpp"
#include "tests/kernels/graph_of.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

std::vector<std::int32_t> repeated(std::int64_t n, std::int32_t value) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(n), value);
}

TEST_CASE("graph: ZeroMerge's merge into a residual slot and its ring's move") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t slots : {1, 4}) {
      INFO("batch ", batch, " slots ", slots);
      const std::int64_t entries = 65;
      const MethodGraph of{
          "zeromerge", {{"residual_slots", static_cast<double>(slots)}}, 64, batch};
      const OpGraph graph = of.decode(entries, CacheChange::kOverwrite);
      const Op& op = op_of(graph, "evict and merge");
      const std::int64_t rows = batch * kRows;
      const Counters counted = run([&](Device& device) {
        Buffer<kv::Half> keys{device, "keys", numbers<kv::Half>(rows * entries * kHeadDim)};
        Buffer<kv::Half> values{device, "values", numbers<kv::Half>(rows * entries * kHeadDim)};
        Buffer<std::int32_t> counts{device, "counts", repeated(rows * slots, 2)};
        const Buffer<std::int32_t> victim{device, "victim", repeated(rows, 40)};
        residual_merge<kv::Half>(
            {&device}, {.merges = rows, .slots = slots, .capacity = entries, .head_dim = kHeadDim},
            {in(victim), out(keys), out(values), out(counts)});
        std::vector<std::int64_t> oldest;
        std::vector<std::int64_t> gone;
        for (std::int64_t r = 0; r < rows; ++r) {
          oldest.push_back(r * entries + 50);
          gone.push_back(r * entries + 40);
        }
        const Buffer<std::int64_t> from{device, "from", oldest};
        const Buffer<std::int64_t> to{device, "to", gone};
        const kernels::MoveShape move{
            .moves = rows, .entry_bytes = kEntry, .slots = rows * entries};
        move_entries<kv::Half>({&device}, move, in(from), in(to), out(keys));
        move_entries<kv::Half>({&device}, move, in(from), in(to), out(values));
      });
      // The kernel has the slot's key from its search; it reads the victim's index and the slot's
      // count, which it writes. Each move of 16 bytes reads both slots' indices.
      const std::int64_t numbers_read = rows * (8 + 2 * kEntry);
      check_bytes(counted, op.bytes_read, numbers_read - rows * kEntry, op.bytes_written, 4 * rows);
      // Scores and counts once per stored head; attention's kernel reads the counts' biases for
      // each query head (split_traffic).
      CHECK(op_of(graph, "method").bytes_read == static_cast<double>(rows * entries * (4 + 4)));
      CHECK(op_of(graph, "method").bytes_written == static_cast<double>(rows * entries * 4));
    }
  }
}

/// Counts the search for the most similar key, then `merge(device, keys, values, victim, nearest,
/// cosine)`.
template <class Merge>
Counters search_and(std::int64_t rows, std::int64_t entries, Merge merge) {
  return run([&](Device& device) {
    Buffer<kv::Half> keys{device, "keys", numbers<kv::Half>(rows * entries * kHeadDim)};
    Buffer<kv::Half> values{device, "values", numbers<kv::Half>(rows * entries * kHeadDim)};
    const Buffer<std::int32_t> victim{device, "victim", repeated(rows, 7)};
    Buffer<std::int32_t> nearest{device, "nearest", rows};
    Buffer<float> cosine{device, "cosine", rows};
    nearest_keys<kv::Half>(
        {&device}, {.rows = rows, .entries = entries, .capacity = entries, .head_dim = kHeadDim},
        {in(keys), in(victim), out(nearest), out(cosine)});
    merge(device, keys, values, victim, nearest, cosine);
  });
}
/// Reads of the search in addition to one read per key: seven warps read the victim's key again,
/// all warps its index.
std::int64_t search_rereads(std::int64_t rows) { return rows * (7 * kEntry + 8 * 4); }

TEST_CASE("graph: D2O's search and merge except indices and the victim's key read again") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t entries : {31, 257}) {
      INFO("batch ", batch, " entries ", entries);
      const MethodGraph of{
          "select=accumulated+budget=uniform+merge=cosine_ema", {}, entries - 1, batch};
      const OpGraph graph = of.decode(entries, CacheChange::kOverwrite);
      const Op& op = op_of(graph, "evict and merge");
      const std::int64_t rows = batch * kRows;
      const Counters counted = search_and(
          rows, entries,
          [&](Device& device, auto& keys, auto& values, auto& victim, auto& nearest, auto& cosine) {
            Buffer<float> threshold{device, "threshold",
                                    std::vector<float>(static_cast<std::size_t>(rows), -1.0F)};
            Buffer<std::int32_t> joined{device, "joined", rows};
            cosine_merge_entries<kv::Half>(
                {&device},
                {.rows = rows, .entries = entries, .capacity = entries, .head_dim = kHeadDim},
                {.victim = in(victim),
                 .nearest = in(nearest),
                 .cosine = in(cosine),
                 .keep = 0.5F,
                 .threshold = out(threshold),
                 .keys = out(keys),
                 .values = out(values),
                 .joined = out(joined)});
          });
      // Per row two entry indices, a cosine and a threshold are read; a nearest index, a cosine, a
      // threshold and a joined flag are written.
      check_bytes(counted, op.bytes_read, search_rereads(rows) + 16 * rows, op.bytes_written,
                  16 * rows);
    }
  }
}

TEST_CASE("graph: KeepKV's search and merge except indices and the victim's key read again") {
  for (const std::int64_t batch : {1, 3}) {
    const std::int64_t entries = 129;
    const MethodGraph of{"select=logit_average+budget=uniform+merge=zip", {}, entries - 1, batch};
    const OpGraph graph = of.decode(entries, CacheChange::kOverwrite);
    const Op& op = op_of(graph, "evict and merge");
    const std::int64_t rows = batch * kRows;
    const Counters counted = search_and(
        rows, entries, [&](Device& device, auto& keys, auto& values, auto&, auto&, auto&) {
          std::vector<std::int32_t> kept;
          std::vector<std::int32_t> gone;
          for (std::int64_t r = 0; r < rows; ++r) {
            kept.push_back(static_cast<std::int32_t>(r * entries + 3));
            gone.push_back(static_cast<std::int32_t>(r * entries + 7));
          }
          const Buffer<std::int32_t> into{device, "into", kept};
          const Buffer<std::int32_t> from{device, "from", gone};
          Buffer<float> votes{device, "votes", draw(5, rows * entries, 1, 3)};
          Buffer<float> scores{device, "log_scores", draw(6, rows * entries, 1, 2)};
          zip_merge_pairs<kv::Half>(
              {&device}, {.merges = rows, .entries = rows * entries, .head_dim = kHeadDim},
              {in(into), in(from), out(keys), out(values), out(votes), out(scores)});
        });
    // Per pair two indices, two votes and two scores are read. A vote, a score, and the search's
    // nearest entry and cosine are written.
    check_bytes(counted, op.bytes_read, search_rereads(rows) + 24 * rows, op.bytes_written,
                16 * rows);
  }
}

TEST_CASE("graph: CaM's spread of a value except indices and attention") {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t takers : {1, 32}) {
      INFO("batch ", batch, " takers ", takers);
      const std::int64_t entries = 101;
      const MethodGraph of{"cam", {{"merge_window", takers}}, entries - 1, batch};
      const OpGraph graph = of.decode(entries, CacheChange::kOverwrite);
      const Op& op = op_of(graph, "evict and merge");
      const std::int64_t rows = batch * kRows;
      const Counters counted = run([&](Device& device) {
        Buffer<kv::Half> values{device, "values", numbers<kv::Half>(rows * entries * kHeadDim)};
        const Buffer<std::int32_t> victim{device, "victim", repeated(rows, 0)};
        std::vector<std::int32_t> next;
        for (std::int64_t i = 0; i < rows * takers; ++i) {
          next.push_back(static_cast<std::int32_t>(1 + i % takers));
        }
        const Buffer<std::int32_t> all{device, "takers", next};
        const Buffer<float> attention{device, "attention", draw(2, rows * entries, 0.5, 1)};
        const Buffer<float> chance{device, "chance", draw(3, rows, 0, 1e-3)};  // all merge
        Buffer<std::int32_t> spread{device, "spread", rows};
        spread_values<kv::Half>(
            {&device},
            {.rows = rows, .max_takers = takers, .capacity = entries, .head_dim = kHeadDim},
            {.victim = in(victim),
             .takers = in(all),
             .attention = in(attention),
             .chance = in(chance),
             .expected = false,
             .values = out(values),
             .spread = out(spread)});
      });
      // Victim, its attention, a random number; indices of the receiving entries twice and their
      // attention, which the graph counts with the score row.
      check_bytes(counted, op.bytes_read, rows * (12 + 12 * takers), op.bytes_written, 4 * rows);
    }
  }
}

TEST_CASE("graph: MorphKV's window of scores except its newest row and the fused row") {
  for (const std::int64_t batch : {1, 3}) {
    const std::int64_t entries = 129;
    const std::int64_t window = 8;
    const MethodGraph of{"morphkv", {{"window", window}}, entries - 1, batch};
    const OpGraph graph = of.decode(entries, CacheChange::kRewrite);
    const Op& row = op_of(graph, "score row");
    const Op& method = op_of(graph, "method");
    const std::int64_t rows = batch * kRows;
    const std::int64_t stride = (entries + 3) / 4 * 4;
    const std::int64_t ring_row = 4 * rows * entries;
    const Counters counted = run([&](Device& device) {
      const Buffer<float> p{device, "probabilities", draw(1, batch * kHeads * stride)};
      Buffer<float> ring{device, "ring", draw(2, rows * window * stride)};
      Buffer<float> fused{device, "fused", rows * stride};
      fuse_window({&device},
                  {.scores = {.rows = rows,
                              .group = kHeads / kStored,
                              .entries = entries,
                              .stride = stride},
                   .window = window},
                  3, false, in(p), out(ring), out(fused));
    });
    // The graph's profile has 2 bytes per element, the kernel's ring 4. The newest row is summed
    // where it is computed and not read back; the fused row goes to memory.
    CHECK(method.bytes_read == static_cast<double>(ring_row / 2 * window));
    const std::int64_t wider = ring_row / 2;  // per row
    check_bytes(counted, row.bytes_read + method.bytes_read, wider * window - ring_row,
                method.bytes_written, wider + ring_row);

    // The gather: keys and values, plus positions. The graph's ring moves with them; the kernels
    // leave it in place, because its columns are indexed by slot.
    const std::int64_t kept = entries - 1;
    const Counters gathered = run([&](Device& device) {
      const Buffer<kv::Half> cache{device, "cache", numbers<kv::Half>(rows * entries * kHeadDim)};
      std::vector<std::int32_t> all;
      for (std::int64_t i = 0; i < rows * kept; ++i) {
        all.push_back(static_cast<std::int32_t>(1 + i % kept));
      }
      const Buffer<std::int32_t> positions{device, "positions", all};
      Buffer<kv::Half> to{device, "to", rows * kept * kHeadDim};
      for (int part = 0; part < 2; ++part) {
        gather_entries<kv::Half>({&device},
                                 {.rows = rows,
                                  .entry_bytes = kEntry,
                                  .capacity_from = entries,
                                  .capacity_to = kept,
                                  .kept = kept},
                                 in(cache), in(positions), out(to));
      }
    });
    const Op& of_keys = op_of(graph, "gather keys");
    const Op& of_values = op_of(graph, "gather values");
    const auto columns = static_cast<double>(2 * rows * kept * window);
    check_bytes(gathered, of_keys.bytes_read + of_values.bytes_read - columns,
                2 * rows * kept * (kEntry / 16) * 4,
                of_keys.bytes_written + of_values.bytes_written - columns, 0);
  }
}

TEST_CASE("graph: a cache fetched completely over the host link in each step except positions") {
  const std::int64_t batch = 2;
  const std::int64_t entries = 65;
  const MethodGraph of{"morphkv", {{"window", std::int64_t{8}}, {"offload", true}}, entries, batch};
  const OpGraph graph = of.decode(entries, CacheChange::kGrow);
  const Op& op = op_of(graph, "host copy");
  const std::int64_t rows = batch * kRows;
  Counters fetched;
  const Counters counted = run([&](Device& device) {
    Buffer<kv::Half> host{device, "host", numbers<kv::Half>(rows * entries * kHeadDim)};
    std::vector<std::int32_t> all;
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < rows * entries; ++i) {
      all.push_back(static_cast<std::int32_t>(i % entries));
      slots.push_back(i);
    }
    const Buffer<std::int32_t> positions{device, "positions", all};
    const Buffer<std::int64_t> to_host{device, "slots", slots};
    Buffer<kv::Half> here{device, "here", rows * entries * kHeadDim};
    for (int part = 0; part < 2; ++part) {
      gather_entries<kv::Half>({&device},
                               {.rows = rows,
                                .entry_bytes = kEntry,
                                .capacity_from = entries,
                                .capacity_to = entries,
                                .kept = entries},
                               span_of(std::as_const(host)), in(positions), out(here));
    }
    fetched = device.counters();
    for (int part = 0; part < 2; ++part) {
      append_entries<kv::Half>(
          {&device}, {.rows = rows * entries, .entry_bytes = kEntry, .slots = rows * entries},
          span_of(std::as_const(here)), in(to_host), out(host));
    }
  });
  // The link's bytes: loads from host memory and stores to it. The other end of each copy is device
  // memory, which the graph does not count; positions and slots are read with it.
  const Counters put_back = difference(counted, fetched);
  const std::int64_t pieces = 2 * rows * entries * (kEntry / 16);
  CHECK(static_cast<double>(fetched.loaded_bytes) ==
        op.bytes_read + static_cast<double>(4 * pieces));
  CHECK(static_cast<double>(put_back.stored_bytes) == op.bytes_written);
  CHECK(fetched.stored_bytes == 2 * rows * entries * kEntry);
  CHECK(put_back.loaded_bytes == 2 * rows * entries * kEntry + 8 * pieces);
}

}  // namespace
}  // namespace kvsim::on_sim
