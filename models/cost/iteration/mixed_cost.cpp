#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/iteration/mixed_layer.hpp"
#include "models/cost/iteration/mixed_parts.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

/// A sum of operators: s, flops, bytes, s at data-sheet peak, s of copies.
struct Sum {
  double time = 0;
  double flops = 0;
  double bytes = 0;
  double at_peak = 0;
  double copies = 0;  // s of `time` for copies over the link to the host

  Sum& operator+=(const Sum& other) {
    time += other.time;
    flops += other.flops;
    bytes += other.bytes;
    at_peak += other.at_peak;
    copies += other.copies;
    return *this;
  }
  friend Sum operator*(const Sum& a, double times) {
    return {.time = a.time * times,
            .flops = a.flops * times,
            .bytes = a.bytes * times,
            .at_peak = a.at_peak * times,
            .copies = a.copies * times};
  }
};

Sum sum_of(const GraphCost& cost) {
  return {.time = cost.time.count(),
          .flops = cost.flops,
          .bytes = cost.bytes,
          .at_peak = cost.at_peak.count()};
}

/// Values that depend on a single integer, each computed once.
class Table {
 public:
  template <class Make>
  const Sum& at(std::int64_t n, Make&& make) {
    const auto i = static_cast<std::size_t>(n);
    constexpr std::size_t kFirst = 1024;
    if (i >= sums_.size()) {
      sums_.resize(std::max({i + 1, 2 * sums_.size(), kFirst}), unknown());
    }
    if (sums_[i].time < 0) sums_[i] = make();
    return sums_[i];
  }

 private:
  [[nodiscard]] static Sum unknown() { return {.time = -1}; }
  std::vector<Sum> sums_;
};

}  // namespace

struct MixedStepCost::Impl {
  struct Column {
    MixedLayer layer;
    std::int32_t first;  // one of its layers
    std::size_t layer_class;
    double layers;       // in the range
    double n_equal;      // layers in the range, including equal further columns if this is the
                         // first of them; else 0: parts that do not depend on the class are
                         // computed once for all
    std::size_t leader;  // the first of the equal columns
    PromptPart part;
    Table around{}, decodes{};         // by rows, if this is the first
    MixedLayer::ChunkWrites writes{};  // of the current step, if this is the first
    // The last decoded batch and its cost: under a budget a load stays constant between steps.
    DecodeBatch decoded{};
    Sum decode{};
    Sum outside{};  // attention and cache, in the current step
  };

  Impl(const CostInput& in, const Roofline& rates, const LayerRange& layers)
      : one{of_one_sequence(in)},
        roofline{rates},
        range{layers},
        all{mixed_columns(*in.llm, *in.method)} {
    KVSIM_CHECK(
        layers.first >= 0 && layers.first < layers.last && layers.last <= in.llm->n_layers(),
        "layers {} to {} of {}", layers.first, layers.last, in.llm->n_layers());
    std::vector<double> counts(all.columns.size()), n_equal(all.columns.size());
    std::vector<std::optional<std::size_t>> leader(all.columns.size());
    for (std::int32_t l = layers.first; l < layers.last; ++l) {
      const auto c = static_cast<std::size_t>(all.of_layer[static_cast<std::size_t>(l)]);
      counts[c] += 1;
      n_equal[static_cast<std::size_t>(all.columns[c].first_equal)] += 1;
    }
    for (std::size_t c = 0; c < counts.size(); ++c) {
      if (counts[c] == 0) continue;
      const MixedColumn& column = all.columns[c];
      const auto first = static_cast<std::size_t>(column.first_equal);
      columns.push_back({.layer = MixedLayer{one, column.first},
                         .first = column.first,
                         .layer_class = static_cast<std::size_t>(column.layer_class),
                         .layers = counts[c],
                         .n_equal = leader[first] ? 0 : n_equal[first],
                         .leader = leader[first].value_or(columns.size()),
                         .part = prompt_part(in, column.first)});
      leader[first] = columns.back().leader;
    }
    for (std::size_t family = 0; family < kOpFamilies; ++family) {
      for (const DtypeName& d : kDtypes) {
        terms[family][static_cast<std::size_t>(d.dtype)] =
            roofline.terms({.name = {}, .family = static_cast<OpFamily>(family), .dtype = d.dtype});
      }
    }
  }

