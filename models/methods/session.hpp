#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/math/attend.hpp"
#include "models/math/rope.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/entry_table.hpp"

namespace kvsim {

/// Where a session stands.
struct SessionPlace {
  std::int32_t layer = 0;
  std::int32_t group = 1;  // query heads that share this stored head
  std::int32_t head_dim = 0;
  std::int32_t tokens = 0;  // length of the whole trace
  double scale = 0;
  const Rope* rope = nullptr;  // for methods that re-rotate keys; not owned
};

/// One (layer, stored head) of one sequence under a method, step by step, on the replay clock:
/// append, attend, learn, compress. So bytes read at a step are those of the cache before
/// compression.
class HeadSession {
 public:
  /// Errors: ContractError if the method re-rotates and no rope is given.
  HeadSession(const ComposedMethod& method, const SessionPlace& place);

  /// The prompt's keys and values [prompt, d], and what may be learned from its queries.
  void prefill(std::span<const float> keys, std::span<const float> values, PromptScores& scores);

  /// One decode step: q [group, d], the new token's key and value [d]. Its position is one more
  /// than the last. Returns the attention of the step, valid until the next call.
  const GroupAttention& step(std::span<const float> q, std::span<const float> key,
                             std::span<const float> value);

  [[nodiscard]] const EntryTable& entries() const { return entries_; }
  [[nodiscard]] const Selector& selector() const { return *selector_; }
  /// Whether the last step dropped or merged an entry.
  [[nodiscard]] bool compressed() const { return compressed_; }
  /// Positions each entry stands for, ascending; entries by first member.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> kept() const;

 private:
  void append(std::int32_t id, std::span<const float> key, std::span<const float> value);
  void compress();
  void round_merged();
  void attend(std::span<const float> q);

  const Composition& method_;
  SessionPlace place_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<Merger> merger_;
  GroupAttention attention_;
  EntryTable entries_;
  std::int32_t budget_;       // entries
  std::int32_t newest_ = -1;  // position of the newest token
  bool compressed_ = false;
  std::vector<double> bias_;
  std::vector<float> rotated_q_, rotated_keys_;
};

}  // namespace kvsim
