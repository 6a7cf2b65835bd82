// ThinK (Xu et al. 2024): the key channels with the least weight for the prompt's last queries are
// dropped; the newest keys keep all channels. Also masking, which hides evicted entries without
// freeing memory.

#include <algorithm>
#include <numeric>

#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

struct ThinkShape {
  double share = 0.4;        // share of channels that are dropped
  std::int32_t window = 32;  // number of last queries that weight the channels
  std::int32_t recent = 32;  // newest keys that keep all channels
  bool decoding = false;     // generated keys that are not recent are also pruned

  [[nodiscard]] std::int32_t dropped(std::int32_t head_dim) const {
    return static_cast<std::int32_t>(head_dim * share);
  }
};

class ThinkStore final : public Store {
 public:
  ThinkStore(const ThinkShape& shape, const SessionPlace& place, Dtype recorded)
      : shape_{shape},
        head_dim_{place.head_dim},
        element_bytes_{bits_of(recorded) / 8},
        pruned_(static_cast<std::size_t>(place.tokens), 0) {}

  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    choose(scores.heads()[head]);
    whole_.assign(entries.ids().begin(), entries.ids().end());
    std::sort(whole_.begin(), whole_.end());
    prune_aged(entries);
  }
  void appended(EntryTable& entries, std::int32_t slot) override {
    if (shape_.decoding) whole_.push_back(entries.id(slot));
  }
  void stepped(EntryTable& entries) override {
    if (shape_.decoding) prune_aged(entries);
  }
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    if (pruned_[static_cast<std::size_t>(entries.id(slot))] != 0) prune(entries, slot);
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t id) override {
    if (pruned_[static_cast<std::size_t>(id)] != 0) {
      pruned_[static_cast<std::size_t>(id)] = 0;
      --n_pruned_;
    } else {
      whole_.erase(std::remove(whole_.begin(), whole_.end(), id), whole_.end());
    }
  }
  Bytes kv_bytes(const EntryTable& entries) const override {
    const std::int64_t elements =
        2LL * entries.size() * head_dim_ - n_pruned_ * static_cast<std::int64_t>(dropped_.size());
    return Bytes{elements * element_bytes_ + (head_dim_ + 7) / 8};
  }

 private:
  /// Selects the channels with the smallest product of mean squared query and mean squared key.
  void choose(const HeadVectors& head) {
    const auto d = static_cast<std::size_t>(head_dim_);
    std::vector<double> of_queries(d, 0.0);
    std::vector<double> of_keys(d, 0.0);
    const auto add = [d](std::vector<double>& sum, std::span<const float> row) {
      for (std::size_t j = 0; j < d; ++j) {
        sum[j] += static_cast<double>(row[j]) * static_cast<double>(row[j]);
      }
    };
    for (std::int64_t t = 0; t < head.prompt; ++t) {
      add(of_keys, head.key(t));
      if (t < head.prompt - shape_.window) continue;
      for (std::int32_t g = 0; g < head.group; ++g) add(of_queries, head.query(g, t));
    }
    // Sums replace means: they differ by factors common to all channels.
    dropped_.resize(d);
    std::iota(dropped_.begin(), dropped_.end(), std::size_t{0});
    std::stable_sort(dropped_.begin(), dropped_.end(), [&](std::size_t a, std::size_t b) {
      return of_queries[a] * of_keys[a] < of_queries[b] * of_keys[b];
    });
    dropped_.resize(static_cast<std::size_t>(shape_.dropped(head_dim_)));
  }
  void prune(EntryTable& entries, std::int32_t slot) {
    const std::span<float> key = entries.mutable_key(slot);
    for (const std::size_t j : dropped_) key[j] = 0;
  }
  void prune_aged(EntryTable& entries) {
    const auto recent = static_cast<std::size_t>(shape_.recent);
    const std::size_t aged = whole_.size() > recent ? whole_.size() - recent : 0;
    for (std::size_t i = 0; i < aged; ++i) {
      prune(entries, entries.slot_of(whole_[i]));
      pruned_[static_cast<std::size_t>(whole_[i])] = 1;
    }
    n_pruned_ += static_cast<std::int64_t>(aged);
    whole_.erase(whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(aged));
  }

  ThinkShape shape_;
  std::int32_t head_dim_;
  std::int64_t element_bytes_;
  std::vector<std::size_t> dropped_;  // channels
  std::vector<char> pruned_;          // by id
  std::int64_t n_pruned_ = 0;
  std::vector<std::int32_t> whole_;  // ids that may still be pruned, ascending
};

