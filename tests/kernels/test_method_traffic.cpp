// What methods add to a step in the operator graph beside what the kernels of their merges, formats
// and scores move, byte by byte as the simulator counts them. Equal, or the difference has a name.

#include "kernels/compact.hpp"
#include "kernels/copies.hpp"
#include "kernels/eager_scores.hpp"
#include "kernels/merge.hpp"
#include "kernels/nearest_merge.hpp"
#include "kernels/prefill_scores.hpp"
#include "kernels/quantise.hpp"
#include "kernels/scores.hpp"
#include "tests/kernels/graph_of.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

constexpr std::int64_t kEntry = kHeadDim * 2;  // bytes of a key, or a value, of one stored head

/// A method in the graph of one layer.
struct MethodGraph {
  Llm model = graph_llm();
  std::shared_ptr<const Method> method;
  CostInput in;

  MethodGraph(const std::string& name, const Params& params, std::int64_t budget,
              std::int64_t batch, std::int64_t prompt = 1000)
      : method{make_method(
            {.name = name,
             .params = params,
             .budget = budget > 0 ? std::optional{Budget{.entries = budget}} : std::nullopt},
            prompt,
            {.recorded = Dtype::kFp16,
             .shape = {.n_heads = kHeads, .n_kv_heads = kStored, .head_dim = kHeadDim},
             .n_layers = 1})},
        in{.llm = &model,
           .method = method.get(),
           .stack = &find_stack("ideal"),
           .weight_dtype = Dtype::kFp16,
           .kv_dtype = Dtype::kFp16,
           .batch = batch} {}

  /// A step that attends over `entries` and, where `change` is no growth, lets one go.
  [[nodiscard]] OpGraph decode(std::int64_t entries, CacheChange change) const {
    const bool evicts = change != CacheChange::kGrow;
    return decode_layer(in, 0,
                        {.attended = entries,
                         .before = entries - 1,
                         .after = evicts ? entries - 1 : entries,
                         .change = change,
                         .evicts = evicts});
  }
};

void check_bytes(const Counters& counted, double read, std::int64_t more_read, double written,
                 std::int64_t more_written) {
  CHECK(static_cast<double>(counted.loaded_bytes) == read + static_cast<double>(more_read));
  CHECK(static_cast<double>(counted.stored_bytes) == written + static_cast<double>(more_written));
}

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
      // The kernel has the slot's key at hand from its search; it reads the victim's number and the
      // slot's count, which it writes. Each 16 bytes moved read both slots' numbers.
      const std::int64_t numbers_read = rows * (8 + 2 * kEntry);
      check_bytes(counted, op.bytes_read, numbers_read - rows * kEntry, op.bytes_written, 4 * rows);
      // Scores once and counts once a stored head; attention's kernel reads the counts' biases for
      // each query head (split_traffic).
      CHECK(op_of(graph, "method").bytes_read == static_cast<double>(rows * entries * (4 + 4)));
      CHECK(op_of(graph, "method").bytes_written == static_cast<double>(rows * entries * 4));
    }
  }
}

/// The search for the most similar key, then `merge(device, keys, values, victim, nearest,
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
/// What the search reads beside each key once: seven warps the victim's key again, all its number.
std::int64_t search_rereads(std::int64_t rows) { return rows * (7 * kEntry + 8 * 4); }

TEST_CASE("graph: D2O's search and merge, but for numbers and the victim's key again") {
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
      // Two entries' numbers, a cosine and a threshold a row; a nearest and a cosine, a threshold
      // and whether it joined are written.
      check_bytes(counted, op.bytes_read, search_rereads(rows) + 16 * rows, op.bytes_written,
                  16 * rows);
    }
  }
}

TEST_CASE("graph: KeepKV's search and merge, but for numbers and the victim's key again") {
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
    // Of a pair two numbers, two votes and two scores; a vote and a score are written, and the
    // search's nearest and cosine.
    check_bytes(counted, op.bytes_read, search_rereads(rows) + 24 * rows, op.bytes_written,
                16 * rows);
  }
}

TEST_CASE("graph: CaM's spread of a value, but for numbers and attention") {
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
            {.rows = rows, .most_takers = takers, .capacity = entries, .head_dim = kHeadDim},
            {.victim = in(victim),
             .takers = in(all),
             .attention = in(attention),
             .chance = in(chance),
             .expected = false,
             .values = out(values),
             .spread = out(spread)});
      });
      // Victim, its attention, a chance; takers' numbers twice and their attention, which the graph
      // counts with the score row.
      check_bytes(counted, op.bytes_read, rows * (12 + 12 * takers), op.bytes_written, 4 * rows);
    }
  }
}