  [[nodiscard]] double time(const Op& op) const {
    if (op.kernel) {
      if (const KernelChoice* choice = roofline.kernel(op)) {
        constexpr double kMicro = 1e-6;
        return kMicro * microseconds(*choice, *op.kernel);
      }
    }
    const double bytes = op.bytes_read + op.bytes_written;
    if (op.blocks > 0 || op.exchange) return roofline.terms(op).at(op.flops.count(), bytes);
    Roofline::Terms t =
        terms[static_cast<std::size_t>(op.family)][static_cast<std::size_t>(op.dtype)];
    t.fixed *= op.launches;
    return t.at(op.flops.count(), bytes);
  }

  [[nodiscard]] Sum evaluated(const OpGraph& graph) const {
    return sum_of(evaluate(graph, roofline));
  }

  const Sum& embedding(std::int64_t rows) {
    return embeddings_.at(rows, [&] { return evaluated(embed_tokens(one, rows)); });
  }
  const Sum& final_norm(std::int64_t rows) {
    return norms_.at(rows, [&] { return evaluated(output_logits(one, HeadRows{.normed = rows})); });
  }
  /// Returns a layer's cost without attention and cache.
  Sum dense(Column& column, const LayerRows& rows, bool with_prompts) {
    const auto make = [&] {
      return evaluated(
          LayerBuilder{one, column.first, rows.projected}.around({}, rows.computed, with_prompts));
    };
    if (rows.projected > rows.computed) return make();
    // Without split prompts both are equal.
    const bool apart = one.stack->prefill_context > 1 && !with_prompts;
    return (apart ? column.decodes : column.around).at(rows.computed, make);
  }

  /// Returns the cost of the logits of `rows` rows, and of sampling them.
  const Sum& head(std::int64_t rows, bool samples) {
    return (samples ? samples_ : logits_).at(rows, [&] {
      const OpGraph graph =
          output_logits(one, HeadRows{.normed = rows, .logits = rows, .sampled = rows});
      Sum sum;
      const OpIndex last = graph.size() - 1;  // samples
      // Operators before the logits: the norm and, if prompts are split, the gathering of its rows.
      const OpIndex logits = one.stack->prefill_context > 1 ? 2 : 1;
      for (OpIndex i = samples ? last : logits; i <= (samples ? last : last - 1); ++i) {
        const Op& op = graph.op(i);
        sum += {.time = time(op),
                .flops = op.flops.count(),
                .bytes = op.bytes_read + op.bytes_written,
                .at_peak = roofline.at_peak(op).count()};
      }
      return sum;
    });
  }

  /// Returns the cost of the work at the end of a prompt, including further passes over it.
  const Sum& end(std::int64_t prompt) {
    const auto known = ends_.find(prompt);
    if (known != ends_.end()) return known->second;
    Sum sum;
    for (const Column& column : columns) {
      sum += evaluated(prompt_compression(one, column.first, prompt)) * column.layers;
      if (const auto late = late_compression(one, column.first, prompt)) {
        sum += evaluated(*late) * column.layers;
      }
    }
    if (const double repeats = prefill_passes(one, prompt) - 1; repeats > 0) {
      const PrefillChunk whole{.tokens = prompt, .before = 0, .last = true};
      Sum pass = sum;
      pass += body({.loads = {}, .chunks = {&whole, 1}});
      sum += pass * repeats;
    }
    return ends_.emplace(prompt, sum).first->second;
  }

  /// Returns the device's cost without attention, cache and ends of prompts.
  Sum outside(const MixedStep& step) {
    Sum sum;
    if (range.embedding) sum += embedding(layer_rows(step, split_part(one)).computed);
    const HeadRows rows = head_rows(one, step);
    if (range.head) sum += final_norm(rows.normed);
    for (Column& column : columns) {
      if (column.n_equal == 0) continue;
      column.outside = dense(column, layer_rows(step, column.part), !step.chunks.empty());
      sum += column.outside * column.n_equal;
    }
    if (range.head) {
      if (rows.logits > 0) sum += head(rows.logits, false);
      if (rows.sampled > 0) sum += head(rows.sampled, true);
    }
    return sum;
  }

