#pragma once

// Internal to sim/serve: sequences that an engine counts together.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/serve/cache/sequence.hpp"

namespace kvsim {

/// Sequences that get one token in every iteration of an engine, kept as counts: an iteration takes
/// O(1) time, regardless of their number. A member's own fields are written when it leaves, from
/// the number of iterations since it joined.
class SteadyDecodes {
 public:
  explicit SteadyDecodes(std::int64_t block_tokens) : block_tokens_{block_tokens} {}

  [[nodiscard]] std::size_t size() const { return size_; }
  /// Number of iterations with members since the engine started.
  [[nodiscard]] std::int64_t iterations() const { return iterations_; }
  /// Number of tokens that a member got since iterations() was `then`.
  [[nodiscard]] std::int32_t tokens_since(std::int64_t then) const {
    return static_cast<std::int32_t>(iterations_ - then);
  }
  /// Sum over members: tokens with cached keys and values.
  [[nodiscard]] std::int64_t computed() const { return computed_; }
  /// Members whose next token needs a new block.
  [[nodiscard]] std::int64_t growing() const { return size_ > 0 ? due_[phase(0)] : 0; }

  /// Returns whether a sequence may join: its last block has room for less than a block.
  [[nodiscard]] bool fits(const Sequence& s) const {
    return s.computed <= s.room && s.room - s.computed < block_tokens_;
  }
  /// Adds a sequence with `left` >= 1 tokens until its end.
  void add(RequestId id, const Sequence& s, std::int32_t left);
  /// Gives each member a token. Returns, unordered, the members for which it was the last; they are
  /// still members.
  [[nodiscard]] std::span<const RequestId> step();
  /// Removes a member that step() returned; its fields must be up to date.
  void remove(const Sequence& s);
  /// Removes all members.
  void clear();

 private:
  /// Index into due_ of the iteration in `ahead` iterations.
  [[nodiscard]] std::size_t phase(std::int64_t ahead) const {
    return static_cast<std::size_t>((iterations_ + ahead) % block_tokens_);
  }
  /// Moves all of ends_ into the heap.
  void sort_ends();

  std::int64_t block_tokens_;
  std::size_t size_ = 0;
  std::int64_t iterations_ = 0, computed_ = 0;
  std::vector<std::int64_t> due_;  // members by the iteration, modulo a block, in which they need a
                                   // block
  std::vector<std::pair<std::int64_t, RequestId>>
      ends_;  // the first sorted_: a heap, the earliest on top
  std::size_t sorted_ = 0;
  std::vector<RequestId> ended_;  // of the last step()
};

}  // namespace kvsim