class ThinkRule final : public StoreRule {
 public:
  explicit ThinkRule(const ThinkShape& shape) : shape_{shape} {}
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<ThinkStore>(shape_, place, recorded);
  }
  Dtype dtype(Dtype recorded) const override { return recorded; }
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  bool by_count() const override { return false; }
  Bytes kv_bytes(std::int64_t prompt_entries, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    const std::int64_t pruned =
        std::max<std::int64_t>((shape_.decoding ? entries : prompt_entries) - shape_.recent, 0);
    return Bytes{(2 * entries * head_dim - pruned * shape_.dropped(head_dim)) *
                     (bits_of(recorded) / 8) +
                 (head_dim + 7) / 8};
  }
  double bits_per_element(std::int32_t head_dim, Dtype recorded) const override {
    return bits_of(recorded) * (1.0 - 0.5 * shape_.dropped(head_dim) / head_dim);
  }
  void add_step(StepTraffic& traffic, const StepEvents& /*events*/,
                const HeadShape& shape) const override {
    // Queries are gathered to the remaining channels.
    const double bytes =
        static_cast<double>(shape.group) * shape.head_dim * bits_of(shape.recorded) / 8.0;
    traffic.side_read += bytes;
    traffic.side_write += bytes;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const double keys = static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim;
    const double queries = static_cast<double>(std::min<std::int64_t>(shape_.window, prompt)) *
                           shape.n_heads * shape.head_dim;
    PrefillExtra extra;
    extra.flops = 2.0 * (keys + queries);
    extra.read = (keys + queries) * bits_of(recorded) / 8.0;  // the gather is the cache write
    extra.launches = 4;
    return extra;
  }

 private:
  ThinkShape shape_;
};

std::shared_ptr<const StoreRule> make_think(MethodResolver& resolver) {
  return std::make_shared<ThinkRule>(
      ThinkShape{.share = resolver.number("channel_share"),
                 .window = static_cast<std::int32_t>(resolver.integer("think_window")),
                 .recent = static_cast<std::int32_t>(resolver.integer("think_recent")),
                 .decoding = resolver.word("prune") == "rolling"});
}

/// Counts the bytes of all rows ever appended.
class MaskedStore final : public Store {
 public:
  MaskedStore(const SessionPlace& place, Dtype recorded)
      : row_bytes_{bytes_of(2LL * place.head_dim, recorded)} {}
  void prompt_written(EntryTable& /*entries*/, PromptScores& scores,
                      std::size_t /*head*/) override {
    tokens_ = scores.prompt();
  }
  void appended(EntryTable& /*entries*/, std::int32_t /*slot*/) override { ++tokens_; }
  void rewritten(EntryTable& /*entries*/, std::int32_t /*slot*/) override {}
  Bytes kv_bytes(const EntryTable& /*entries*/) const override { return row_bytes_ * tokens_; }

 private:
  Bytes row_bytes_;
  std::int64_t tokens_ = 0;
};

class MaskedRule final : public StoreRule {
 public:
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override {
    return std::make_unique<MaskedStore>(place, recorded);
  }
  Dtype dtype(Dtype recorded) const override { return recorded; }
  bool rounds() const override { return true; }  // its bytes do not follow from the entries
  bool masks() const override { return true; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t tokens, std::int32_t head_dim,
                 Dtype recorded) const override {
    return bytes_of(2 * tokens * head_dim, recorded);
  }
  double bits_per_element(std::int32_t /*head_dim*/, Dtype recorded) const override {
    return bits_of(recorded);
  }
};

std::shared_ptr<const StoreRule> make_masked(MethodResolver& /*resolving*/) {
  return std::make_shared<MaskedRule>();
}

}  // namespace

AxisChoice store_think() {
  return {.axis = "store",
          .name = "think",
          .params = {number_param("channel_share", "rho_c", 0.4, 0, 1, "[0, 1]",
                                  "share of key channels dropped, truncated to whole channels",
                                  "KVCache-Factory: 0.4"),
                     integer_param("think_window", "", 32, 1, kManyEntries, ">= 1",
                                   "last queries of the prompt that score channels", "ThinK: 32"),
                     integer_param("think_recent", "", 32, 0, kManyEntries, ">= 0",
                                   "newest keys kept whole", "KVCache-Factory: 32"),
                     word_param("prune", {"prompt", "rolling"},
                                "prune only the prompt's keys, or every key once it is no longer "
                                "recent",
                                "KVCache-Factory prunes at prefill")},
          .make = &make_think};
}
AxisChoice store_masked() {
  return {.axis = "store", .name = "masked", .params = {}, .make = &make_masked};
}

}  // namespace kvsim