  /// Returns the device's cost without ends of prompts.
  Sum body(const MixedStep& step) {
    const bool decodes_alone = step.chunks.empty() && step.decode_tokens == 1;
    Sum sum =
        decodes_alone ? decodes_.at(step.decodes, [&] { return outside(step); }) : outside(step);
    DecodeBatch decodes{.sequences = step.decodes,
                        .tokens = step.decode_tokens,
                        .with_prompts = !step.chunks.empty()};
    Sum of;
    double aside = 0;  // s of copies overlapped with a layer's computation
    const auto add = [&](const Op& op) {
      const double took = time(op);
      (op.stream > 0 ? aside : of.time) += took;
      if (op.family == OpFamily::kHostCopy && op.stream == 0) of.copies += took;
      of.flops += op.flops.count();
      of.bytes += op.bytes_read + op.bytes_written;
      of.at_peak += roofline.at_peak(op).count();
    };
    for (Column& column : columns) {
      if (column.n_equal > 0) column.writes = column.layer.chunk_writes(step.chunks);
      of = {};
      if (step.decodes > 0) decodes.load = step.loads[column.layer_class];
      column.layer.write(decodes, columns[column.leader].writes, add);
      sum += of * column.layers;
      double computing = column.outside.time + of.time;
      if (step.decodes > 0) {
        if (!(column.decoded == decodes)) {
          of = {};
          column.layer.decode(decodes, add);
          column.decode = of;
          column.decoded = decodes;
        }
        sum += column.decode * column.layers;
        computing += column.decode.time;
      }
      if (column.n_equal == 0 || step.chunks.empty()) continue;
      of = {};
      aside = 0;
      column.layer.prefill(step.chunks, add);
      sum += of * column.n_equal;
      const double wait = aside - (computing + of.time);
      if (wait > 0) sum += Sum{.time = wait, .copies = wait} * column.n_equal;
    }
    return sum;
  }

  MixedCost cost(const MixedStep& step) {
    check_step(one, step, range, all.classes.size());
    Sum sum = body(step);
    for (const PrefillChunk& chunk : step.chunks) {
      if (chunk.last) sum += end(chunk.before + chunk.tokens);
    }
    double host = mixed_host_time(one, step, range.last - range.first).count();
    if (range.head) host += mixed_hidden(one, step).count();
    const Seconds between = range.head ? mixed_between(one, step) : Seconds{};
    return {.time = Seconds{std::max(sum.time, host)} + between,
            .flops = sum.flops,
            .bytes = sum.bytes,
            .at_peak = Seconds{sum.at_peak},
            .host_copies = Seconds{sum.copies},
            .copy_wait = Seconds{std::max(sum.time, host) - std::max(sum.time - sum.copies, host)}};
  }

  CostInput one;
  Roofline roofline;
  LayerRange range;
  MixedColumns all;
  std::vector<Column> columns;  // with layers in the range
  std::array<std::array<Roofline::Terms, kDtypes.size()>, kOpFamilies> terms{};
  Table embeddings_, norms_, logits_, samples_;
  Table decodes_;  // outside() by the sequences of an iteration that decode one token each
  std::unordered_map<std::int64_t, Sum> ends_;  // by prompt; used only for lookup
};

MixedStepCost::MixedStepCost(const CostInput& in, const Roofline& roofline)
    : MixedStepCost{in, roofline, all_layers(*in.llm)} {}
MixedStepCost::MixedStepCost(const CostInput& in, const Roofline& roofline,
                             const LayerRange& layers)
    : impl_{std::make_unique<Impl>(in, roofline, layers)} {
  if (in.stack->host_weights > 0) {
    throw InputError{
        "host_weights: expected 0 for an engine with continuous batching: only static batches read "
        "weights from host memory"};
  }
}
MixedStepCost::MixedStepCost(MixedStepCost&&) noexcept = default;
MixedStepCost& MixedStepCost::operator=(MixedStepCost&&) noexcept = default;
MixedStepCost::~MixedStepCost() = default;

MixedCost MixedStepCost::cost(const MixedStep& step) { return impl_->cost(step); }
std::int32_t MixedStepCost::layer_class_count() const {
  return static_cast<std::int32_t>(impl_->all.classes.size());
}
std::span<const MixedStepCost::LayerClass> MixedStepCost::layer_classes() const {
  return impl_->all.classes;
}

}  // namespace kvsim
