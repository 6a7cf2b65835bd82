#pragma once

// Formats that store every row separately. No row is buffered in full precision: attention uses
// even the newest row in its stored format.

#include <algorithm>
#include <memory>
#include <span>

#include "models/methods/store/store.hpp"

namespace kvsim {

/// The rounding of one stored head's rows.
class RowFormat {
 public:
  virtual ~RowFormat() = default;
  /// Called with the prompt's kept entries in the table, unrounded; `head` indexes scores.heads().
  virtual void calibrate(const EntryTable& /*entries*/, PromptScores& /*scores*/,
                         std::size_t /*head*/) {}
  virtual void round_key(std::span<float> key) const = 0;
  virtual void round_value(std::span<float> value) const = 0;
  /// With EndsRule: true if the token at position `id` stays in the recorded format. By default
  /// these are the first `first` tokens; a format that keeps other tokens must keep the same
  /// number.
  [[nodiscard]] virtual bool keeps(std::int32_t id, std::int64_t first) const { return id < first; }
  /// Rounds the entry at `slot`; for formats that depend on its position.
  virtual void round_entry(EntryTable& entries, std::int32_t slot) {
    round_key(entries.mutable_key(slot));
    round_value(entries.mutable_value(slot));
  }
};

class RowRule : public StoreRule {
 public:
  /// `copy`: whether codes are dequantised into a copy of the cache instead of inside the attention
  /// kernel.
  explicit RowRule(bool copy = false) : copy_{copy} {}
  [[nodiscard]] virtual std::unique_ptr<RowFormat> format(const SessionPlace& place,
                                                          Dtype recorded) const = 0;
  /// Bytes of one entry: a key and a value.
  [[nodiscard]] virtual Bytes entry_bytes(std::int32_t head_dim, Dtype recorded) const {
    return row_bytes(head_dim, recorded) * 2;
  }
  /// Bytes per head that do not depend on the number of entries.
  [[nodiscard]] virtual Bytes fixed_bytes(std::int32_t /*head_dim*/, Dtype /*recorded*/) const {
    return Bytes{0};
  }
  bool fixed_rows() const override { return fixed_bytes(1, Dtype::kFp16) == Bytes{0}; }
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override;
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    return entry_bytes(head_dim, recorded) * entries + fixed_bytes(head_dim, recorded);
  }
  double bits_per_element(std::int32_t head_dim, Dtype recorded) const override {
    return 4.0 * static_cast<double>(entry_bytes(head_dim, recorded).count()) / head_dim;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    add_dequant(traffic, events, shape, copy_);
  }
  std::int32_t operators() const override {
    // For keys and values each: magnitude, its maximum and the step; codes divided, rounded,
    // clamped, cast; code and step written; the product of all codes, and the new row in it.
    constexpr std::int32_t kTensor = 3 + 4 + 2 + 2;
    return copy_ ? 2 * kTensor : 0;  // otherwise part of the attention kernel
  }

 private:
  bool copy_;
};

/// Entries at both ends of a sequence that stay in the recorded format.
struct FullEnds {
  std::int64_t first = 0;  // tokens at the positions 0 … first - 1
  std::int64_t last = 0;   // the newest entries held, first tokens excluded, step's token included
  [[nodiscard]] std::int64_t of(std::int64_t entries) const {
    const std::int64_t at_start = std::min(entries, first);
    return at_start + std::min(entries - at_start, last);
  }
};

/// Parameters `full_first` and `full_last`, and the resolved ends. Errors: refuses shared layers
/// and merges, which write rows themselves.
[[nodiscard]] std::vector<ParamInfo> ends_params(std::int64_t first, std::int64_t last,
                                                 const std::string& source);
[[nodiscard]] FullEnds resolved_ends(MethodResolver& resolver);
/// Only performs these checks.
void check_ends(MethodResolver& resolver);

/// A row format that does not round the first and last rows. An entry is rounded before the
/// attention of the step in which it is no longer one of the last.
class EndsRule : public RowRule {
 public:
  explicit EndsRule(FullEnds ends) : ends_{ends} {}
  [[nodiscard]] FullEnds ends() const { return ends_; }
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override;
  bool fixed_rows() const override { return false; }
  /// False with full-precision ends: bytes depend on which of the first tokens are still held.
  bool by_count() const override { return ends_.first == 0 && ends_.last == 0; }
  bool rounds_rows_apart() const override { return false; }
  Bytes kv_bytes(std::int64_t prompt_entries, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    static_cast<void>(prompt_entries);
    const std::int64_t full = ends_.of(entries);
    return rounded_bytes(entries - full, head_dim, recorded) +
           bytes_of(2 * full * head_dim, recorded);
  }
  /// Bytes of `entries` rounded entries.
  [[nodiscard]] virtual Bytes rounded_bytes(std::int64_t entries, std::int32_t head_dim,
                                            Dtype recorded) const {
    return entry_bytes(head_dim, recorded) * entries + fixed_bytes(head_dim, recorded);
  }

 private:
  FullEnds ends_;
};

}  // namespace kvsim
