#include "models/cost/graph.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>

#include "models/units/check.hpp"

namespace kvsim {

namespace {

// Size of a layer of the largest models, so that building a graph needs no reallocation.
constexpr std::size_t kUsualOps = 32;
constexpr std::size_t kUsualTensors = 40;

}  // namespace

/// Memory of destroyed graphs, reused by new ones: steps build millions of graphs.
struct OpGraph::Storage {
  std::vector<Op> ops;
  std::vector<std::pair<OpIndex, OpIndex>> edges;
  std::vector<Tensor> tensors;

  static std::vector<Storage>& spare() {
    thread_local std::vector<Storage> all;
    return all;
  }
};

OpGraph::OpGraph() {
  std::vector<Storage>& spare = Storage::spare();
  if (spare.empty()) {
    ops_.reserve(kUsualOps);
    edges_.reserve(kUsualOps);
    tensors_.reserve(kUsualTensors);
    return;
  }
  ops_ = std::move(spare.back().ops);
  edges_ = std::move(spare.back().edges);
  tensors_ = std::move(spare.back().tensors);
  spare.pop_back();
}

OpGraph::OpGraph(const OpGraph& other) : OpGraph{} {
  ops_ = other.ops_;
  edges_ = other.edges_;
  one_stream_ = other.one_stream_;
  tensors_ = other.tensors_;
}
OpGraph::OpGraph(OpGraph&&) noexcept = default;
OpGraph& OpGraph::operator=(OpGraph&&) noexcept = default;

OpGraph::~OpGraph() {
  constexpr std::size_t kMaxSpare = 8;
  std::vector<Storage>& spare = Storage::spare();
  if (ops_.capacity() == 0 || spare.size() >= kMaxSpare) return;
  ops_.clear();
  edges_.clear();
  tensors_.clear();
  spare.push_back({std::move(ops_), std::move(edges_), std::move(tensors_)});
}

OpIndex OpGraph::add(const Op& op, std::initializer_list<OpIndex> after) {
  const OpIndex index = size();
  for (const OpIndex before : after) {
    KVSIM_CHECK(before >= 0 && before < index, "operator {} waits for one that is not before it",
                op.name);
    edges_.emplace_back(before, index);
  }
  ops_.push_back(op);
  one_stream_ = one_stream_ && op.stream == ops_.front().stream;
  return index;
}

std::size_t OpGraph::hold(std::string_view name, Owner owner, const Product& size, Bytes bytes,
                          OpIndex first) {
  KVSIM_CHECK(bytes >= Bytes{}, "tensor {} of negative size", name);
  tensors_.push_back({name, owner, bytes, first, std::numeric_limits<OpIndex>::max(), size});
  return tensors_.size() - 1;
}

void OpGraph::release(std::size_t tensor, OpIndex last) {
  KVSIM_CHECK(tensor < tensors_.size(), "no tensor {}", tensor);
  tensors_[tensor].last = last;
}

bool OpGraph::is_acyclic() const {
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
  Graph graph(ops_.size());
  for (const auto& [from, to] : edges_) {
    boost::add_edge(static_cast<std::size_t>(from), static_cast<std::size_t>(to), graph);
  }
  std::vector<std::size_t> order;
  try {
    boost::topological_sort(graph, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    return false;
  }
  return true;
}

Seconds OpGraph::critical_path(std::span<const Seconds> durations) const {
  const std::size_t n = ops_.size();
  KVSIM_CHECK(durations.size() == n, "{} durations for {} operators", durations.size(), n);
  Seconds end;
  if (one_stream_) {
    for (const Seconds duration : durations) end += duration;
    return end;
  }
  std::vector<Seconds> finish(n);
  std::vector<Seconds> stream_free;
  auto edge = edges_.begin();  // in the order of the dependent operators
  for (std::size_t u = 0; u < n; ++u) {
    const auto stream = static_cast<std::size_t>(ops_[u].stream);
    if (stream >= stream_free.size()) stream_free.resize(stream + 1);
    Seconds ready = stream_free[stream];
    for (; edge != edges_.end() && static_cast<std::size_t>(edge->second) == u; ++edge) {
      ready = std::max(ready, finish[static_cast<std::size_t>(edge->first)]);
    }
    finish[u] = ready + durations[u];
    stream_free[stream] = finish[u];
    end = std::max(end, finish[u]);
  }
  return end;
}

AlivePeak OpGraph::alive_peak() const {
  const OpIndex n = size();
  // Running sum of started minus ended tensors over the operators.
  constexpr std::size_t kMaxOnStack = 96;
  std::array<std::int64_t, kMaxOnStack + 1> small{};
  std::vector<std::int64_t> large;
  std::span<std::int64_t> change{small};
  if (ops_.size() > kMaxOnStack) {
    large.resize(ops_.size() + 1);
    change = large;
  }
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
