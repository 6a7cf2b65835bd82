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

/// The largest set of tensors alive at once along the schedule, by owner.
struct AlivePeak {
  OpIndex at = 0;
  Bytes bytes;
  std::array<Bytes, kOwners> by_owner;
};

/// A directed acyclic graph of operators with the tensors they hold: the one source of a step's
/// time, traffic and transient memory. The schedule is the order of insertion; an operator may only
/// depend on earlier ones, so the graph can't have a cycle.
class OpGraph {
 public:
  OpGraph();
  OpGraph(const OpGraph& other);
  OpGraph& operator=(const OpGraph&) = delete;
  OpGraph(OpGraph&&) noexcept;
  OpGraph& operator=(OpGraph&&) noexcept;
  ~OpGraph();

  /// Appends `op`, which waits for `after`. Errors: ContractError if one of those comes later.
  OpIndex add(const Op& op, std::initializer_list<OpIndex> after = {});

  /// Holds a tensor of `size`, for which the allocator gives `bytes`, from operator `first` on;
  /// returns its index. It lives until `release` says after which operator it goes, or past the
  /// graph's end without that.
  std::size_t hold(std::string_view name, Owner owner, const Product& size, Bytes bytes,
                   OpIndex first);
  void release(std::size_t tensor, OpIndex last);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ops_.size()); }
  [[nodiscard]] const Op& op(OpIndex index) const {
    KVSIM_CHECK(index >= 0 && index < size(), "no operator {}", index);
    return ops_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }
  /// (operator, one that waits for it), in the order of those that wait.
  [[nodiscard]] std::span<const std::pair<OpIndex, OpIndex>> edges() const { return edges_; }

  /// By Boost's topological sort: an independent check of what `add` enforces.
  [[nodiscard]] bool is_acyclic() const;
  /// Length of the longest path, where operator i takes `durations[i]` and each stream runs its
  /// operators in order.
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
