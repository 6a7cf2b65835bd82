#include "models/cost/compiled.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "models/cost/layer_builder.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

// Points at which a graph is built to find its coefficients: one base, one step along each of
// (attended, before, after), and one more to see that they hold. No round numbers, so that what
// moves in pages or groups shows.
constexpr std::int64_t kBase = 1000;
constexpr std::int64_t kStride = 777;
constexpr std::size_t kVariables = 3;
constexpr std::size_t kSamples = kVariables + 2;

DecodeMoment sample_moment(std::size_t index, CacheChange change, bool evicts) {
  DecodeMoment m{
      .attended = kBase, .before = kBase, .after = kBase, .change = change, .evicts = evicts};
  if (index == 1) m.attended += kStride;
  if (index == 2) m.before += kStride;
  if (index == 3) m.after += kStride;
  if (index == 4) {
    m.attended = 2999;
    m.before = 2503;
    m.after = 2011;
  }
  return m;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

}  // namespace

CompiledLayer::CompiledLayer(const CostInput& in, std::int32_t layer, CacheChange change,
                             bool evicts, const Roofline& roofline)
    : in_{in}, roofline_{roofline}, layer_{layer}, change_{change}, evicts_{evicts} {
  Stack exact = *in.stack;  // sizes before the allocator's rounding
  exact.rounds_allocations = false;
  CostInput raw = in;
  raw.stack = &exact;
  linear_ = in.method->plain_rows();  // other formats grow in steps
  if (!linear_) return;
  std::vector<OpGraph> samples;
  samples.reserve(kSamples);
  for (std::size_t i = 0; i < kSamples; ++i) {
    samples.push_back(decode_layer(raw, layer, sample_moment(i, change, evicts)));
    linear_ = linear_ && samples[i].size() == samples[0].size() &&
              samples[i].tensors().size() == samples[0].tensors().size();
  }
  if (linear_) reduce_ops(samples);
  if (linear_) reduce_tensors(samples);
}

void CompiledLayer::reduce_ops(std::span<const OpGraph> samples) {
  const DecodeMoment check = sample_moment(kSamples - 1, change_, evicts_);
  const auto fit = [&](auto&& value_of) {
    Linear<double> line;
    const double base = value_of(samples[0]);
    line.c[0] = base;
    for (std::size_t v = 1; v <= kVariables; ++v) {
      line.c[v] = (value_of(samples[v]) - base) / static_cast<double>(kStride);
      line.c[0] -= line.c[v] * static_cast<double>(kBase);
    }
    linear_ = linear_ && near(line.at(check), value_of(samples[kSamples - 1]));
    return line;
  };
  const auto accumulate = [](Linear<double>& sum, const Linear<double>& part) {
    for (std::size_t i = 0; i < sum.c.size(); ++i) sum.c[i] += part.c[i];
  };
  for (OpIndex i = 0; i < samples[0].size(); ++i) {
    const Op& op = samples[0].op(i);
    linear_ = linear_ && op.stream == 0;
    VaryingOp varying{
        .flops = fit([i](const OpGraph& g) { return g.op(i).flops.count(); }),
        .bytes = fit([i](const OpGraph& g) { return g.op(i).bytes_read + g.op(i).bytes_written; }),
        .terms = roofline_.terms(op),
        .choice = roofline_.kernel(op)};
    if (varying.choice != nullptr) {
      varying.call = op.kernel->call;
      varying.times = op.kernel->times;
      varying.length = fit([i](const OpGraph& g) { return length_of(g.op(i).kernel->call); });
      for (const OpGraph& sample : samples) {
        linear_ =
            linear_ && with_length(sample.op(i).kernel->call, 1) == with_length(varying.call, 1);
      }
    }
    accumulate(flops_, varying.flops);
    accumulate(bytes_, varying.bytes);
    accumulate(at_peak_, fit([&](const OpGraph& g) { return roofline_.at_peak(g.op(i)).count(); }));
    if (varying.choice != nullptr ? varying.length.is_constant()
                                  : varying.flops.is_constant() && varying.bytes.is_constant()) {
      constant_time_ += roofline_.time(op).count();
    } else {
      ops_.push_back(varying);
    }
  }
}

