#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/basic/copies.hpp"
#include "kernels/basic/gemm.hpp"
#include "kernels/basic/rows.hpp"
#include "kernels/decode/decode_attention.hpp"
#include "kernels/decode/decode_steps.hpp"
#include "kernels/merge/merge.hpp"
#include "kernels/score/scores.hpp"
#include "kernels/select/compact.hpp"
#include "kernels/suite/decode_loop.hpp"
#include "models/math/counter_random.hpp"
#ifdef __CUDACC__
#include "kernels/suite/library/blas.hpp"
#endif

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::KernelTraffic;
using kernels::LoopMethod;
using kernels::LoopSpec;

/// `n` elements of a span, starting at `first`.
template <class T>
Span<T> part(Span<T> whole, std::int64_t first, std::int64_t n) {
  KVSIM_LAUNCH_CHECK(first >= 0 && n >= 0 && first + n <= whole.size, "a part lies in its whole");
  whole.data += first;
  whole.size = n;
  return whole;
}

kernels::DecodeShape attention_shape(const LoopSpec& s, std::int64_t entries) {
  return {.batch = s.batch,
          .n_heads = s.model.n_heads,
          .n_kv_heads = s.model.n_kv_heads,
          .head_dim = s.model.head_dim,
          .entries = entries,
          .capacity = s.capacity(),
          .entries_per_split = s.entries_per_split};
}

/// kStreaming: slot of the entry at `position`, which is not a sink.
std::int64_t ring_slot(const LoopSpec& s, std::int64_t position) {
  return s.sinks + (position - s.sinks) % (s.budget + 1 - s.sinks);
}

void check(const LoopSpec& s) {
  const kernels::LoopModel& m = s.model;
  KVSIM_LAUNCH_CHECK(m.n_layers >= 1 && s.batch >= 1 && s.prompt >= 1 && s.steps >= 1 &&
                         m.n_kv_heads >= 1 && m.n_heads % m.n_kv_heads == 0,
                     "sizes are 1 at least, query heads a multiple of KV heads");
  KVSIM_LAUNCH_CHECK(m.d_model % 8 == 0 && m.d_ff % 8 == 0 && m.vocab % 8 == 0,
                     "widths are multiples of 8");
  if (s.method == LoopMethod::kFull) return;
  KVSIM_LAUNCH_CHECK(s.budget >= 1 && s.budget < s.prompt, "the prompt is longer than the budget");
  KVSIM_LAUNCH_CHECK(s.method != LoopMethod::kStreaming || s.sinks < s.budget,
                     "the budget leaves a window after the sinks");
  KVSIM_LAUNCH_CHECK(!s.scores() || s.slots + s.recent < s.budget + 1,
                     "the budget leaves entries to choose from");
  KVSIM_LAUNCH_CHECK(s.method != LoopMethod::kResidual || s.slots >= 1, "a residual slot at least");
}

#ifdef __CUDACC__
template <class T>
constexpr cudaDataType kCudaType = CUDA_R_32F;
template <>
constexpr cudaDataType kCudaType<kv::Half> = CUDA_R_16F;
template <>
constexpr cudaDataType kCudaType<kv::BFloat16> = CUDA_R_16BF;
#endif

}  // namespace

