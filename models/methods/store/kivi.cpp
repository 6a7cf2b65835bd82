// KIVI (Liu et al. 2024): keys quantised per channel in groups of tokens, values per token. The
// newest tokens stay in full precision until a group is complete.

#include <algorithm>

#include <fmt/format.h>

#include "models/math/quantise.hpp"
#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

struct KiviShape {
  std::int32_t bits = 2;
  std::int32_t group = 32;      // g, at most the head dimension
  std::int32_t residual = 128;  // R; 0: none

  [[nodiscard]] std::int32_t group_of(std::int32_t head_dim) const {
    return std::min(group, head_dim);
  }
  [[nodiscard]] std::int32_t levels() const { return (1 << bits) - 1; }
  /// Number of keys that are quantised together.
  [[nodiscard]] std::int64_t flush(std::int32_t head_dim) const {
    return residual > 0 ? residual : group_of(head_dim);
  }
  /// Bytes of one group of keys: codes, and step and zero per channel.
  [[nodiscard]] std::int64_t key_group_bytes(std::int32_t head_dim) const {
    const std::int64_t codes = static_cast<std::int64_t>(group_of(head_dim)) * head_dim * bits;
    return (codes + 7) / 8 + 4LL * head_dim;
  }
  [[nodiscard]] std::int64_t value_bytes(std::int32_t head_dim) const {
    const std::int32_t g = group_of(head_dim);
    return (static_cast<std::int64_t>(head_dim) * bits + 7) / 8 + 4LL * ((head_dim + g - 1) / g);
  }
};

class KiviStore final : public Store {
 public:
  KiviStore(const KiviShape& shape, const SessionPlace& place, Dtype recorded)
      : shape_{shape},
        head_dim_{place.head_dim},
        row_bytes_{bytes_of(place.head_dim, recorded).count()},
        state_(static_cast<std::size_t>(place.tokens)) {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    std::vector<std::int32_t> ids{entries.ids().begin(), entries.ids().end()};
    std::sort(ids.begin(), ids.end());
    for (const std::int32_t id : ids) {
      // Prompts that are merged token by token were already added one by one.
      if (state(id).known) forget(id);
      if (entries.is_merged(entries.slot_of(id))) {
        keep_apart(id);
      } else {
        wait(id);
      }
    }
    stepped(entries);
  }
  void appended(EntryTable& entries, std::int32_t slot) override { wait(entries.id(slot)); }
  void stepped(EntryTable& entries) override {
    requantised_.clear();
    const auto flush = static_cast<std::size_t>(shape_.flush(head_dim_));
    std::size_t flushed = 0;
    while (keys_waiting_.size() - flushed >= flush) {
      flush_keys(entries, std::span{keys_waiting_}.subspan(flushed, flush));
      flushed += flush;
    }
    keys_waiting_.erase(keys_waiting_.begin(),
                        keys_waiting_.begin() + static_cast<std::ptrdiff_t>(flushed));
    const auto residual = static_cast<std::size_t>(shape_.residual);
    const std::size_t aged =
        values_waiting_.size() > residual ? values_waiting_.size() - residual : 0;
    for (std::size_t i = 0; i < aged; ++i) {
      const std::int32_t id = values_waiting_[i];
      round_asymmetric_row(entries.mutable_value(entries.slot_of(id)), shape_.group_of(head_dim_),
                           shape_.levels());
      state(id).value_quantised = true;
      ++values_quantised_;
      requantised_.push_back(id);
    }
    values_waiting_.erase(values_waiting_.begin(),
                          values_waiting_.begin() + static_cast<std::ptrdiff_t>(aged));
  }
  /// A merged row stays in full precision, because later merges need it.
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    const std::int32_t id = entries.id(slot);
    if (state(id).apart) return;
    forget(id);
    keep_apart(id);
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t id) override { forget(id); }
  std::span<const std::int32_t> requantised() const override { return requantised_; }
  Bytes kv_bytes(const EntryTable& /*entries*/) const override {
    const auto whole_rows =
        static_cast<std::int64_t>(keys_waiting_.size() + values_waiting_.size()) + 2 * apart_;
    return Bytes{groups_alive_ * shape_.key_group_bytes(head_dim_) +
                 values_quantised_ * shape_.value_bytes(head_dim_) + whole_rows * row_bytes_};
  }
  void report(Counts& counts) const override {
    counts["kivi_holes"] += static_cast<double>(holes_);
  }

 private:
  struct State {
    std::int32_t key_group = -1;
    bool value_quantised = false;
    bool apart = false;  // merged, in full precision
    bool known = false;  // held: in one of these states or buffered
  };
  State& state(std::int32_t id) { return state_[static_cast<std::size_t>(id)]; }
  void wait(std::int32_t id) {
    state(id) = {.known = true};
    keys_waiting_.push_back(id);
    values_waiting_.push_back(id);
  }
  void keep_apart(std::int32_t id) {
    state(id) = {.key_group = -1, .value_quantised = false, .apart = true, .known = true};
    ++apart_;
  }
  void forget(std::int32_t id) {
    State& one = state(id);
    one.known = false;
    if (one.apart) {
      one.apart = false;
      --apart_;
      return;
    }
    const auto drop = [id](std::vector<std::int32_t>& from) {
      from.erase(std::remove(from.begin(), from.end(), id), from.end());
    };
    if (one.key_group < 0) {
      drop(keys_waiting_);
    } else {
      // Leaves a hole: the group's bytes are freed with its last token.
      ++holes_;
      if (--alive_[static_cast<std::size_t>(one.key_group)] == 0) {
        --groups_alive_;
        holes_ -= shape_.group_of(head_dim_);
      }
    }
    if (one.value_quantised) {
      --values_quantised_;
    } else {
      drop(values_waiting_);
    }
  }
  void flush_keys(EntryTable& entries, std::span<const std::int32_t> ids) {
    const auto d = static_cast<std::size_t>(head_dim_);
    scratch_.resize(ids.size() * d);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::copy_n(entries.key(entries.slot_of(ids[i])).data(), d, scratch_.data() + i * d);
    }
    const std::int32_t g = shape_.group_of(head_dim_);
    round_asymmetric_columns(scratch_, head_dim_, g, shape_.levels());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::copy_n(scratch_.data() + i * d, d, entries.mutable_key(entries.slot_of(ids[i])).data());
      if (i % static_cast<std::size_t>(g) == 0) {
        alive_.push_back(0);
        ++groups_alive_;
      }
      ++alive_.back();
      state(ids[i]).key_group = static_cast<std::int32_t>(alive_.size()) - 1;
      requantised_.push_back(ids[i]);
    }
  }

  KiviShape shape_;
  std::int32_t head_dim_;
  std::int64_t row_bytes_;
  std::vector<State> state_;                                 // by id
  std::vector<std::int32_t> keys_waiting_, values_waiting_;  // ids, ascending
  std::vector<std::int32_t> alive_;                          // tokens left in each key group
  std::int64_t groups_alive_ = 0, values_quantised_ = 0, apart_ = 0, holes_ = 0;
  std::vector<std::int32_t> requantised_;
  std::vector<float> scratch_;
};

