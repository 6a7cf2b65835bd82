#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/methods/view/entry_table.hpp"

namespace kvsim {

/// An entry that leaves, and the staying entry with the most similar key.
struct NearestKept {
  std::int32_t id = -1;    // the entry that leaves
  std::int32_t into = -1;  // the most similar entry, ties to the older; -1: nothing stays
  double cosine = 0;
};

/// For entries that leave, finds the most similar key among those that stay.
class NearestSearch {
 public:
  /// For dropped tokens of a prompt (ascending positions; `keys` [prompt, d]), among all entries of
  /// the table.
  [[nodiscard]] const std::vector<NearestKept>& of_prompt(const EntryTable& entries,
                                                          std::span<const std::int32_t> losers,
                                                          std::span<const float> keys);
  /// For entries of the table, among all others that do not leave.
  [[nodiscard]] const std::vector<NearestKept>& of_leaving(const EntryTable& entries,
                                                           std::span<const std::int32_t> leaving);

 private:
  void search(const EntryTable& entries, std::span<const std::int32_t> leaving,
              std::span<const float> rows);

  std::vector<NearestKept> found_;
  std::vector<double> cosine_;
  std::vector<bool> leaves_;        // by slot
  std::vector<std::int32_t> stay_;  // ids ascending
  std::vector<float> rows_, stayed_;
};

}  // namespace kvsim