template <class T>
struct DecodeLoop<T>::Memory {
  Memory(Machine& machine, const LoopSpec& s)
      : weights{machine, "weights", kernels::weight_elements(s)},
        keys{machine, "keys", kernels::cache_elements(s)},
        values{machine, "values", kernels::cache_elements(s)},
        scores{machine, "scores", s.scores() ? side(s) : 0},
        positions{machine, "positions", s.scores() ? side(s) : 0},
        victims{machine, "victims", s.scores() ? s.model.n_layers * s.cache_rows() : 0},
        counts{machine, "counts", s.model.n_layers * s.cache_rows() * s.slots},
        bias{machine, "bias", s.slots > 0 ? side(s) : 0},
        slots{machine, "slots", s.cache_rows()},
        tokens{machine, "tokens", s.steps * s.batch},
        turns{machine, "turns", s.steps * s.model.head_dim},
        x{machine, "x", s.batch * s.model.d_model},
        normed{machine, "normed", s.batch * s.model.d_model},
        projected{machine, "projected", s.batch * s.qkv_width()},
        q{machine, "q", s.batch * s.model.n_heads * s.model.head_dim},
        fresh_keys{machine, "fresh keys", s.cache_rows() * s.model.head_dim},
        fresh_values{machine, "fresh values", s.cache_rows() * s.model.head_dim},
        attended{machine, "attended", s.batch * s.model.n_heads * s.model.head_dim},
        block{machine, "block", s.batch * s.model.d_model},
        both{machine, "gate and up", 2 * s.batch * s.model.d_ff},
        gated{machine, "gated", s.batch * s.model.d_ff},
        logits{machine, "logits", s.batch * s.model.vocab},
        partial{machine, "partial", splits(s) * s.model.head_dim},
        partial_max{machine, "partial_max", splits(s)},
        partial_sum{machine, "partial_sum", splits(s)},
        log_sum{machine, "log_sum", s.scores() ? s.batch * s.model.n_heads : 0},
        rows{machine, "score rows", s.scores() ? s.batch * s.model.n_heads * s.capacity() : 0} {}

  static std::int64_t side(const LoopSpec& s) {
    return s.model.n_layers * s.cache_rows() * s.capacity();
  }
  static std::int64_t splits(const LoopSpec& s) {
    return s.batch * s.model.n_heads * attention_shape(s, s.held(s.steps - 1) + 1).splits();
  }

#ifdef __CUDACC__
  Blas blas;  // first, so that its workspace is allocated before the cache
#endif
  Array<T> weights, keys, values;
  Array<float> scores;
  Array<std::int32_t> positions, victims, counts;
  Array<float> bias;
  Array<std::int64_t> slots;
  Array<std::int32_t> tokens;
  Array<float> turns;
  Array<T> x, normed, projected, q, fresh_keys, fresh_values, attended, block, both, gated, logits;
  Array<float> partial, partial_max, partial_sum, log_sum, rows;
};

template <class T>
DecodeLoop<T>::DecodeLoop(Machine& machine, const LoopSpec& spec)
    : machine_{machine}, spec_{(check(spec), spec)}, memory_{new Memory{machine, spec}} {
#ifdef __CUDACC__
  if (!memory_->blas.ready()) {
    throw std::runtime_error{"libcublas was not found (so.13, so.12 and so were looked for)"};
  }
#endif
  const kernels::LoopModel& m = spec_.model;
  const Stream stream = stream_of(machine_);
  const kernels::LayerWeights at = layer_weights(spec_);
  const Span<T> all = memory_->weights.span();
  std::int64_t next = 0;
  std::uint64_t drawn = 0;
  // Products of unit-variance rows keep unit variance; norm weights are near 1.
  const auto draw = [&](std::int64_t n, double mean, double half) {
    fill_random<T>(stream, counter_key({spec_.seed, ++drawn}), static_cast<float>(mean - half),
                   static_cast<float>(mean + half), part(all, next, n));
    next += n;
  };
  const auto linear = [&](std::int64_t n, std::int64_t k) {
    draw(n * k, 0, std::sqrt(3.0 / static_cast<double>(k)));
  };
  draw(m.vocab * m.d_model, 0, std::sqrt(3.0));
  for (std::int64_t layer = 0; layer < m.n_layers; ++layer) {
    draw(at.qkv - at.input_norm, 1, 0.5);
    linear(spec_.qkv_width(), m.d_model);
    linear(m.d_model, m.n_heads * m.head_dim);
    draw(at.gate_up - at.feed_forward_norm, 1, 0.5);
    linear(2 * m.d_ff, m.d_model);
    linear(m.d_model, m.d_ff);
  }
  draw(m.d_model, 1, 0.5);
  linear(m.vocab, m.d_model);

  std::vector<std::int32_t> tokens;
  const std::uint64_t key = counter_key({spec_.seed, 0});
  for (std::int64_t i = 0; i < spec_.steps * spec_.batch; ++i) {
    const double u = counter_uniform(key, static_cast<std::uint64_t>(i));
    tokens.push_back(static_cast<std::int32_t>(u * static_cast<double>(m.vocab)));
  }
  memory_->tokens.upload(tokens);
  std::vector<float> turns;
  for (std::int64_t step = 0; step < spec_.steps; ++step) {
    const auto angle = [&](std::int64_t j) {
      return static_cast<double>(spec_.prompt + step) *
             std::pow(m.rope_theta,
                      -2.0 * static_cast<double>(j) / static_cast<double>(m.head_dim));
    };
    for (std::int64_t j = 0; j < m.head_dim / 2; ++j) {
      turns.push_back(static_cast<float>(std::cos(angle(j))));
    }
    for (std::int64_t j = 0; j < m.head_dim / 2; ++j) {
      turns.push_back(static_cast<float>(std::sin(angle(j))));
    }
  }
  memory_->turns.upload(turns);
  if (spec_.slots > 0) {
    memory_->bias.upload(std::vector<float>(static_cast<std::size_t>(Memory::side(spec_)), 0.0F));
  }
}

