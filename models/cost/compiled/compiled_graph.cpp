#include "models/cost/compiled/compiled_graph.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

/// Whether two operators are equal except for values that may vary with the counts.
bool same_kind(const Op& a, const Op& b) {
  return a.name == b.name && a.family == b.family && a.launches == b.launches &&
         a.stream == b.stream && a.dtype == b.dtype && a.blocks == b.blocks &&
         a.exchange == b.exchange && a.kernel.has_value() == b.kernel.has_value() &&
         (!a.kernel || (a.kernel->format == b.kernel->format &&
                        a.kernel->times == b.kernel->times && a.kernel->chunk == b.kernel->chunk));
}

}  // namespace

template <std::size_t V>
CompiledGraph<V>::CompiledGraph(const Stack& stack, const Roofline& roofline,
                                std::span<const Sample> samples)
    : stack_{&stack}, roofline_{&roofline}, linear_{true} {
  KVSIM_CHECK(samples.size() == kSamples, "{} samples, not {}", samples.size(), kSamples);
  for (std::size_t v = 0; v < V; ++v) {
    for (std::size_t other = 0; other < V; ++other) {
      const bool moved = samples[v + 1].counts[other] != samples[0].counts[other];
      KVSIM_CHECK(moved == (other == v), "sample {} does not move count {} alone", v + 1, v);
    }
  }
  for (const Sample& sample : samples) {
    linear_ = linear_ && sample.graph.size() == samples[0].graph.size() &&
              sample.graph.tensors().size() == samples[0].graph.tensors().size();
  }
  if (linear_) reduce_ops(samples);
  if (linear_) reduce_tensors(samples);
}

template <std::size_t V>
template <class ValueOf>
typename CompiledGraph<V>::template Linear<double> CompiledGraph<V>::fit(
    std::span<const Sample> samples, ValueOf&& value_of) {
  const Sample& base = samples[0];
  Linear<double> line;
  const double start = value_of(base.graph);
  line.c[0] = start;
  for (std::size_t v = 1; v <= V; ++v) {
    const std::int64_t stride = samples[v].counts[v - 1] - base.counts[v - 1];
    line.c[v] = (value_of(samples[v].graph) - start) / static_cast<double>(stride);
    line.c[0] -= line.c[v] * static_cast<double>(base.counts[v - 1]);
  }
  const Sample& check = samples[kSamples - 1];
  linear_ = linear_ && near(line.at(check.counts), value_of(check.graph));
  return line;
}

template <std::size_t V>
void CompiledGraph<V>::reduce_ops(std::span<const Sample> samples) {
  const OpGraph& base = samples[0].graph;
  for (OpIndex i = 0; i < base.size(); ++i) {
    const Op& op = base.op(i);
    linear_ = linear_ && op.stream == 0;
    const bool same = std::all_of(samples.begin() + 1, samples.end(),
                                  [&](const Sample& s) { return s.graph.op(i) == op; });
    if (same) {
      constant_time_ += roofline_->time(op).count();
      flops_.c[0] += op.flops.count();
      bytes_.c[0] += op.bytes_read + op.bytes_written;
      at_peak_.c[0] += roofline_->at_peak(op).count();
      continue;
    }
    for (const Sample& s : samples) linear_ = linear_ && same_kind(s.graph.op(i), op);
    if (!linear_) return;
    VaryingOp varying{
        .flops = fit(samples, [i](const OpGraph& g) { return g.op(i).flops.count(); }),
        .bytes = fit(samples,
                     [i](const OpGraph& g) { return g.op(i).bytes_read + g.op(i).bytes_written; }),
        .terms = roofline_->terms(op),
        .choice = roofline_->kernel(op)};
    if (varying.choice != nullptr) {
      varying.call = op.kernel->call;
      varying.times = op.kernel->times;
      varying.length =
          fit(samples, [i](const OpGraph& g) { return length_of(g.op(i).kernel->call); });
      for (const Sample& s : samples) {
        linear_ =
            linear_ && with_length(s.graph.op(i).kernel->call, 1) == with_length(varying.call, 1);
      }
    }
    flops_.add(varying.flops);
    bytes_.add(varying.bytes);
    at_peak_.add(
        fit(samples, [&](const OpGraph& g) { return roofline_->at_peak(g.op(i)).count(); }));
    if (varying.choice != nullptr && varying.length.is_constant()) {
      constant_time_ += roofline_->time(op).count();
    } else {
      ops_.push_back(varying);
    }
  }
}

