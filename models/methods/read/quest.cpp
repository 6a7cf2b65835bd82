// Quest: pages of entries, each summarised by the per-channel bounds of its keys. A query attends
// over the pages with the largest upper bounds of their logits.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMinPages = 3;  // minimum in the released code

/// How the query heads of a stored head choose pages.
enum class Choosing : std::uint8_t { kEach, kUnion, kSum };

struct QuestSettings {
  std::int64_t tokens = 0;
  std::int32_t page = 16;
  Choosing choosing = Choosing::kEach;
  [[nodiscard]] std::int64_t pages() const { return std::max(kMinPages, tokens / page); }
};

class QuestReader final : public Reader {
 public:
  QuestReader(const SessionPlace& place, const QuestSettings& settings)
      : set_{settings},
        group_{place.group},
        d_{static_cast<std::size_t>(place.head_dim)},
        whole_{place.group, place.head_dim, place.scale},
        single_{1, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) appended(entries, slot);
  }

  void appended(const EntryTable& entries, std::int32_t slot) override {
    KVSIM_CHECK(slot == entries_, "slot {} after {} entries", slot, entries_);
    if (entries_ % set_.page == 0) {
      low_.resize(low_.size() + d_, std::numeric_limits<float>::infinity());
      high_.resize(high_.size() + d_, -std::numeric_limits<float>::infinity());
    }
    ++entries_;
    const std::span<const float> key = entries.key(slot);
    float* low = low_.data() + low_.size() - d_;
    float* high = high_.data() + high_.size() - d_;
    for (std::size_t j = 0; j < d_; ++j) {
      low[j] = std::min(low[j], key[j]);
      high[j] = std::max(high[j], key[j]);
    }
  }

  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const auto group = static_cast<std::size_t>(group_);
    const auto n_pages = low_.size() / d_;
    outcome.log_sums.resize(group);
    // A budget that covers all entries reads all of them, including a last page that is not full.
    if (set_.tokens >= entries_ || static_cast<std::size_t>(set_.pages()) >= n_pages) {
      attend_rows(whole_, q, entries.keys(), entries.values(), outcome);
      outcome.entries_read = entries_;
      outcome.max_read = entries_;
      return;
    }
    bounds_.resize(group * n_pages);
    for (std::size_t g = 0; g < group; ++g) bound_pages(q.subspan(g * d_, d_), g, n_pages);
    if (set_.choosing == Choosing::kSum) {
      for (std::size_t g = 1; g < group; ++g) {
        for (std::size_t p = 0; p < n_pages; ++p) bounds_[p] += bounds_[g * n_pages + p];
      }
    }
    read_.assign(n_pages, false);
    const std::size_t choosers = set_.choosing == Choosing::kSum ? 1 : group;
    outcome.out.resize(group * d_);
    outcome.max_read = 0;
    for (std::size_t g = 0; g < choosers; ++g) {
      choose(g, n_pages);
      std::int64_t own = 0;
      for (const std::size_t page : chosen_) {
        read_[page] = true;
        own += last_of(page) - first_of(page);
      }
      outcome.max_read = std::max(outcome.max_read, own);
      if (set_.choosing != Choosing::kEach) continue;
      gather_pages(entries, chosen_, set_.page, keys_, values_);
      single_.run(q.subspan(g * d_, d_), keys_, values_, {});
      std::copy(single_.output().begin(), single_.output().end(),
                outcome.out.begin() + static_cast<std::ptrdiff_t>(g * d_));
      outcome.log_sums[g] = single_.log_sum(0);
    }
    std::int64_t distinct = 0;
    for (std::size_t p = 0; p < n_pages; ++p) {
      if (read_[p]) distinct += last_of(p) - first_of(p);
    }
    outcome.entries_read = static_cast<double>(distinct);
    if (set_.choosing == Choosing::kEach) return;
    chosen_.clear();
    for (std::size_t p = 0; p < n_pages; ++p) {
      if (read_[p]) chosen_.push_back(p);
    }
    outcome.max_read = distinct;  // every query head reads the union
    gather_pages(entries, chosen_, set_.page, keys_, values_);
    attend_rows(whole_, q, keys_, values_, outcome);
  }

 private:
  [[nodiscard]] std::int64_t first_of(std::size_t page) const {
    return static_cast<std::int64_t>(page) * set_.page;
  }
  [[nodiscard]] std::int64_t last_of(std::size_t page) const {
    return std::min<std::int64_t>(first_of(page) + set_.page, entries_);
  }

  /// bounds_[g, p] = sum over c of max(q_c low_c, q_c high_c), an upper bound of the page's logits.
  void bound_pages(std::span<const float> q, std::size_t g, std::size_t n_pages) {
    q_.assign(q.begin(), q.end());
    for (std::size_t p = 0; p < n_pages; ++p) {
      const float* low = low_.data() + p * d_;
      const float* high = high_.data() + p * d_;
      constexpr std::size_t kLanes = 4;  // independent sums, to avoid a dependency chain of
                                         // additions
      double sums[kLanes] = {};
      std::size_t j = 0;
      for (; j + kLanes <= d_; j += kLanes) {
        for (std::size_t l = 0; l < kLanes; ++l) {
          const double a = q_[j + l] * static_cast<double>(low[j + l]);
          const double b = q_[j + l] * static_cast<double>(high[j + l]);
          sums[l] += a > b ? a : b;
        }
      }
      for (; j < d_; ++j) {
        sums[0] +=
            std::max(q_[j] * static_cast<double>(low[j]), q_[j] * static_cast<double>(high[j]));
      }
      bounds_[g * n_pages + p] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
  }

  /// Writes the pages with the largest bounds to chosen_, ascending; ties go to the older.
  void choose(std::size_t g, std::size_t n_pages) {
    chosen_.resize(n_pages);
    std::iota(chosen_.begin(), chosen_.end(), std::size_t{0});
    const double* bound = bounds_.data() + g * n_pages;
    const auto last = chosen_.begin() + static_cast<std::ptrdiff_t>(set_.pages());
    std::nth_element(chosen_.begin(), last, chosen_.end(), [bound](std::size_t a, std::size_t b) {
      return bound[a] != bound[b] ? bound[a] > bound[b] : a < b;
    });
    chosen_.erase(last, chosen_.end());
    std::sort(chosen_.begin(), chosen_.end());
  }

  QuestSettings set_;
  std::int32_t group_;
  std::size_t d_;
  GroupAttention whole_, single_;
  std::int32_t entries_ = 0;
  std::vector<float> low_, high_;   // [pages, d]
  std::vector<double> q_, bounds_;  // bounds_ [group, pages]
  std::vector<std::size_t> chosen_;
  std::vector<bool> read_;
  std::vector<float> keys_, values_;  // of the chosen pages
};