void CompiledLayer::reduce_tensors(std::span<const OpGraph> samples) {
  const std::span<const Tensor> all = samples[0].tensors();
  const DecodeMoment check = sample_moment(kSamples - 1, change_, evicts_);
  std::vector<std::int32_t> index(all.size(), -1);  // among the varying ones
  std::vector<std::int64_t> constant(all.size());
  for (std::size_t t = 0; t < all.size(); ++t) {
    VaryingTensor tensor;
    const std::int64_t base = all[t].bytes.count();
    if (all[t].owner == Owner::kSideData) {
      // A method's side data may come in groups; its own function says how much.
      tensor.how = all[t].first == 0 ? Size::kSideBefore : Size::kSideAfter;
    } else {
      tensor.bytes.c[0] = base;
      for (std::size_t v = 1; v <= kVariables; ++v) {
        const std::int64_t rise = samples[v].tensors()[t].bytes.count() - base;
        linear_ = linear_ && rise % kStride == 0;
        tensor.bytes.c[v] = rise / kStride;
        tensor.bytes.c[0] -= tensor.bytes.c[v] * kBase;
      }
      linear_ =
          linear_ && tensor.bytes.at(check) == samples[kSamples - 1].tensors()[t].bytes.count();
      if (tensor.bytes.is_constant()) {
        constant[t] = charged_bytes(*in_.stack, Bytes{base}).count();
        continue;
      }
    }
    index[t] = static_cast<std::int32_t>(tensors_.size());
    tensors_.push_back(tensor);
  }
  linear_ = linear_ && tensors_.size() <= 32;
  if (!linear_) return;

  std::vector<AliveSet> sets;
  for (OpIndex i = 0; i < samples[0].size(); ++i) {
    AliveSet set;
    for (std::size_t t = 0; t < all.size(); ++t) {
      if (all[t].first > i || all[t].last < i) continue;
      if (index[t] < 0) {
        set.constant += constant[t];
      } else {
        set.varying |= std::uint32_t{1} << index[t];
      }
    }
    sets.push_back(set);
  }
  // A set inside another one can never be the peak.
  const auto inside = [](const AliveSet& a, const AliveSet& b) {
    return (a.varying & ~b.varying) == 0 && a.constant <= b.constant;
  };
  for (const AliveSet& set : sets) {
    if (std::any_of(sets_.begin(), sets_.end(), [&](const auto& s) { return inside(set, s); })) {
      continue;
    }
    std::erase_if(sets_, [&](const auto& s) { return inside(s, set); });
    sets_.push_back(set);
  }
}

GraphCost CompiledLayer::cost(const DecodeMoment& moment) const {
  if (!linear_) return evaluate(decode_layer(in_, layer_, moment), roofline_);
  double time = constant_time_;
  for (const VaryingOp& op : ops_) {
    if (op.choice != nullptr) {
      constexpr double kMicro = 1e-6;
      time +=
          kMicro * op.times * op.choice->microseconds(with_length(op.call, op.length.at(moment)));
      continue;
    }
    time += op.terms.at(op.flops.at(moment), op.bytes.at(moment));
  }
  return {.time = Seconds{time},
          .flops = flops_.at(moment),
          .bytes = bytes_.at(moment),
          .at_peak = Seconds{at_peak_.at(moment)}};
}

bool CompiledLayer::is_convex() const {
  return linear_ && std::none_of(ops_.begin(), ops_.end(),
                                 [](const VaryingOp& op) { return op.choice != nullptr; });
}

Bytes CompiledLayer::alive_peak(const DecodeMoment& moment) const {
  if (!linear_) return decode_layer(in_, layer_, moment).alive_peak().bytes;
  std::array<std::int64_t, 32> size{};
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const VaryingTensor& tensor = tensors_[t];
    if (tensor.how == Size::kLinear) {
      size[t] = charged_bytes(*in_.stack, Bytes{tensor.bytes.at(moment)}).count();
    } else {
      const bool before = tensor.how == Size::kSideBefore;
      size[t] = layer_cache(in_, layer_, before ? moment.before : moment.after).side.count();
    }
  }
  std::int64_t peak = 0;
  for (const AliveSet& set : sets_) {
    std::int64_t sum = set.constant;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if ((set.varying >> t & 1U) != 0) sum += size[t];
    }
    peak = std::max(peak, sum);
  }
  return Bytes{peak};
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

const CompiledLayer& CompiledDecode::layer(std::size_t group, const DecodeMoment& moment) {
  const std::size_t form = static_cast<std::size_t>(moment.change) * 2 + (moment.evicts ? 1 : 0);
  const auto like = static_cast<std::size_t>(groups_[group].like);
  auto& slot = forms_[like][form];
  if (!slot) {
    slot = std::make_unique<CompiledLayer>(in_, groups_[like].first, moment.change, moment.evicts,
                                           roofline_);
  }
  return *slot;
}

}  // namespace kvsim