template <class T>
DecodeLoop<T>::~DecodeLoop() = default;

template <class T>
void DecodeLoop<T>::fill_cache() {
  const Stream stream = stream_of(machine_);
  fill_random<T>(stream, counter_key({spec_.seed, 1ULL << 32U}), -1, 1, memory_->keys.span());
  fill_random<T>(stream, counter_key({spec_.seed, 2ULL << 32U}), -1, 1, memory_->values.span());
  if (!spec_.scores()) return;
  fill_random<float>(stream, counter_key({spec_.seed, 3ULL << 32U}), 0, 1, memory_->scores.span());
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < spec_.model.n_layers * spec_.cache_rows(); ++row) {
    for (std::int64_t e = 0; e < spec_.capacity(); ++e) {
      positions.push_back(static_cast<std::int32_t>(spec_.prompt - spec_.budget + e));
    }
  }
  memory_->positions.upload(positions);
  if (spec_.slots > 0) {
    const std::int64_t n = spec_.model.n_layers * spec_.cache_rows() * spec_.slots;
    memory_->counts.upload(std::vector<std::int32_t>(static_cast<std::size_t>(n), 1));
  }
}

template <class T>
void DecodeLoop<T>::set_cache(std::int64_t layer, const LayerCacheState<T>& state) {
  const std::int64_t held = spec_.held(0);
  const std::int64_t d = spec_.model.head_dim;
  const std::int64_t first_row = layer * spec_.cache_rows();
  // Copies entries [from, from + n) of a row of the state to the row's slot.
  const auto put = [&](auto& array, const auto& state_of, std::int64_t row, std::int64_t from,
                       std::int64_t slot, std::int64_t n, std::int64_t width) {
    using Values = std::decay_t<decltype(state_of)>;
    const auto begin = state_of.begin() + (row * held + from) * width;
    copy_in(array, Values(begin, begin + n * width),
            ((first_row + row) * spec_.capacity() + slot) * width);
  };
  for (std::int64_t row = 0; row < spec_.cache_rows(); ++row) {
    if (spec_.method == LoopMethod::kStreaming) {
      // Input by position, output by slot in the ring: p is at sinks + (p - sinks) mod window.
      for (std::int64_t e = 0; e < held; ++e) {
        const std::int64_t p = spec_.prompt - held + e;
        const std::int64_t slot = e < spec_.sinks ? e : ring_slot(spec_, p);
        put(memory_->keys, state.keys, row, e, slot, 1, d);
        put(memory_->values, state.values, row, e, slot, 1, d);
      }
      continue;
    }
    put(memory_->keys, state.keys, row, 0, 0, held, d);
    put(memory_->values, state.values, row, 0, 0, held, d);
    if (!spec_.scores()) continue;
    put(memory_->positions, state.positions, row, 0, 0, held, 1);
    put(memory_->scores, state.scores, row, 0, 0, held, 1);
  }
  if (spec_.slots > 0) copy_in(memory_->counts, state.counts, first_row * spec_.slots);
}

