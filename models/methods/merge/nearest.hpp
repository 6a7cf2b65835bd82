#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/methods/view/entry_table.hpp"

namespace kvsim {

/// An evicted entry and the remaining entry with the most similar key.
struct NearestKept {
  std::int32_t id = -1;    // the evicted entry
  std::int32_t into = -1;  // the most similar entry, ties to the older; -1: none remains
  double cosine = 0;
};

/// For evicted entries, finds the most similar key among the remaining entries.
class NearestSearch {
 public:
  /// Searches for dropped tokens of a prompt (ascending positions; `keys` [prompt, d]) among all
  /// entries of the table.
  [[nodiscard]] const std::vector<NearestKept>& of_prompt(const EntryTable& entries,
                                                          std::span<const std::int32_t> losers,
                                                          std::span<const float> keys);
  /// Searches for entries of the table among all entries that do not leave.
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
