#include "models/cost/graph.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>

#include "models/units/check.hpp"

namespace kvsim {

using BoostGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, Op>;

struct OpGraph::Impl {
  BoostGraph graph;
};

OpGraph::OpGraph() : impl_{std::make_unique<Impl>()} {
  impl_->graph.m_vertices.reserve(40);
  tensors_.reserve(40);
}
OpGraph::OpGraph(OpGraph&&) noexcept = default;
OpGraph& OpGraph::operator=(OpGraph&&) noexcept = default;
OpGraph::~OpGraph() = default;

OpIndex OpGraph::add(const Op& op, std::initializer_list<OpIndex> after) {
  const auto vertex = boost::add_vertex(op, impl_->graph);
  for (const OpIndex before : after) {
    KVSIM_CHECK(before >= 0 && static_cast<std::size_t>(before) < vertex,
                "operator {} waits for one that is not before it", op.name);
    boost::add_edge(static_cast<std::size_t>(before), vertex, impl_->graph);
  }
  return static_cast<OpIndex>(vertex);
}

std::size_t OpGraph::hold(std::string_view name, Owner owner, Bytes bytes, OpIndex first) {
  KVSIM_CHECK(bytes >= Bytes{}, "tensor {} of negative size", name);
  tensors_.push_back({name, owner, bytes, first, std::numeric_limits<OpIndex>::max()});
  return tensors_.size() - 1;
}

void OpGraph::release(std::size_t tensor, OpIndex last) {
  KVSIM_CHECK(tensor < tensors_.size(), "no tensor {}", tensor);
  tensors_[tensor].last = last;
}

std::int32_t OpGraph::size() const {
  return static_cast<std::int32_t>(boost::num_vertices(impl_->graph));
}

const Op& OpGraph::op(OpIndex index) const {
  KVSIM_CHECK(index >= 0 && index < size(), "no operator {}", index);
  return impl_->graph[static_cast<std::size_t>(index)];
}

std::vector<std::pair<OpIndex, OpIndex>> OpGraph::edges() const {
  std::vector<std::pair<OpIndex, OpIndex>> out;
  for (OpIndex u = 0; u < size(); ++u) {
    const auto [begin, end] = boost::adjacent_vertices(static_cast<std::size_t>(u), impl_->graph);
    for (auto v = begin; v != end; ++v) out.emplace_back(u, static_cast<OpIndex>(*v));
  }
  return out;
}

bool OpGraph::is_acyclic() const {
  std::vector<std::size_t> order;
  try {
    boost::topological_sort(impl_->graph, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    return false;
  }
  return true;
}

Seconds OpGraph::critical_path(std::span<const Seconds> durations) const {
  const std::size_t n = boost::num_vertices(impl_->graph);
  KVSIM_CHECK(durations.size() == n, "{} durations for {} operators", durations.size(), n);
  std::vector<Seconds> ready(n);
  std::vector<Seconds> stream_free;
  Seconds end;
  for (std::size_t u = 0; u < n; ++u) {
    const auto stream = static_cast<std::size_t>(impl_->graph[u].stream);
    if (stream >= stream_free.size()) stream_free.resize(stream + 1);
    const Seconds finish = std::max(ready[u], stream_free[stream]) + durations[u];
    stream_free[stream] = finish;
    end = std::max(end, finish);
    const auto [begin, stop] = boost::adjacent_vertices(u, impl_->graph);
    for (auto v = begin; v != stop; ++v) ready[*v] = std::max(ready[*v], finish);
  }
  return end;
}

AlivePeak OpGraph::alive_peak() const {
  const OpIndex n = size();
  // Sum of what begins minus what ended, one operator after the other.
  std::vector<std::int64_t> change(static_cast<std::size_t>(n) + 1);
  for (const Tensor& t : tensors_) {
    if (t.last < t.first || t.first >= n) continue;
    change[static_cast<std::size_t>(t.first)] += t.bytes.count();
    if (t.last < n) change[static_cast<std::size_t>(t.last) + 1] -= t.bytes.count();
  }
  AlivePeak peak;
  std::int64_t alive = 0;
  for (OpIndex i = 0; i < n; ++i) {
    alive += change[static_cast<std::size_t>(i)];
    if (alive > peak.bytes.count()) {
      peak.bytes = Bytes{alive};
      peak.at = i;
    }
  }
  for (const Tensor& t : tensors_) {
    if (t.first <= peak.at && peak.at <= t.last) {
      peak.by_owner[static_cast<std::size_t>(t.owner)] += t.bytes;
    }
  }
  return peak;
}

}  // namespace kvsim