class QuestRule final : public ReadRule {
 public:
  QuestRule(const QuestSettings& settings, std::int32_t dense, std::int32_t group)
      : set_{settings}, dense_{dense}, group_{group} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return place.layer < dense_ ? nullptr : std::make_unique<QuestReader>(place, set_);
  }
  CacheBytes cache_bytes(std::int32_t layer, Bytes full, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& shape) const override {
    const std::int64_t pages = layer < dense_ ? 0 : (entries + set_.page - 1) / set_.page;
    return {
        .kv = full, .side = bytes_of(2 * pages * shape.head_dim, shape.stored), .host = Bytes{0}};
  }
  double entries_read(std::int32_t layer, double entries) const override {
    const double choosers = set_.choosing == Choosing::kSum ? 1.0 : group_;
    double read = std::min(entries, choosers * static_cast<double>(set_.pages() * set_.page));
    if (static_cast<double>(set_.tokens) >= entries) read = entries;
    return layer < dense_ ? -1 : read;
  }
  std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_ ? 0 : 1; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (events.read < 0) return;  // a layer that reads all entries
    const double pages = std::ceil(events.attended / set_.page);
    const double bounds = 2.0 * shape.head_dim * bits_of(shape.stored) / 8.0;  // per page
    traffic.side_read += pages * bounds;
    traffic.side_write += bounds;  // the last page's bounds, updated for the new token
    traffic.extra_flops += pages * 3.0 * shape.head_dim * shape.group;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const double row =
        static_cast<double>(shape.n_kv_heads) * shape.head_dim * bits_of(recorded) / 8.0;
    const double pages = std::ceil(static_cast<double>(prompt) / set_.page);
    return {.flops = 2.0 * static_cast<double>(prompt) * shape.n_kv_heads * shape.head_dim,
            .read = static_cast<double>(prompt) * row,
            .written = 2.0 * pages * row,
            .transient = Bytes{0},
            .launches = 1,
            .prefill_repeats = 0};
  }

 private:
  QuestSettings set_;
  std::int32_t dense_, group_;
};

std::shared_ptr<const ReadRule> resolve_quest(MethodResolver& resolver) {
  if (resolver.store().groups_tokens()) {
    resolver.refuse(fmt::format(
        "read=quest bounds keys when they are written, but store={} rewrites them later",
        resolver.choice("store")));
  }
  QuestSettings set;
  set.tokens = resolve_token_budget(resolver, 0.2);
  set.page = static_cast<std::int32_t>(resolver.integer("page"));
  const std::string& choosing = resolver.word("pages_chosen");
  if (choosing == "union") set.choosing = Choosing::kUnion;
  if (choosing == "sum") set.choosing = Choosing::kSum;
  return std::make_shared<QuestRule>(set, static_cast<std::int32_t>(resolver.integer("dense")),
                                     group_of(resolver));
}

}  // namespace

AxisChoice read_quest() {
  return {.axis = "read",
          .name = "quest",
          .params = {token_budget_param(0,
                                        "entries a query reads, in whole pages, at least 3; the "
                                        "budget limits what is read, everything is held",
                                        "Quest, released code"),
                     integer_param("page", "P", 16, 1, 65536, "an integer in [1, 65536]",
                                   "entries per page, which share the bounds of their keys",
                                   "Quest, released code (chunk_size)"),
                     integer_param("dense", "", 2, 0, 65536, "an integer in [0, 65536]",
                                   "first layers that read everything", "Quest, released code"),
                     word_param("pages_chosen", {"query_head", "union", "sum"},
                                "pages chosen by each query head; the union over the heads that "
                                "share a KV head; or the pages with the largest sum of bounds",
                                "query_head: the released code; the others decide by KV head")},
          .make = &resolve_quest};
}

}  // namespace kvsim
