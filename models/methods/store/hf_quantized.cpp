// The quantised caches of transformers (cache_utils.py: QuantizedLayer, formerly QuantizedCache):
// rows in groups of channels; the newest tokens stay in full precision until R of them are
// quantised together with all others. The prompt is quantised at once. At every step the whole
// cache is dequantised by the backend's operators and concatenated with the newest rows into
// tensors that attention reads.

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "models/math/quantise.hpp"
#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

/// Bytes that a backend's operators read and write per element, and the number of operators.
struct Passes {
  double read = 0, written = 0;
  std::int32_t launches = 0;
};

struct HfShape {
  std::int32_t bits = 4;
  std::int32_t group = 64;
  std::int32_t residual = 128;
  bool hqq = false;

  [[nodiscard]] std::int32_t group_of(std::int32_t head_dim) const {
    return std::min(group, head_dim);
  }
  [[nodiscard]] std::int32_t levels() const { return (1 << bits) - 1; }
  /// Codes, and a 16-bit scale and zero per group.
  [[nodiscard]] std::int64_t row_bytes(std::int32_t head_dim) const {
    return (static_cast<std::int64_t>(head_dim) * bits + 7) / 8 +
           4LL * (head_dim / group_of(head_dim));
  }
  /// Number of generated tokens in full precision.
  [[nodiscard]] std::int64_t waiting(std::int64_t tokens) const {
    return residual > 0 ? tokens % residual : 0;
  }
  /// Converts codes to 16-bit numbers. Sources: optimum-quanto tensor/qbits.py, QBitsDequantizer
  /// (unpack to bytes; scale times codes; minus the shift); hqq core/bitpack.py, unpack_*bit_u8
  /// (for each part of a byte: mask, shift, copy into a 16-bit tensor), core/quantize.py,
  /// Quantizer.dequantize (minus zero, times scale).
  [[nodiscard]] Passes dequantise() const {
    const double code = bits / 8.0;
    if (!hqq) return {.read = code + 1 + 2, .written = 1 + 2 + 2, .launches = 3};
    if (bits == 8) return {.read = 1 + 2 + 2, .written = 2 + 2 + 2, .launches = 3};
    const std::int32_t parts = 8 / bits;
    const double shifted = code * (parts - 1) / parts;  // the last part of a byte is not shifted
    return {.read = code + shifted + code + 2 + 2,
            .written = code + shifted + 2 + 2 + 2,
            .launches = 2 * parts + (parts - 1) + 2};
  }
  /// Minimum, maximum; subtraction, division, rounding, clamping; conversion to bytes; packing.
  [[nodiscard]] Passes quantise() const {
    const double code = bits / 8.0;
    return {.read = 2 * 2 + 4 * 2 + 2 + 1, .written = 4 * 2 + 1 + code, .launches = 8};
  }
};

class HfStore final : public Store {
 public:
  HfStore(const HfShape& shape, const SessionPlace& place, Dtype recorded)
      : shape_{shape},
        head_dim_{place.head_dim},
        row_bytes_{bytes_of(place.head_dim, recorded).count()} {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) round(entries, slot);
    count_ = entries.size();
  }
  void appended(EntryTable& entries, std::int32_t slot) override {
    waiting_.push_back(entries.id(slot));
    ++count_;
  }
  void stepped(EntryTable& entries) override {
    requantised_.clear();
    if (std::ssize(waiting_) < std::max(shape_.residual, 1)) return;
    for (const std::int32_t id : waiting_) round(entries, entries.slot_of(id));
    requantised_.swap(waiting_);
  }
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    if (!waits(entries.id(slot))) round(entries, slot);
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t id) override {
    waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), id), waiting_.end());
    --count_;
  }
  std::span<const std::int32_t> requantised() const override { return requantised_; }
  Bytes kv_bytes(const EntryTable& /*entries*/) const override {
    const auto whole = static_cast<std::int64_t>(waiting_.size());
    return Bytes{2 * ((count_ - whole) * shape_.row_bytes(head_dim_) + whole * row_bytes_)};
  }

 private:
  [[nodiscard]] bool waits(std::int32_t id) const {
    return std::find(waiting_.begin(), waiting_.end(), id) != waiting_.end();
  }
  void round(EntryTable& entries, std::int32_t slot) const {
    round_asymmetric_row(entries.mutable_key(slot), shape_.group_of(head_dim_), shape_.levels());
    round_asymmetric_row(entries.mutable_value(slot), shape_.group_of(head_dim_), shape_.levels());
  }

  HfShape shape_;
  std::int32_t head_dim_;
  std::int64_t row_bytes_;
  std::int64_t count_ = 0;
  std::vector<std::int32_t> waiting_;  // ids, ascending
  std::vector<std::int32_t> requantised_;
};

