#include "models/cost/compiled/compiled.hpp"

#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "models/cost/layer/step_graphs.hpp"

namespace kvsim {
namespace {

// States whose graphs determine the coefficients: a base, one step along each of (attended, before,
// after), and one more to verify linearity. The numbers are not round, so that traffic in pages or
// groups is detected.
constexpr std::int64_t kBase = 1000;
constexpr std::int64_t kMoved = 1777;
constexpr std::array<CompiledGraph<3>::Counts, CompiledGraph<3>::kSamples> kCounts{
    {{kBase, kBase, kBase},
     {kMoved, kBase, kBase},
     {kBase, kMoved, kBase},
     {kBase, kBase, kMoved},
     {2999, 2503, 2011}}};

bool reads_meanwhile(const CostInput& in) {
  return in.stack->host_weights > 0 && in.stack->overlaps_weights;
}

CompiledGraph<3> compile(const CostInput& in, std::int32_t layer, CacheChange change, bool evicts,
                         const Roofline& roofline) {
  // Other formats grow in steps; weights that are loaded concurrently may be hidden by a layer, or
  // hide it.
  if (!in.method->plain_rows() || !CacheRows{in, layer}.other_is_line() || reads_meanwhile(in)) {
    return {*in.stack, roofline};
  }
  CostInput exact = in;
  exact.exact_sizes = true;
  std::vector<CompiledGraph<3>::Sample> samples;
  samples.reserve(kCounts.size());
  for (const auto& counts : kCounts) {
    samples.push_back({.counts = counts,
                       .graph = decode_layer(exact, layer,
                                             {.attended = counts[0],
                                              .before = counts[1],
                                              .after = counts[2],
                                              .change = change,
                                              .evicts = evicts})});
  }
  return {*in.stack, roofline, samples};
}

}  // namespace

CompiledLayer::CompiledLayer(const CostInput& in, std::int32_t layer, CacheChange change,
                             bool evicts, const Roofline& roofline)
    : in_{in},
      roofline_{roofline},
      layer_{layer},
      rows_{in, layer},
      form_{compile(in, layer, change, evicts, roofline)} {
  rows_.fit_side_bytes();
}

GraphCost CompiledLayer::cost(const DecodeState& moment) const {
  return is_linear() ? form_.cost(counts_of(moment)) : on_graph(moment);
}

Seconds CompiledLayer::time(const DecodeState& moment) const {
  return is_linear() ? form_.time(counts_of(moment)) : on_graph(moment).time;
}

/// Decode operators run sequentially, so their costs add up.
GraphCost CompiledLayer::on_graph(const DecodeState& moment) const {
  if (reads_meanwhile(in_)) return evaluate(decode_layer(in_, layer_, moment), roofline_);
  if (!outside_) {  // equal for all states, so the state must not depend on the request
    CostInput in = in_;
    in.prompt = kBase;
    const DecodeState base{.attended = kBase,
                           .before = kBase,
                           .after = kBase,
                           .change = moment.change,
                           .evicts = moment.evicts};
    const GraphCost all = evaluate(decode_layer(in, layer_, base), roofline_);
    const GraphCost middle = evaluate(decode_layer_middle(in, layer_, base), roofline_);
    // The stack has no rate for some operator: terms cannot be separated.
    if (!std::isfinite(middle.time.count())) {
      return evaluate(decode_layer(in_, layer_, moment), roofline_);
    }
    outside_ = {.time = all.time - middle.time,
                .flops = all.flops - middle.flops,
                .bytes = all.bytes - middle.bytes,
                .at_peak = all.at_peak - middle.at_peak};
  }
  const GraphCost middle = evaluate(decode_layer_middle(in_, layer_, moment), roofline_);
  return {.time = outside_->time + middle.time,
          .flops = outside_->flops + middle.flops,
          .bytes = outside_->bytes + middle.bytes,
          .at_peak = outside_->at_peak + middle.at_peak};
}

Bytes CompiledLayer::alive_peak(const DecodeState& moment) const {
  if (!is_linear()) return decode_layer(in_, layer_, moment).alive_peak().bytes;
  Form::Side side{};
  if (form_.has_side()) {
    side = {.first = allocator_rounded(in_, rows_.side(moment.before)),
            .later = allocator_rounded(in_, rows_.side(moment.after))};
  }
  return form_.alive_peak(counts_of(moment), side);
}

DecodeEnds decode_ends(const CostInput& in, const Roofline& roofline) {
  const GraphCost embed = evaluate(embed_tokens(in, 1), roofline);
  const OpGraph logits = output_logits(in, 1);
  const GraphCost head = evaluate(logits, roofline);
  return {.cost = {.time = embed.time + head.time,
                   .flops = embed.flops + head.flops,
                   .bytes = embed.bytes + head.bytes,
                   .at_peak = embed.at_peak + head.at_peak},
          .peak = logits.alive_peak().bytes};
}

CompiledDecode::CompiledDecode(const CostInput& in, const Roofline& roofline)
    : CompiledDecode{in, roofline, decode_ends(in, roofline), layer_groups(*in.llm, *in.method)} {}

CompiledDecode::CompiledDecode(const CostInput& in, const Roofline& roofline,
                               const DecodeEnds& ends, std::vector<LayerGroup> groups)
    : in_{in},
      roofline_{roofline},
      groups_{std::move(groups)},
      forms_(groups_.size()),
      ends_{ends},
      host_{host_time(in, true)} {}

const CompiledLayer& CompiledDecode::layer(std::size_t group, const DecodeState& moment) {
  const std::size_t form = static_cast<std::size_t>(moment.change) * 2 + (moment.evicts ? 1 : 0);
  const auto like = static_cast<std::size_t>(groups_[group].first_equal);
  auto& slot = forms_[like][form];
  if (!slot) {
    slot = std::make_unique<CompiledLayer>(in_, groups_[like].first, moment.change, moment.evicts,
                                           roofline_);
  }
  return *slot;
}

}  // namespace kvsim