template <class T>
template <class Number>
void DecodeLoop<T>::copy_in(Array<Number>& to, const std::vector<Number>& values,
                            std::int64_t first) {
  const auto n = static_cast<std::int64_t>(values.size());
  Array<Number> from{machine_, "values of the host", n};
  from.upload(values);
  copy_values<Number>(stream_of(machine_), from.span(), part(to.span(), first, n));
}

template <class T>
LayerCacheState<T> DecodeLoop<T>::cache(std::int64_t layer, std::int64_t entries) const {
  LayerCacheState<T> state;
  const auto get = [&](const auto& array, auto& to, std::int64_t width) {
    for (std::int64_t row = 0; row < spec_.cache_rows(); ++row) {
      const auto values = array.download(
          (layer * spec_.cache_rows() + row) * spec_.capacity() * width, entries * width);
      to.insert(to.end(), values.begin(), values.end());
    }
  };
  get(memory_->keys, state.keys, spec_.model.head_dim);
  get(memory_->values, state.values, spec_.model.head_dim);
  if (spec_.scores()) {
    get(memory_->positions, state.positions, 1);
    get(memory_->scores, state.scores, 1);
  }
  if (spec_.slots > 0) {
    state.counts = memory_->counts.download(layer * spec_.cache_rows() * spec_.slots,
                                            spec_.cache_rows() * spec_.slots);
  }
  return state;
}

template <class T>
void DecodeLoop<T>::rewind() {
  done_ = 0;
  fill_cache();
}

template <class T>
void DecodeLoop<T>::run(std::string_view name, const KernelTraffic& model,
                        const std::function<void(Stream)>& launch) {
  launches_ += model.launches;
#ifdef __CUDACC__
  (void)name;
  launch(stream_of(machine_));
#else
  auto op = std::find_if(ops_.begin(), ops_.end(), [&](const auto& o) { return o.name == name; });
  if (op == ops_.end()) {
    kernels::LoopOp first;
    first.name = name;
    first.model = first.counted = {Bytes{0}, Bytes{0}, 0, 0};
    op = ops_.insert(ops_.end(), first);
  }
  const cuda_sim::Counters before = machine_.counters();
  launch(stream_of(machine_));
  const cuda_sim::Counters counted = difference(machine_.counters(), before);
  ++op->runs;
  op->model = op->model + model;
  op->counted =
      op->counted + KernelTraffic{Bytes{counted.loaded_bytes}, Bytes{counted.stored_bytes},
                                  counted.atomics, counted.launches};
#endif
}

template <class T>
void DecodeLoop<T>::product(std::string_view name, std::int64_t n, std::int64_t k, Span<const T> a,
                            Span<const T> b, Span<T> out) {
  const kernels::GemmShape shape{.m = spec_.batch, .n = n, .k = k};
#ifdef __CUDACC__
  run(name, {.launches = 1}, [&](Stream) {
    memory_->blas.multiply(static_cast<int>(shape.m), static_cast<int>(n), static_cast<int>(k),
                           a.data, b.data, out.data, kCudaType<T>);
  });
#else
  const Gemm<T, T> arguments{.a = a, .b = b, .out = out};
  if (shape.m == 1) {
    run(name, gemv_traffic(shape, sizeof(T), sizeof(T), false),
        [&](Stream s) { gemv<T, T>(s, shape, arguments); });
  } else {
    run(name, gemm_traffic(shape, sizeof(T), sizeof(T), false),
        [&](Stream s) { gemm<T, T>(s, shape, arguments); });
  }
#endif
}

