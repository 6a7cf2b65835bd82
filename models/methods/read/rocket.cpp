// RocketKV (Fu et al. 2025, arXiv 2502.14051), second stage: a step attends over the entries of the
// pages with the highest estimated attention, with one choice for the query heads of a KV head. The
// first stage is SnapKV (select=window), set by the preset.
//
//   page key, per channel: the maximum of its keys if the group's queries sum to > 0, else their
//   minimum; score = mean over the group of the softmax of q . page key
//
// parts=pages (TensorRT-LLM, sparse/rocket/kernels.py): pages of 4, whole pages are chosen, page
// keys and queries in E5M2, logits over sqrt(d). The prompt's last page, if not full, also contains
// a zero key, as in that code.
// parts=tokens (the authors' code, 63637c8): pages of m = ceil(sqrt(c)) at a compression c (1 if
// m > c), only the int(d m / c) channels with the largest mean |q|, logits over
// sqrt(d sum of these |q| / sum of all |q|). A page's logit applies to each of its tokens, and the
// highest tokens are read. Tokens of a page are equal; the older are read first.
//
// TensorRT-LLM's first stage normalises the window's attention over the tokens before the window.
// The authors' code, its reference path and kvsim normalise over all tokens that a query attends
// to.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/key_redundancy.hpp"
#include "models/math/half.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kPages = 64;    // TensorRT-LLM, RocketKVParams.topk
constexpr std::int64_t kTokens = 512;  // half of the authors' token budget of 1024

struct RocketSettings {
  bool by_page = true;
  std::int64_t chosen = kPages;  // pages or tokens
  std::int32_t page = 4;
  std::int64_t channels = 128;
  bool fp8 = true;
  [[nodiscard]] double key_bytes() const { return fp8 ? 1 : 2; }
};