class KiviRule final : public StoreRule {
 public:
  KiviRule(const KiviShape& shape, bool copy) : shape_{shape}, copy_{copy} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<KiviStore>(shape_, place, recorded);
  }
  Dtype dtype(Dtype recorded) const override { return recorded; }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  bool groups_tokens() const override { return true; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    const std::int64_t keys = entries - entries % shape_.flush(head_dim);
    const std::int64_t values = std::max<std::int64_t>(entries - shape_.residual, 0);
    const std::int64_t whole_rows = (entries - keys) + (entries - values);
    return Bytes{keys / shape_.group_of(head_dim) * shape_.key_group_bytes(head_dim) +
                 values * shape_.value_bytes(head_dim) +
                 whole_rows * bytes_of(head_dim, recorded).count()};
  }
  double bits_per_element(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return shape_.bits + 32.0 / shape_.group_of(head_dim);
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    round_asymmetric_row(row, shape_.group_of(static_cast<std::int32_t>(row.size())),
                         shape_.levels());
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{shape_.value_bytes(head_dim)};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    add_dequant(traffic, events, shape, copy_);
    // One key and one value per step leave full precision, averaged over flushes.
    const double d = shape.head_dim;
    traffic.move_read += 2.0 * d * bits_of(shape.recorded) / 8.0;
    traffic.move_write += 2.0 * d * bits_per_element(shape.head_dim, shape.recorded) / 8.0;
    // The released code (llama_kivi.py) concatenates the packed values, which grow by one, and the
    // buffered rows at every step. It concatenates the packed keys when a group is complete.
    const double packed = std::max(0.0, events.attended - shape_.residual);
    const double waiting = std::min(events.attended, 1.5 * shape_.residual);
    const auto flush = static_cast<double>(shape_.flush(shape.head_dim));
    const double key = static_cast<double>(shape_.key_group_bytes(shape.head_dim)) /
                       shape_.group_of(shape.head_dim);
    const auto value = static_cast<double>(shape_.value_bytes(shape.head_dim));
    traffic.repacked += packed * (value + key / flush);
    traffic.recopied += waiting * d * bits_of(shape.recorded) / 8.0;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const double elements = 2.0 * static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim;
    // The bytes are included in the cache write: rows are read once and packed. Two launches pack
    // keys and values, two more copy the newest rows.
    PrefillExtra extra;
    extra.flops = 4.0 * elements;  // minimum, maximum, scale, round
    extra.launches = 2;
    return extra;
  }

 private:
  KiviShape shape_;
  bool copy_;
};

std::shared_ptr<const StoreRule> resolve_kivi(MethodResolver& resolver) {
  KiviShape shape{.bits = resolved_code_bits(resolver),
                  .group = static_cast<std::int32_t>(resolver.integer("quant_group")),
                  .residual = static_cast<std::int32_t>(resolver.integer("residual"))};
  const std::int32_t d = resolver.site().shape.head_dim;
  const std::int32_t g = d > 0 ? shape.group_of(d) : shape.group;
  if (d > g && d % g != 0) {
    resolver.refuse(fmt::format(
        "quant_group: expected a divisor of the head dimension {} or no less than it (values are "
        "grouped along channels), got {}",
        d, shape.group));
  }
  if (shape.residual % g != 0) {
    resolver.refuse(
        fmt::format("residual: expected a multiple of the group of {} (whole groups leave it; a "
                    "group is no more than the head dimension), got {}",
                    g, shape.residual));
  }
  return std::make_shared<KiviRule>(shape, resolver.word("dequant") == "copy");
}

}  // namespace

AxisChoice store_kivi() {
  return {.axis = "store",
          .name = "kivi",
          .params = {code_bits_param(2, "KIVI: 2 (and 4)"),
                     integer_param("quant_group", "g", 32, 1, 65536,
                                   ">= 1; at most the head dimension is used",
                                   "tokens of a key group, channels of a value group",
                                   "KIVI's LongBench settings: 32"),
                     integer_param(
                         "residual", "R", 128, 0, 1048576, "a multiple of the group; 0 for none",
                         "newest tokens kept in full precision", "KIVI's LongBench settings: 128"),
                     dequant_param()},
          .make = &resolve_kivi};
}

}  // namespace kvsim