template <class T>
void DecodeLoop<T>::norm(std::string_view name, Span<const T> weight) {
  const kernels::RowsShape shape{.rows = spec_.batch, .width = spec_.model.d_model};
  run(name, rms_norm_traffic(shape, sizeof(T)), [&](Stream s) {
    rms_norm_rows<T>(s, shape, static_cast<float>(spec_.model.epsilon), memory_->x.span(), weight,
                     memory_->normed.span());
  });
}

/// Chooses the slots of the step's entries.
template <class T>
void DecodeLoop<T>::open(std::int64_t layer) {
  const std::int64_t rows = spec_.cache_rows();
  const kernels::SlotShape shape{.rows = rows, .capacity = spec_.capacity()};
  const std::int64_t position = spec_.prompt + done_;
  std::int64_t slot = spec_.held(done_);
  if (spec_.method == LoopMethod::kStreaming) {
    slot = ring_slot(spec_, position);
  }
  OpenSlots arguments{.slot = static_cast<std::int32_t>(slot),
                      .position = static_cast<std::int32_t>(position),
                      .slots = memory_->slots.span()};
  if (spec_.scores()) {
    const std::int64_t side = rows * spec_.capacity();
    arguments.positions = part(memory_->positions.span(), layer * side, side);
    arguments.scores = part(memory_->scores.span(), layer * side, side);
    if (done_ > 0) arguments.victims = part(memory_->victims.span(), layer * rows, rows);
  } else if (layer > 0) {
    return;  // the same slots in every layer
  }
  run("open slots", open_slots_traffic(shape, arguments.victims.size > 0, spec_.scores()),
      [&](Stream s) { open_slots(s, shape, arguments); });
}

template <class T>
void DecodeLoop<T>::attend(std::int64_t layer) {
  const std::int64_t d = spec_.model.head_dim;
  const std::int64_t rows = spec_.cache_rows();
  const std::int64_t entries = spec_.held(done_) + 1;
  const std::int64_t cache = rows * spec_.capacity() * d;
  const Span<T> keys = part(memory_->keys.span(), layer * cache, cache);
  const Span<T> values = part(memory_->values.span(), layer * cache, cache);
  const kernels::AppendShape append{.rows = rows,
                                    .entry_bytes = d * static_cast<std::int64_t>(sizeof(T)),
                                    .slots = rows * spec_.capacity()};
  run("cache append", append_traffic(append) + append_traffic(append), [&](Stream s) {
    append_entries<T>(s, append, memory_->fresh_keys.span(), memory_->slots.span(), keys);
    append_entries<T>(s, append, memory_->fresh_values.span(), memory_->slots.span(), values);
  });
  const kernels::DecodeShape shape = attention_shape(spec_, entries);
  DecodeAttention<T> arguments{.q = memory_->q.span(),
                               .keys = keys,
                               .values = values,
                               .bias = {},
                               .scale = 1.0F / std::sqrt(static_cast<float>(d)),
                               .out = memory_->attended.span(),
                               .logits = memory_->rows.span(),
                               .log_sum = memory_->log_sum.span(),
                               .partial = memory_->partial.span(),
                               .partial_max = memory_->partial_max.span(),
                               .partial_sum = memory_->partial_sum.span()};
  if (spec_.slots > 0) {
    const std::int64_t side = rows * spec_.capacity();
    const kernels::SlotShape slots{.rows = rows, .capacity = spec_.capacity()};
    const Span<float> bias = part(memory_->bias.span(), layer * side, side);
    const Span<std::int32_t> counts =
        part(memory_->counts.span(), layer * rows * spec_.slots, rows * spec_.slots);
    run("count bias", kernels::count_bias_traffic(rows, spec_.slots),
        [&](Stream s) { count_bias(s, slots, spec_.slots, spec_.alpha, counts, bias); });
    arguments.bias = bias;
  }
  run("attention",
      decode_traffic(shape, sizeof(T), spec_.slots > 0, spec_.scores(), spec_.scores()),
      [&](Stream s) { decode_attention<T>(s, shape, arguments); });
}

