#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "models/cost/op.hpp"
#include "models/units/check.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The largest set of simultaneously alive tensors along the schedule, by owner.
struct AlivePeak {
  OpIndex at = 0;
  Bytes bytes;
  std::array<Bytes, kOwners> by_owner;
};

/// A directed acyclic graph of operators with the tensors they hold, from which a step's time,
/// traffic and transient memory are derived. The schedule is the order of insertion; an operator
/// may only depend on earlier ones, so the graph cannot have a cycle.
class OpGraph {
 public:
  OpGraph();
  OpGraph(const OpGraph& other);
  OpGraph& operator=(const OpGraph&) = delete;
  OpGraph(OpGraph&&) noexcept;
  OpGraph& operator=(OpGraph&&) noexcept;
  ~OpGraph();

  /// Appends `op`, which depends on `after`. Throws ContractError if one of those is later.
  OpIndex add(const Op& op, std::initializer_list<OpIndex> after = {});

  /// Holds a tensor of `size`, for which the allocator reserves `bytes`, starting with operator
  /// `first`; returns its index. It lives until the last operator set by `release`, or beyond the
  /// graph's end without a `release`.
  std::size_t hold(std::string_view name, Owner owner, const Product& size, Bytes bytes,
                   OpIndex first);
  void release(std::size_t tensor, OpIndex last);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ops_.size()); }
  [[nodiscard]] const Op& op(OpIndex index) const {
    KVSIM_CHECK(index >= 0 && index < size(), "no operator {}", index);
    return ops_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }
  /// Returns pairs (operator, dependent operator) in the order of the dependent operators.
  [[nodiscard]] std::span<const std::pair<OpIndex, OpIndex>> edges() const { return edges_; }

  /// Checks with Boost's topological sort, independently of `add`.
  [[nodiscard]] bool is_acyclic() const;
  /// Returns the length of the longest path if operator i takes `durations[i]` and each stream runs
  /// its operators in order.
  [[nodiscard]] Seconds critical_path(std::span<const Seconds> durations) const;
  [[nodiscard]] AlivePeak alive_peak() const;

 private:
  struct Storage;
  std::vector<Op> ops_;
  std::vector<std::pair<OpIndex, OpIndex>> edges_;
  bool one_stream_ = true;
  std::vector<Tensor> tensors_;
};

}  // namespace kvsim