class HfRule final : public StoreRule {
 public:
  explicit HfRule(const HfShape& shape) : shape_{shape} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<HfStore>(shape_, place, recorded);
  }
  Dtype dtype(Dtype recorded) const override { return recorded; }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  bool by_count() const override { return false; }
  Bytes kv_bytes(std::int64_t prompt_entries, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    const std::int64_t whole = shape_.waiting(std::max<std::int64_t>(0, entries - prompt_entries));
    return Bytes{2 * ((entries - whole) * shape_.row_bytes(head_dim) +
                      whole * bytes_of(head_dim, recorded).count())};
  }
  double bits_per_element(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return shape_.bits + 32.0 / shape_.group_of(head_dim);
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    round_asymmetric_row(row, shape_.group_of(static_cast<std::int32_t>(row.size())),
                         shape_.levels());
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{shape_.row_bytes(head_dim)};
  }
  std::int32_t operators() const override {
    // For keys and for values, one concatenation more than in a plain cache.
    return 2 * (shape_.dequantise().launches + 1);
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double element = bits_of(shape.recorded) / 8.0;
    const double waiting = std::min(events.attended, shape_.residual / 2.0);
    const double packed = 2.0 * (events.attended - waiting) * shape.head_dim;
    const double all = 2.0 * events.attended * shape.head_dim;
    const Passes unpack = shape_.dequantise();
    const Passes pack = shape_.quantise();
    const double flushes = shape_.residual > 0 ? 1.0 / shape_.residual : 1.0;
    traffic.extra_flops += 2 * packed;
    traffic.side_read += packed * unpack.read + flushes * all * pack.read;
    traffic.side_write += packed * unpack.written + flushes * all * pack.written;
    traffic.attention_read = all * element;
    // The returned tensors, and the newest rows with the appended row.
    traffic.recopied += (all + 2.0 * waiting * shape.head_dim) * element;
    traffic.scratch += packed * element;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const double elements = 2.0 * static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim;
    const Passes pack = shape_.quantise();
    return {.flops = 4.0 * elements,
            .read = elements * pack.read,
            .written = elements * pack.written,
            .launches = 2 * pack.launches};
  }

 private:
  HfShape shape_;
};

std::shared_ptr<const StoreRule> resolve_hf(MethodResolver& resolver) {
  HfShape shape{.bits = resolved_code_bits(resolver),
                .group = static_cast<std::int32_t>(resolver.integer("quant_group")),
                .residual = static_cast<std::int32_t>(resolver.integer("residual")),
                .hqq = resolver.word("backend") == "hqq"};
  const std::int32_t d = resolver.site().shape.head_dim;
  if (d > 0 && d % shape.group_of(d) != 0) {
    resolver.refuse(fmt::format(
        "quant_group: expected a divisor of the head dimension {} or no less than it, got {}", d,
        shape.group));
  }
  if (!shape.hqq && shape.bits == 8) {
    resolver.refuse("bits: expected 2 or 4 (the codes of backend quanto), got 8");
  }
  return std::make_shared<HfRule>(shape);
}

}  // namespace

AxisChoice store_hf_quantized() {
  const std::string source = "transformers cache_utils.py, QuantizedLayer";
  return {.axis = "store",
          .name = "hf-quantized",
          .params = {code_bits_param(4, source),
                     integer_param(
                         "quant_group", "g", 64, 1, 65536,
                         "a divisor of the head dimension; at most the head dimension is used",
                         "channels of a group", source + ": q_group_size 64"),
                     integer_param("residual", "R", 128, 0, 1048576, ">= 0",
                                   "newest tokens that wait in full precision",
                                   source + ": residual_length 128"),
                     word_param("backend", {"quanto", "hqq"},
                                "library whose operators quantise and dequantise", source)},
          .make = &resolve_hf};
}

}  // namespace kvsim