class RocketReader final : public Reader {
 public:
  RocketReader(const SessionPlace& place, const RocketSettings& settings)
      : set_{settings},
        group_{static_cast<std::size_t>(place.group)},
        d_{static_cast<std::size_t>(place.head_dim)},
        attention_{place.group, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) appended(entries, slot);
    if (!set_.by_page || entries_ % set_.page == 0) return;
    for (std::size_t j = low_.size() - d_; j < low_.size(); ++j) {
      low_[j] = std::min(low_[j], 0.0F);
      high_[j] = std::max(high_[j], 0.0F);
    }
  }

  void appended(const EntryTable& entries, std::int32_t slot) override {
    KVSIM_CHECK(slot == entries_, "slot {} after {} entries", slot, entries_);
    if (entries_ % set_.page == 0) {
      low_.resize(low_.size() + d_, std::numeric_limits<float>::infinity());
      high_.resize(high_.size() + d_, -std::numeric_limits<float>::infinity());
    }
    ++entries_;
    const std::span<const float> key = entries.key(slot);
    const std::size_t at = low_.size() - d_;
    for (std::size_t j = 0; j < d_; ++j) {
      // Rounding is monotone, so the bounds of rounded keys are the rounded bounds.
      const float k = rounded(key[j]);
      low_[at + j] = std::min(low_[at + j], k);
      high_[at + j] = std::max(high_[at + j], k);
    }
  }

  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const auto held = static_cast<std::size_t>(entries_);
    const std::size_t units = set_.by_page ? low_.size() / d_ : held;
    if (static_cast<std::size_t>(set_.chosen) >= units) {
      run(q, entries.keys(), entries.values(), outcome);
      return;
    }
    score_pages(q);
    order_.resize(units);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    const auto unit = [this](std::size_t i) { return set_.by_page ? i : i / page(); };
    const auto last = order_.begin() + static_cast<std::ptrdiff_t>(set_.chosen);
    std::nth_element(order_.begin(), last, order_.end(), [&](std::size_t a, std::size_t b) {
      const double x = mean_[unit(a)];
      const double y = mean_[unit(b)];
      return x != y ? x > y : a < b;
    });
    order_.erase(last, order_.end());
    std::sort(order_.begin(), order_.end());
    keys_.clear();
    values_.clear();
    for (const std::size_t each : order_) {
      const std::size_t first = set_.by_page ? each * page() : each;
      const std::size_t count = set_.by_page ? std::min(page(), held - first) : 1;
      const auto keys = entries.keys().subspan(first * d_, count * d_);
      const auto values = entries.values().subspan(first * d_, count * d_);
      keys_.insert(keys_.end(), keys.begin(), keys.end());
      values_.insert(values_.end(), values.begin(), values.end());
    }
    run(q, keys_, values_, outcome);
  }

 private:
  [[nodiscard]] std::size_t page() const { return static_cast<std::size_t>(set_.page); }
  [[nodiscard]] float rounded(float x) const {
    if (!set_.by_page) return x;
    return set_.fp8 ? round_to_fp8(x, Fp8::kE5m2) : bf16_to_float(float_to_bf16(x));
  }

  /// Writes the mean over the group of each page's weight to mean_.
  void score_pages(std::span<const float> q) {
    const std::size_t pages = low_.size() / d_;
    std::vector<double> sum(d_, 0.0), size(d_, 0.0);
    for (std::size_t g = 0; g < group_; ++g) {
      for (std::size_t j = 0; j < d_; ++j) {
        const auto x = static_cast<double>(q[g * d_ + j]);
        sum[j] += x;
        size[j] += std::abs(x);
      }
    }
    // The selected channels, by |q| summed over the group; ties go to the first.
    std::vector<std::size_t> channels(d_);
    std::iota(channels.begin(), channels.end(), std::size_t{0});
    std::stable_sort(channels.begin(), channels.end(),
                     [&size](std::size_t a, std::size_t b) { return size[a] > size[b]; });
    channels.resize(std::min(d_, static_cast<std::size_t>(set_.channels)));
    mean_.assign(pages, 0.0);
    weight_.resize(pages);
    // The factors of each bound; a channel has one of them, or none if it is not selected.
    std::vector<float> of_high(d_), of_low(d_);
    const std::size_t held = static_cast<std::size_t>(entries_);
    for (std::size_t g = 0; g < group_; ++g) {
      const std::span<const float> query = q.subspan(g * d_, d_);
      const double divisor = divisor_of(query, channels);
      for (const std::size_t j : channels) (sum[j] > 0 ? of_high : of_low)[j] = rounded(query[j]);
      for (std::size_t p = 0; p < pages; ++p) {
        const auto page_of = [&](const std::vector<float>& bounds) {
          return std::span{bounds}.subspan(p * d_, d_);
        };
        weight_[p] = (dot(of_high, page_of(high_)) + dot(of_low, page_of(low_))) / divisor;
      }
      if (set_.by_page) {
        softmax_in_place(weight_);
      } else {  // the unit is tokens
        const double max = *std::max_element(weight_.begin(), weight_.end());
        double total = 0;
        for (std::size_t p = 0; p < pages; ++p) {
          weight_[p] = std::exp(weight_[p] - max);
          total += weight_[p] * static_cast<double>(std::min(page(), held - p * page()));
        }
        for (double& x : weight_) x /= total;
      }
      for (std::size_t p = 0; p < pages; ++p) {
        mean_[p] += weight_[p] / static_cast<double>(group_);
      }
    }
  }
  [[nodiscard]] double divisor_of(std::span<const float> query,
                                  std::span<const std::size_t> channels) const {
    if (set_.by_page) return std::sqrt(static_cast<double>(d_));
    double used = 0;
    double all = 0;
    for (const std::size_t j : channels) used += std::abs(static_cast<double>(query[j]));
    for (const float x : query) all += std::abs(static_cast<double>(x));
    return used > 0 ? std::sqrt(static_cast<double>(d_) * used / all) : 1.0;
  }

  void run(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
           ReadOutcome& outcome) {
    attention_.run(q, keys, values, {});
    outcome.out.assign(attention_.output().begin(), attention_.output().end());
    outcome.log_sums.resize(group_);
    for (std::size_t g = 0; g < group_; ++g) {
      outcome.log_sums[g] = attention_.log_sum(static_cast<std::int32_t>(g));
    }
    outcome.entries_read = static_cast<double>(keys.size() / d_);
    outcome.max_read = static_cast<std::int64_t>(keys.size() / d_);
  }

  RocketSettings set_;
  std::size_t group_, d_;
  GroupAttention attention_;
  std::int32_t entries_ = 0;
  std::vector<float> low_, high_;      // [pages, d]
  std::vector<double> mean_, weight_;  // by page
  std::vector<std::size_t> order_;
  std::vector<float> keys_, values_;  // entries that the step reads
};

class RocketRule final : public ReadRule {
 public:
  RocketRule(const RocketSettings& settings, std::int32_t dense) : set_{settings}, dense_{dense} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return place.layer < dense_ ? nullptr : std::make_unique<RocketReader>(place, set_);
  }
  CacheBytes cache_bytes(std::int32_t layer, Bytes full, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& shape) const override {
    const auto pages = layer < dense_ ? 0.0 : std::ceil(static_cast<double>(entries) / set_.page);
    return {.kv = full, .side = truncated<Bytes>(pages * page_bytes(shape)), .host = Bytes{0}};
  }
  double entries_read(std::int32_t layer, double entries) const override {
    if (layer < dense_) return -1;
    const auto chosen = static_cast<double>(set_.chosen);
    return std::min(entries, set_.by_page ? chosen * set_.page : chosen);
  }
  std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_ ? 0 : 1; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (events.read < 0) return;  // a layer that reads all entries
    const double pages = std::ceil(events.attended / set_.page);
    const double channels = std::min<double>(shape.head_dim, static_cast<double>(set_.channels));
    // Both bounds of every page are loaded; the authors' layout reads one bound of some channels.
    traffic.side_read += pages * (set_.by_page ? page_bytes(shape) : channels * element(shape));
    traffic.side_write += page_bytes(shape);  // the last page's bounds, updated for the new token
    traffic.extra_flops += pages * shape.group * (2.0 * channels + 5);  // logits, softmax, mean
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const HeadShape head{.group = shape.n_heads / shape.n_kv_heads,
                         .head_dim = shape.head_dim,
                         .recorded = recorded,
                         .stored = recorded};
    const double heads = shape.n_kv_heads;
    const auto s = static_cast<double>(prompt);
    return {.flops = 2.0 * s * heads * shape.head_dim,
            .read = s * heads * head.row_bytes() / 2,
            .written = std::ceil(s / set_.page) * heads * page_bytes(head),
            .transient = Bytes{0},
            .launches = 1,
            .prefill_repeats = 0};
  }

 private:
  [[nodiscard]] double element(const HeadShape& shape) const {
    return set_.by_page ? set_.key_bytes() : bits_of(shape.stored) / 8.0;
  }
  /// Bytes of the minimum and maximum of each channel.
  [[nodiscard]] double page_bytes(const HeadShape& shape) const {
    return 2.0 * shape.head_dim * element(shape);
  }
  RocketSettings set_;
  std::int32_t dense_;
};