/// Updates scores from the step's attention, chooses the evicted entry, and drops or merges it.
template <class T>
void DecodeLoop<T>::learn(std::int64_t layer) {
  if (!spec_.scores()) return;
  const std::int64_t rows = spec_.cache_rows();
  const std::int64_t entries = spec_.held(done_) + 1;
  const std::int64_t side = rows * spec_.capacity();
  const Span<float> scores = part(memory_->scores.span(), layer * side, side);
  const std::int64_t query_rows = spec_.batch * spec_.model.n_heads;
  run("score row", kernels::normalise_traffic(query_rows, entries), [&](Stream s) {
    normalise_rows(s, query_rows, entries, spec_.capacity(), memory_->log_sum.span(),
                   memory_->rows.span());
  });
  const kernels::ScoreShape update{.rows = rows,
                                   .group = spec_.model.n_heads / spec_.model.n_kv_heads,
                                   .entries = entries,
                                   .stride = spec_.capacity()};
  run("method", update_scores_traffic(update),
      [&](Stream s) { update_scores(s, update, spec_.decay, memory_->rows.span(), scores); });
  const Span<std::int32_t> victims = part(memory_->victims.span(), layer * rows, rows);
  const kernels::SlotShape slots{.rows = rows, .capacity = spec_.capacity()};
  const std::int64_t newest = spec_.prompt + done_;
  run("choose victims", kernels::choose_victims_traffic(rows, entries, spec_.slots), [&](Stream s) {
    choose_victims(s, slots,
                   {.entries = entries,
                    .pinned = static_cast<std::int32_t>(spec_.slots),
                    .first_recent = static_cast<std::int32_t>(newest - spec_.recent + 1),
                    .scores = scores,
                    .positions = part(memory_->positions.span(), layer * side, side),
                    .victims = victims});
  });
  if (spec_.slots == 0) return;
  const std::int64_t cache = side * spec_.model.head_dim;
  const kernels::ResidualShape merge{.merges = rows,
                                     .slots = spec_.slots,
                                     .capacity = spec_.capacity(),
                                     .head_dim = spec_.model.head_dim};
  run("evict and merge", residual_traffic(merge, sizeof(T)), [&](Stream s) {
    residual_merge<T>(
        s, merge,
        {.victim = victims,
         .keys = part(memory_->keys.span(), layer * cache, cache),
         .values = part(memory_->values.span(), layer * cache, cache),
         .counts = part(memory_->counts.span(), layer * rows * spec_.slots, rows * spec_.slots)});
  });
}

template <class T>
void DecodeLoop<T>::feed_forward(Span<const T> weights) {
  const kernels::LoopModel& m = spec_.model;
  const kernels::LayerWeights at = layer_weights(spec_);
  const std::int64_t n = spec_.batch * m.d_model;
  const auto add = [&] {
    run("residual add", kernels::add_traffic(n, sizeof(T)),
        [&](Stream s) { add_rows<T>(s, n, memory_->block.span(), memory_->x.span()); });
  };
  product("output projection", m.d_model, m.n_heads * m.head_dim, memory_->attended.span(),
          part(weights, at.out, m.d_model * m.n_heads * m.head_dim), memory_->block.span());
  add();
  norm("feed-forward norm", part(weights, at.feed_forward_norm, m.d_model));
  product("gate and up projection", 2 * m.d_ff, m.d_model, memory_->normed.span(),
          part(weights, at.gate_up, 2 * m.d_ff * m.d_model), memory_->both.span());
  const kernels::RowsShape gate{.rows = spec_.batch, .width = m.d_ff};
  run("gate times up", gate_traffic(gate, sizeof(T)),
      [&](Stream s) { gate_product<T>(s, gate, memory_->both.span(), memory_->gated.span()); });
  product("down projection", m.d_model, m.d_ff, memory_->gated.span(),
          part(weights, at.down, m.d_ff * m.d_model), memory_->block.span());
  add();
}

