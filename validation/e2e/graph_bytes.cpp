#include "validation/e2e/graph_bytes.hpp"

#include "kernels/decode/decode_steps.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/step.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

void GraphBytes::differ(const char* op, const char* what, std::int64_t loaded,
                        std::int64_t stored) {
  NamedDifference& d = ops_[op].differences[what];
  d.what = what;
  d.loaded += loaded;
  d.stored += stored;
}
void GraphBytes::differ(const char* op, const char* what, const kernels::KernelTraffic& all) {
  differ(op, what, all.loaded.count(), all.stored.count());
}

/// The simulator's plain products read an input once per output (tile); library kernels read it
/// once.
void GraphBytes::add_product(const char* name, std::int64_t n, std::int64_t k) {
  const std::int64_t m = plan_.loop.batch;
  const std::int64_t bytes = bytes_of(1, plan_.dtype).count();
  const kernels::GemmShape shape{.m = m, .n = n, .k = k};
  const kernels::KernelTraffic traffic =
      m == 1 ? gemv_traffic(shape, bytes, bytes, false) : gemm_traffic(shape, bytes, bytes, false);
  differ(name, "inputs read again by the plain product",
         traffic.loaded.count() - (m + n) * k * bytes, traffic.stored.count() - m * n * bytes);
}

/// One step of a layer that attends to `entries` entries.
void GraphBytes::add_layer_differences(std::int64_t entries) {
  const kernels::LoopSpec& s = plan_.loop;
  const kernels::LoopModel& m = s.model;
  const std::int64_t bytes = bytes_of(1, plan_.dtype).count();
  const std::int64_t rows = s.cache_rows();
  const std::int64_t row = m.head_dim * bytes;
  const std::int64_t query_rows = s.batch * m.n_heads;
  for (const char* norm : {"input norm", "feed-forward norm"}) {
    differ(norm, "the norm's weights", s.batch * m.d_model * bytes, 0);
  }
  add_product("query, key and value projection", s.qkv_width(), m.d_model);
  add_product("output projection", m.d_model, m.n_heads * m.head_dim);
  add_product("gate and up projection", 2 * m.d_ff, m.d_model);
  add_product("down projection", m.d_model, m.d_ff);
  differ("rope", "values, copied", rows * row, rows * row);
  differ("rope", "cosines and sines", 4 * (query_rows + rows) * m.head_dim, 0);
  differ("cache append", "slots' numbers", 2 * rows * (row / 16) * 8, 0);

  const std::int64_t splits = kernels::ceil_div(entries, s.entries_per_split);
  const std::int64_t partials = 4 * query_rows * splits * (m.head_dim + 2);
  const std::int64_t lane_rows = kernels::kDecodeThreads * (16 / bytes) / m.head_dim;
  differ("attention", "partial results of splits", partials, partials);
  differ("attention", "queries read again", query_rows * (splits * lane_rows - 1) * row, 0);
  if (s.slots > 0) {
    differ("attention", "biases of entries", 4 * query_rows * entries, 0);
    differ("count bias", "all of it", kernels::count_bias_traffic(rows, s.slots));
    differ("method", "counts, which the bias's kernel reads", -4 * rows * entries, 0);
    differ("evict and merge", "the slot's key, kept from the search", -rows * row, 0);
    differ("evict and merge", "victims and counts", 8 * rows, 4 * rows);
  }
  if (!s.scores()) return;
  differ("attention", "sums of exponentials", 0, 4 * query_rows);
  differ("score row", "logits become probabilities",
         kernels::normalise_traffic(query_rows, entries));
  differ("choose victims", "all of it", kernels::choose_victims_traffic(rows, entries, s.slots));
}

void GraphBytes::add_step(std::int64_t step) {
  const kernels::LoopSpec& s = plan_.loop;
  const CostInput in{.llm = &plan_.llm,
                     .method = plan_.method.get(),
                     .stack = &find_stack("kvsim-kernels"),
                     .weight_dtype = plan_.dtype,
                     .kv_dtype = plan_.dtype,
                     .batch = s.batch,
                     .prompt = s.prompt};
  const auto add = [&](const OpGraph& graph) {
    for (OpIndex i = 0; i < graph.size(); ++i) {
      const Op& op = graph.op(i);
      const std::string name{op.name};
      if (name == "score row") {  // written by attention, read by the update
        ops_["attention"].written += op.bytes_written;
        ops_["method"].read += op.bytes_read;
        continue;
      }
      ops_[name].read += op.bytes_read;
      ops_[name].written += op.bytes_written;
    }
  };
  const std::int64_t bytes = bytes_of(1, plan_.dtype).count();
  add(embed_tokens(in, 1));
  differ("embedding", "tokens' numbers", s.batch * s.model.d_model * bytes / 16 * 4, 0);
  for (std::int64_t layer = 0; layer < s.model.n_layers; ++layer) {
    const auto l = static_cast<std::int32_t>(layer);
    const std::int64_t tokens = s.prompt + step + 1;
    const DecodeState moment = decode_moment(in, l, s.prompt, tokens, s.held(step));
    add(decode_layer(in, l, moment));
    add_layer_differences(moment.attended);
    if (s.scores() || layer == 0) {
      differ("open slots", "all of it",
             kernels::open_slots_traffic({.rows = s.cache_rows(), .capacity = s.capacity()},
                                         s.scores() && step > 0, s.scores()));
    }
  }
  add(output_logits(in, 1));
  differ("final norm", "the norm's weights", s.batch * s.model.d_model * bytes, 0);
  add_product("logits", s.model.vocab, s.model.d_model);
}

std::vector<CheckedOp> GraphBytes::compare(const std::vector<kernels::LoopOp>& ops) {
  std::vector<CheckedOp> out;
  auto left = ops_;
  for (const kernels::LoopOp& op : ops) {
    CheckedOp one{.name = op.name,
                  .runs = op.runs,
                  .loaded = op.counted.loaded.count(),
                  .stored = op.counted.stored.count(),
                  .formula_loaded = op.model.loaded.count(),
                  .formula_stored = op.model.stored.count(),
                  .graph_read = 0,
                  .graph_written = 0,
                  .differences = {}};
    if (const auto found = left.find(op.name); found != left.end()) {
      one.graph_read = found->second.read;
      one.graph_written = found->second.written;
      for (auto& [what, d] : found->second.differences) one.differences.push_back(d);
      left.erase(found);
    }
    out.push_back(std::move(one));
  }
  if (const auto found = left.find("sampling"); found != left.end()) {
    const OfOp& of = found->second;
    CheckedOp one;
    one.name = found->first;
    one.graph_read = of.read;
    one.graph_written = of.written;
    one.differences.push_back({.what = "left out: the loop's tokens are drawn beforehand",
                               .loaded = -static_cast<std::int64_t>(of.read),
                               .stored = -static_cast<std::int64_t>(of.written)});
    out.push_back(std::move(one));
    left.erase(found);
  }
  for (const auto& [name, of] : left) {
    if (of.read + of.written > 0) left_.push_back(name);  // launches themselves move no bytes
  }
  return out;
}

}  // namespace kvsim