/// Returns the authors' compression of the second stage: entries after the first stage divided by
/// the token budget. Tokens read are one half of the budget and page keys the other half.
double compression_of(MethodResolver& resolver, std::int64_t chosen) {
  const double given = resolver.number("compression");
  if (given > 0 && given < 1) {
    resolver.refuse(fmt::format("compression: expected a number >= 1, or 0, got {}", given));
  }
  if (given > 0) return given;
  const std::int64_t held = resolver.choice("select") == "window"
                                ? std::min(resolver.entries(), resolver.prompt())
                                : resolver.prompt();
  const double found =
      std::max(1.0, static_cast<double>(held) / (2.0 * static_cast<double>(chosen)));
  resolver.resolve("compression", found);
  return found;
}

std::shared_ptr<const ReadRule> resolve_rocket(MethodResolver& resolver) {
  const std::string& select = resolver.choice("select");
  if ((select != "window" && select != "all") || resolver.choice("share") != "none" ||
      resolver.choice("merge") != "drop") {
    resolver.refuse(
        fmt::format("read=rocket pages a cache that only grows in decode: expected select=window "
                    "or all, merge=drop and share=none, got select={}, merge={} and share={}",
                    select, resolver.choice("merge"), resolver.choice("share")));
  }
  if (select == "window" && resolver.integer("ring") != 0) {
    resolver.refuse("read=rocket pages a cache that only grows in decode: expected ring=0");
  }
  if (resolver.store().groups_tokens()) {
    resolver.refuse(fmt::format(
        "read=rocket bounds keys when they are written, but store={} rewrites them later",
        resolver.choice("store")));
  }
  RocketSettings set;
  set.by_page = resolver.word("parts") == "pages";
  set.chosen = resolver.integer("topk");
  if (set.chosen == 0) {
    set.chosen = set.by_page ? kPages : kTokens;
    resolver.resolve("topk", set.chosen);
  }
  const std::int64_t d = std::max(resolver.site().shape.head_dim, 1);
  if (set.by_page) {
    set.page = static_cast<std::int32_t>(resolver.integer("page"));
    set.channels = resolver.integer("channels");
    set.fp8 = resolver.word("page_keys") == "fp8_e5m2";
  } else {
    const double c = compression_of(resolver, set.chosen);
    const double m = std::ceil(std::sqrt(c));
    set.page = m <= c ? static_cast<std::int32_t>(m) : 1;
    set.channels =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(d) * set.page / c));
  }
  return std::make_shared<RocketRule>(set, static_cast<std::int32_t>(resolver.integer("dense")));
}

}  // namespace

AxisChoice read_rocket() {
  const std::string engine = "TensorRT-LLM, RocketKVParams";
  return {
      .axis = "read",
      .name = "rocket",
      .params = {word_param("parts", {"pages", "tokens"},
                            "unit that a step chooses: whole pages, or tokens of pages",
                            "pages: TensorRT-LLM; tokens: RocketKV, released code"),
                 integer_param("topk", "k", 0, 0, kManyEntries,
                               "an integer >= 1, or 0 for 64 pages or 512 tokens",
                               "pages or tokens read at a step",
                               engine + "; half of the authors' token budget of 1024"),
                 integer_param("page", "P", 4, 1, 65536, "an integer in [1, 65536]",
                               "entries per page, with parts=pages", engine),
                 integer_param("channels", "r", 128, 1, 65536, "an integer in [1, 65536]",
                               "channels of a query that score pages, with parts=pages",
                               engine + " (topr)"),
                 word_param("page_keys", {"fp8_e5m2", "bf16"},
                            "format of page keys, with parts=pages", engine + " (kt_cache_dtype)"),
                 number_param("compression", "c", 0, 0, 1e6,
                              "a number >= 1, or 0 for entries held / (2 topk)",
                              "sets page and channels, with parts=tokens",
                              "RocketKV, released code"),
                 integer_param("dense", "", 0, 0, 65536, "an integer in [0, 65536]",
                               "first layers that read everything",
                               "RocketKV, released code (skip_layers): 0; 2 for a 7B")},
      .make = &resolve_rocket,
      .takes_budget = false};
}

}  // namespace kvsim