TEST_CASE("graph: MorphKV's window of scores, but for its newest row and what it fuses to") {
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
    // The graph's profile has 2 bytes an element, the kernel's ring 4. The newest row is summed
    // where it is made, not read back; what is fused goes to memory.
    CHECK(method.bytes_read == static_cast<double>(ring_row / 2 * window));
    const std::int64_t wider = ring_row / 2;  // a row
    check_bytes(counted, row.bytes_read + method.bytes_read, wider * window - ring_row,
                method.bytes_written, wider + ring_row);

    // The gather: keys and values, but for positions; the graph's ring moves with them, which the
    // kernels leave where it is, its columns being named by slots.
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

TEST_CASE("graph: a cache of which each step fetches all over the host link, but for positions") {
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
  // The link's bytes: what is loaded of host memory, and stored to it. The other end of each copy
  // is device memory, which the graph counts nowhere; positions and slots are read with it.
  const Counters put_back = difference(counted, fetched);
  const std::int64_t pieces = 2 * rows * entries * (kEntry / 16);
  CHECK(static_cast<double>(fetched.loaded_bytes) ==
        op.bytes_read + static_cast<double>(4 * pieces));
  CHECK(static_cast<double>(put_back.stored_bytes) == op.bytes_written);
  CHECK(fetched.stored_bytes == 2 * rows * entries * kEntry);
  CHECK(put_back.loaded_bytes == 2 * rows * entries * kEntry + 8 * pieces);
}

struct Scratch {
  Buffer<kv::Half> q, out;
  Buffer<float> partial, highest, total;
  Scratch(Device& device, std::int64_t heads, std::int64_t splits)
      : q{device, "q", numbers<kv::Half>(heads * kHeadDim)},
        out{device, "out", heads * kHeadDim},
        partial{device, "partial", heads * splits * kHeadDim},
        highest{device, "partial_max", heads * splits},
        total{device, "partial_sum", heads * splits} {}
  [[nodiscard]] DecodeAttention<kv::Half> arguments() {
    return {.q = span_of(std::as_const(q)),
            .keys = {},
            .values = {},
            .bias = {},
            .out = span_of(out),
            .logits = {},
            .log_sum = {},
            .partial = span_of(partial),
            .partial_max = span_of(highest),
            .partial_sum = span_of(total)};
  }
};

/// What splitting adds to a fused attention: partial rows written and read, and each row of lanes
/// its queries again.
struct SplitAdds {
  std::int64_t read, written;
};
SplitAdds split_adds(const kernels::DecodeShape& s) {
  const std::int64_t partials = 4 * s.batch * kHeads * s.splits() * (kHeadDim + 2);
  const std::int64_t lane_rows = kernels::kDecodeThreads * kernels::kQuantPerLane / kHeadDim;
  const std::int64_t queries = s.batch * kHeads * kHeadDim * 2 * (s.splits() * lane_rows - 1);
  return {partials + queries, partials};
}

kernels::DecodeShape decode_shape(std::int64_t batch, std::int64_t entries) {
  return {.batch = batch,
          .n_heads = kHeads,
          .n_kv_heads = kStored,
          .head_dim = kHeadDim,
          .entries = entries,
          .capacity = entries,
          .entries_per_split = 128};
}

TEST_CASE("graph: attention over an fp8 cache, and what splitting adds to it") {
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
      Scratch scratch{device, batch * kHeads, shape.splits()};
      decode_attention_fp8<kv::Half>({&device}, shape, {in(codes), in(codes), 0.5F, 0.5F},
                                     scratch.arguments());
    });
    const SplitAdds adds = split_adds(shape);
    // Scales are arguments of the launch; the graph's are a head's own, two in fp32, where it says.
    const double scales =
        op.bytes_read - static_cast<double>(2 * batch * kStored * entries * kHeadDim +
                                            batch * kHeads * kHeadDim * 2);
    CHECK((scales == 0 || scales == static_cast<double>(batch * kStored * 8)));
    check_bytes(counted, op.bytes_read - scales, adds.read, op.bytes_written, adds.written);
  }
}

TEST_CASE("graph: attention over KIVI's cache, but for scales that lanes read alike") {
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
        Scratch scratch{device, batch * kHeads, shape.splits()};
        decode_attention_kivi<kv::Half, std::uint16_t>(
            {&device}, shape,
            {in(all), in(all), in(of_keys), in(of_keys), in(of_values), in(of_values)},
            {in(whole), in(whole), residual}, scratch.arguments());
      });
      const SplitAdds adds = split_adds(shape);
      check_bytes(counted, op.bytes_read,
                  adds.read + rows * kernels::kivi_scale_rereads(shape, residual), op.bytes_written,
                  adds.written);
      CHECK(static_cast<double>(counted.flops) == op.flops.count());
    }
  }
}

TEST_CASE("graph: KIVI packs a key and a value a step in the mean, but for keys' second read") {
  const std::int64_t residual = 32;
  const std::int64_t batch = 3;
  const MethodGraph of{"kivi-4", {{"residual", residual}}, 0, batch};
  const OpGraph graph = of.decode(257, CacheChange::kGrow);
  const Op& op = op_of(graph, "evict and merge");
  const std::int64_t rows = batch * kStored;
  // Between two flushes: as many values, one a step, and so many keys at once.
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

TEST_CASE("graph: the prompt's scores in eager steps, but for tiles and softmax's second read") {
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
      // The graph keeps one matrix, in fp32, and leaves out the few queries; the kernels have the
      // logits in 16 bits beside it, which softmax reads twice.
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

TEST_CASE("graph: the prompt's scores in two passes, but for what tiles read again") {
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
  // The graph has queries, keys and the rows' sums read once, the second pass alone: the first is
  // attention's own, which leaves the sums. The kernels make both: what they load beyond is the
  // first pass and the tiles' re-reads, all the formula's; the sums are written.
  const std::int64_t once =
      (shape.n_heads + shape.n_kv_heads) * prompt * kEntry + 4 * shape.n_heads * prompt;
  CHECK(op.bytes_read == static_cast<double>(once));
  const std::int64_t again = prefill_score_traffic(shape, 2).loaded.count() - once;
  CHECK(again > 0);
  check_bytes(counted, op.bytes_read, again, op.bytes_written, 4 * shape.n_heads * prompt);
}

}  // namespace
}  // namespace kvsim::on_sim