template <std::size_t V>
void CompiledGraph<V>::reduce_tensors(std::span<const Sample> samples) {
  const OpGraph& base = samples[0].graph;
  const Sample& check = samples[kSamples - 1];
  const std::span<const Tensor> all = base.tensors();
  const auto n = static_cast<std::size_t>(base.size());
  // Bytes alive at each operator: started tensors minus those that have ended.
  std::vector<AliveSet> sets(n + 1);
  for (std::size_t t = 0; t < all.size(); ++t) {
    const Tensor& tensor = all[t];
    for (const Sample& s : samples) {
      const Tensor& other = s.graph.tensors()[t];
      linear_ = linear_ && other.first == tensor.first && other.last == tensor.last &&
                other.owner == tensor.owner;
    }
    if (!linear_) return;
    const auto first = static_cast<std::size_t>(tensor.first);
    if (tensor.last < tensor.first || first >= n) continue;
    const std::size_t last = std::min(static_cast<std::size_t>(tensor.last), n - 1);

    VaryingTensor varying;
    const std::int64_t start = tensor.bytes.count();
    if (tensor.owner == Owner::kSideData) {
      varying.how = tensor.first == 0 ? Size::kSideFirst : Size::kSideLater;
      has_side_ = true;
    } else {
      varying.bytes.c[0] = start;
      for (std::size_t v = 1; v <= V; ++v) {
        const std::int64_t stride = samples[v].counts[v - 1] - samples[0].counts[v - 1];
        const std::int64_t rise = samples[v].graph.tensors()[t].bytes.count() - start;
        linear_ = linear_ && rise % stride == 0;
        varying.bytes.c[v] = rise / stride;
        varying.bytes.c[0] -= varying.bytes.c[v] * samples[0].counts[v - 1];
      }
      linear_ = linear_ && varying.bytes.at(check.counts) == check.graph.tensors()[t].bytes.count();
      if (varying.bytes.is_constant()) {
        const std::int64_t charged = allocator_rounded(*stack_, Bytes{start}).count();
        sets[first].constant += charged;
        sets[last + 1].constant -= charged;
        continue;
      }
    }
    linear_ = linear_ && tensors_.size() < kMaxTensors;
    if (!linear_) return;
    const std::uint32_t bit = std::uint32_t{1} << tensors_.size();
    for (std::size_t i = first; i <= last; ++i) sets[i].varying |= bit;
    tensors_.push_back(varying);
  }
  for (std::size_t i = 1; i < n; ++i) sets[i].constant += sets[i - 1].constant;
  keep_largest(std::span{sets}.first(n));
}

/// A set that is a subset of another one can never be the peak.
template <std::size_t V>
void CompiledGraph<V>::keep_largest(std::span<const AliveSet> sets) {
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

template <std::size_t V>
bool CompiledGraph<V>::is_convex() const {
  return linear_ && std::none_of(ops_.begin(), ops_.end(),
                                 [](const VaryingOp& op) { return op.choice != nullptr; });
}

template <std::size_t V>
Seconds CompiledGraph<V>::time(const Counts& counts) const {
  constexpr double kMicro = 1e-6;
  double time = constant_time_;
  for (const VaryingOp& op : ops_) {
    if (op.choice != nullptr) {
      time +=
          kMicro * op.times * op.choice->microseconds(with_length(op.call, op.length.at(counts)));
    } else {
      time += op.terms.at(op.flops.at(counts), op.bytes.at(counts));
    }
  }
  return Seconds{time};
}

template <std::size_t V>
GraphCost CompiledGraph<V>::cost(const Counts& counts) const {
  return {.time = time(counts),
          .flops = flops_.at(counts),
          .bytes = bytes_.at(counts),
          .at_peak = Seconds{at_peak_.at(counts)}};
}

template <std::size_t V>
Bytes CompiledGraph<V>::alive_peak(const Counts& counts, const Side& side) const {
  std::array<std::int64_t, kMaxTensors> size;  // one per varying tensor
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const VaryingTensor& tensor = tensors_[t];
    size[t] = tensor.how == Size::kLinear
                  ? allocator_rounded(*stack_, Bytes{tensor.bytes.at(counts)}).count()
                  : (tensor.how == Size::kSideFirst ? side.first : side.later).count();
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

template class CompiledGraph<1>;
template class CompiledGraph<3>;

}  // namespace kvsim