template <class T>
void DecodeLoop<T>::step(const std::function<void(std::int64_t)>& after_layer) {
  KVSIM_LAUNCH_CHECK(done_ < spec_.steps, "the cache has room for the steps of its spec");
  const kernels::LoopModel& m = spec_.model;
  const kernels::LayerWeights at = layer_weights(spec_);
  const Span<const T> weights = memory_->weights.span();
  const kernels::GatherShape embed{.rows = 1,
                                   .entry_bytes = m.d_model * static_cast<std::int64_t>(sizeof(T)),
                                   .capacity_from = m.vocab,
                                   .capacity_to = spec_.batch,
                                   .kept = spec_.batch};
  const Span<std::int32_t> tokens = part(memory_->tokens.span(), done_ * spec_.batch, spec_.batch);
  run("embedding", gather_traffic(embed), [&](Stream s) {
    gather_entries<T>(s, embed, part(weights, 0, m.vocab * m.d_model), tokens, memory_->x.span());
  });
  const kernels::ProjectedShape projected{.batch = spec_.batch,
                                          .n_heads = m.n_heads,
                                          .n_kv_heads = m.n_kv_heads,
                                          .head_dim = m.head_dim};
  std::int64_t first = m.vocab * m.d_model;
  for (std::int64_t layer = 0; layer < m.n_layers; ++layer, first += at.size) {
    const Span<const T> own = part(weights, first, at.size);
    norm("input norm", part(own, at.input_norm, m.d_model));
    product("query, key and value projection", spec_.qkv_width(), m.d_model, memory_->normed.span(),
            part(own, at.qkv, spec_.qkv_width() * m.d_model), memory_->projected.span());
    run("rope", rotate_traffic(projected, sizeof(T)), [&](Stream s) {
      split_and_rotate<T>(s, projected, memory_->projected.span(),
                          part(memory_->turns.span(), done_ * m.head_dim, m.head_dim),
                          memory_->q.span(), memory_->fresh_keys.span(),
                          memory_->fresh_values.span());
    });
    open(layer);
    attend(layer);
    learn(layer);
    feed_forward(own);
    if (after_layer) after_layer(layer);
  }
  norm("final norm", part(weights, first, m.d_model));
  product("logits", m.vocab, m.d_model, memory_->normed.span(),
          part(weights, first + m.d_model, m.vocab * m.d_model), memory_->logits.span());
  ++done_;
}

template <class T>
std::vector<T> DecodeLoop<T>::weights() const {
  return memory_->weights.download(0, weight_elements(spec_));
}
template <class T>
std::vector<T> DecodeLoop<T>::queries() const {
  return memory_->q.download(0, spec_.batch * spec_.model.n_heads * spec_.model.head_dim);
}
template <class T>
std::vector<T> DecodeLoop<T>::fresh_keys() const {
  return memory_->fresh_keys.download(0, spec_.cache_rows() * spec_.model.head_dim);
}
template <class T>
std::vector<T> DecodeLoop<T>::fresh_values() const {
  return memory_->fresh_values.download(0, spec_.cache_rows() * spec_.model.head_dim);
}
template <class T>
std::vector<T> DecodeLoop<T>::attended() const {
  return memory_->attended.download(0, spec_.batch * spec_.model.n_heads * spec_.model.head_dim);
}
template <class T>
std::vector<T> DecodeLoop<T>::logits() const {
  return memory_->logits.download(0, spec_.batch * spec_.model.vocab);
}
template <class T>
std::vector<std::int32_t> DecodeLoop<T>::tokens(std::int64_t step) const {
  return memory_->tokens.download(step * spec_.batch, spec_.batch);
}

template <class T>
std::vector<kernels::LoopOp> DecodeLoop<T>::take_ops() {
  return std::exchange(ops_, {});
}

template class DecodeLoop<float>;
template class DecodeLoop<kv::BFloat16>;

}  // namespace kvsim::KVSIM_EXECUTOR
