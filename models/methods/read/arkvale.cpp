// ArkVale (Chen et al. 2024, NeurIPS; pku-liang/ArkVale, source/arkvale/infer_state.py and
// kv_cache.py, 0c3b45e): pages evicted from the GPU stay in host memory and may return.
//
//   digest: for each full page, by channel: centre c = (min + max) / 2 of its keys, spread
//           r = mean |key - c|; lo = c - r, hi = c + r, which is narrower than the keys' bounds
//   score:  sum over channels of max(q lo, q hi), mean over query heads with a joint choice
//   step:   the first and last pages, and the pages between with the largest scores. Chosen
//           pages that are not on the GPU return and replace the held pages with the lowest scores
//   turn:   if all of the GPU's pages are in use, a new page evicts the page that leaves the window
//
// After the prompt, the first and last pages stay, and the pages between that score highest for its
// last query. A page is copied to host memory once, when it is full, so eviction needs no copy.
//
// The released code computes scores only when pages are evicted, and attends over all held pages
// (attends=held): the choice only determines the pages that must be held. attends=chosen is its
// option use_sparse_attn, which it asserts to be off. Both choose for all heads of a layer
// (n_groups=1). Prefetching by the query of an earlier layer is not modelled.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kChosenTokens = 1024;  // page_topks: 32 pages of 32 tokens

struct ArkvaleSettings {
  std::int64_t page = 32;
  std::int64_t sinks = 2, window = 2;  // pages; the window includes the last, which may not be full
  std::int64_t read = 32;              // full pages read per step: sinks, window and the best
  std::int64_t held = 128;             // pages on the GPU
  bool reads_held = false;             // attention over every held page
  bool by_layer = true;                // one choice for all heads of a layer

  [[nodiscard]] std::int64_t pages(std::int64_t entries) const {
    return (entries + page - 1) / page;
  }
  /// Number of chosen pages between sinks and window.
  [[nodiscard]] std::int64_t best() const { return read - sinks - (window - 1); }
  /// Maximum number of pages for which a step reads all entries.
  [[nodiscard]] std::int64_t whole() const { return reads_held ? held : read + 1; }
  /// Number of entries in `n` pages, all full except the last.
  [[nodiscard]] std::int64_t entries_of(std::int64_t n, std::int64_t entries) const {
    return (n - 1) * page + entries - (pages(entries) - 1) * page;
  }
  [[nodiscard]] std::int64_t entries_read(std::int64_t entries) const {
    const std::int64_t most = whole();
    return pages(entries) <= most ? entries : entries_of(most, entries);
  }
};

/// The pages of heads with a joint choice: those on the GPU and those that a step reads.
class ArkvalePages {
 public:
  ArkvalePages(const ArkvaleSettings& settings, std::size_t heads)
      : set_{settings}, digests_(heads) {}

  void start(std::size_t head, const HeadVectors& vectors) {
    if (vectors_.size() <= head) vectors_.resize(head + 1);
    vectors_[head] = vectors;
  }
  /// Adds the digest of the next full page of head `head`, with keys `keys` [page, d].
  void add(std::size_t head, std::span<const float> keys) {
    const std::size_t d = keys.size() / static_cast<std::size_t>(set_.page);
    Digests& of = digests_[head];
    for (std::size_t j = 0; j < d; ++j) {
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (std::size_t i = j; i < keys.size(); i += d) {
        low = std::min(low, keys[i]);
        high = std::max(high, keys[i]);
      }
      const double centre = (static_cast<double>(low) + static_cast<double>(high)) / 2;
      double spread = 0;
      for (std::size_t i = j; i < keys.size(); i += d) {
        spread += std::abs(static_cast<double>(keys[i]) - centre);
      }
      spread /= static_cast<double>(set_.page);
      of.low.push_back(static_cast<float>(centre - spread));
      of.high.push_back(static_cast<float>(centre + spread));
    }
  }

  /// Returns the pages read by the step that brings the sequence to `entries`, ascending. The first
  /// head of a step chooses for all heads.
  const std::vector<std::size_t>& read_at(std::int64_t entries) {
    if (entries == known_) return read_;
    known_ = entries;
    recalled_ = 0;
    if (held_.empty()) hold_after_prompt(vectors_.front().prompt);
    const auto pages = static_cast<std::size_t>(set_.pages(entries));
    while (held_.size() < pages) turn();
    read_.resize(pages);
    std::iota(read_.begin(), read_.end(), std::size_t{0});
    if (static_cast<std::int64_t>(pages) <= set_.whole()) return read_;
    score(entries - 1, pages);
    choose(static_cast<std::size_t>(set_.best()), pages);
    recall(pages);
    std::erase_if(read_, [&](std::size_t p) {
      if (set_.reads_held) return !held_[p];
      return is_candidate(p, pages) && !std::binary_search(best_.begin(), best_.end(), p);
    });
    return read_;
  }
  /// Number of pages that the last step fetched.
  [[nodiscard]] std::int64_t recalled() const { return recalled_; }

 private:
  struct Digests {
    std::vector<float> low, high;  // [full pages, d]
  };
  [[nodiscard]] bool is_candidate(std::size_t page, std::size_t pages) const {
    return page >= static_cast<std::size_t>(set_.sinks) &&
           page + static_cast<std::size_t>(set_.window) < pages;
  }

  void hold_after_prompt(std::int64_t prompt) {
    const auto pages = static_cast<std::size_t>(set_.pages(prompt));
    held_.assign(pages, true);
    n_held_ = std::min(set_.held, static_cast<std::int64_t>(pages));
    if (static_cast<std::int64_t>(pages) <= set_.held) return;
    score(prompt - 1, pages);
    choose(static_cast<std::size_t>(set_.held - set_.sinks - set_.window), pages);
    for (std::size_t p = 0; p < pages; ++p) {
      held_[p] = !is_candidate(p, pages) || std::binary_search(best_.begin(), best_.end(), p);
    }
  }
  void turn() {
    if (n_held_ == set_.held) {
      held_[held_.size() - static_cast<std::size_t>(set_.window)] = false;
    } else {
      ++n_held_;
    }
    held_.push_back(true);
  }
  /// Computes scores of the full pages for the queries at `t`, averaged over all query heads.
  void score(std::int64_t t, std::size_t pages) {
    scores_.assign(pages - 1, 0.0);
    std::int64_t queries = 0;
    std::vector<double> own;
    for (std::size_t h = 0; h < vectors_.size(); ++h) {
      const HeadVectors& head = vectors_[h];
      const auto d = static_cast<std::size_t>(head.head_dim);
      own.assign(scores_.size(), 0.0);
      for (std::int32_t g = 0; g < head.group; ++g) {
        const std::span<const float> q = head.query(g, t);
        for (std::size_t p = 0; p < own.size(); ++p) {
          const float* low = digests_[h].low.data() + p * d;
          const float* high = digests_[h].high.data() + p * d;
          for (std::size_t j = 0; j < d; ++j) {
            const auto x = static_cast<double>(q[j]);
            own[p] += std::max(x * static_cast<double>(low[j]), x * static_cast<double>(high[j]));
          }
        }
      }
      queries += head.group;
      for (std::size_t p = 0; p < own.size(); ++p) scores_[p] += own[p];
    }
    for (double& score : scores_) score /= static_cast<double>(queries);
  }
  /// Writes the `n` candidates with the largest scores to best_, ascending; ties go to the older.
  void choose(std::size_t n, std::size_t pages) {
    best_.clear();
    for (std::size_t p = 0; p < pages; ++p) {
      if (is_candidate(p, pages)) best_.push_back(p);
    }
    if (n < best_.size()) {
      std::nth_element(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(n), best_.end(),
                       [this](std::size_t a, std::size_t b) { return is_better(a, b); });
      best_.resize(n);
    }
    std::sort(best_.begin(), best_.end());
  }
  void recall(std::size_t pages) {
    std::vector<std::size_t> others;  // held pages that may leave
    for (std::size_t p = 0; p < pages; ++p) {
      const bool is_best = std::binary_search(best_.begin(), best_.end(), p);
      if (is_best && !held_[p]) ++recalled_;
      if (!is_best && held_[p] && is_candidate(p, pages)) others.push_back(p);
    }
    if (recalled_ == 0) return;
    KVSIM_CHECK(recalled_ <= std::ssize(others), "{} pages return in place of {}", recalled_,
                others.size());
    std::sort(others.begin(), others.end(),
              [this](std::size_t a, std::size_t b) { return is_better(b, a); });
    for (std::size_t i = 0; i < static_cast<std::size_t>(recalled_); ++i) held_[others[i]] = false;
    for (const std::size_t p : best_) held_[p] = true;
  }
  [[nodiscard]] bool is_better(std::size_t a, std::size_t b) const {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  }

  ArkvaleSettings set_;
  std::vector<HeadVectors> vectors_;
  std::vector<Digests> digests_;  // by head
  std::vector<bool> held_;        // by page
  std::int64_t n_held_ = 0, recalled_ = 0, known_ = -1;
  std::vector<double> scores_;  // by full page
  std::vector<std::size_t> best_, read_;
};

class ArkvaleReader final : public Reader {
 public:
  ArkvaleReader(const SessionPlace& place, const ArkvaleSettings& settings,
                std::shared_ptr<ArkvalePages> pages, std::size_t index, Dtype stored)
      : set_{settings},
        pages_{std::move(pages)},
        index_{index},
        stored_{stored},
        d_{static_cast<std::size_t>(place.head_dim)},
        group_{static_cast<std::size_t>(place.group)},
        attention_{place.group, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    pages_->start(index_, scores.heads()[head]);
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) appended(entries, slot);
  }
  void appended(const EntryTable& entries, std::int32_t slot) override {
    KVSIM_CHECK(slot == entries_, "slot {} after {} entries", slot, entries_);
    if (slot > 0 && slot % set_.page == 0) {  // the previous page is full
      const auto size = static_cast<std::size_t>(set_.page) * d_;
      pages_->add(index_, entries.keys().subspan(static_cast<std::size_t>(slot) * d_ - size, size));
    }
    ++entries_;
  }
  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const std::vector<std::size_t>& pages = pages_->read_at(entries_);
    gather_pages(entries, pages, set_.page, keys_, values_);
    outcome.log_sums.resize(group_);
    attend_rows(attention_, q, keys_, values_, outcome);
    outcome.max_read = static_cast<std::int64_t>(keys_.size() / d_);
    outcome.entries_read = static_cast<double>(outcome.max_read);
    outcome.from_host =
        bytes_of(pages_->recalled() * set_.page * 2 * static_cast<std::int64_t>(d_), stored_);
    recalled_ += pages_->recalled();
    if (set_.pages(entries_) > set_.whole()) chosen_ += set_.best();
  }
  void report(Counts& counts) const override {
    counts["arkvale_pages_chosen"] += static_cast<double>(chosen_);
    counts["arkvale_pages_recalled"] += static_cast<double>(recalled_);
  }

 private:
  ArkvaleSettings set_;
  std::shared_ptr<ArkvalePages> pages_;
  std::size_t index_;  // of the head among those with a joint choice
  Dtype stored_;
  std::size_t d_, group_;
  GroupAttention attention_;
  std::int32_t entries_ = 0;
  std::vector<float> keys_, values_;  // of the pages read
  std::int64_t chosen_ = 0, recalled_ = 0;
};

class ArkvaleRule final : public ReadRule {
 public:
  ArkvaleRule(const ArkvaleSettings& settings, Dtype stored) : set_{settings}, stored_{stored} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::move(start_heads(place, 1).front());
  }
  std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                   std::size_t heads) const override {
    std::vector<std::unique_ptr<Reader>> all;
    auto pages = std::make_shared<ArkvalePages>(set_, set_.by_layer ? heads : 1);
    for (std::size_t h = 0; h < heads; ++h) {
      if (!set_.by_layer && h > 0) pages = std::make_shared<ArkvalePages>(set_, 1);
      all.push_back(
          std::make_unique<ArkvaleReader>(place, set_, pages, set_.by_layer ? h : 0, stored_));
    }
    return all;
  }
  bool needs_layer() const override { return set_.by_layer; }

  /// In GPU memory: the held pages, and two rows of digest for each full page. In host memory:
  /// every full page.
  CacheBytes cache_bytes(std::int32_t /*layer*/, Bytes /*full*/, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& shape) const override {
    const std::int64_t pages = set_.pages(entries);
    const std::int64_t resident =
        pages <= set_.held ? entries : set_.entries_of(set_.held, entries);
    const std::int64_t full = std::max<std::int64_t>(0, pages - 1), d = shape.head_dim;
    return {.kv = bytes_of(2 * resident * d, shape.stored),
            .side = bytes_of(2 * full * d, shape.stored),
            .host = bytes_of(2 * full * set_.page * d, shape.stored)};
  }
  double entries_read(std::int32_t /*layer*/, double entries) const override {
    // Entries may be a mean over a batch; above the limit, the entries read depend on the mean
    // rounded up.
    const auto whole = static_cast<std::int64_t>(std::ceil(entries));
    return set_.pages(whole) <= set_.whole() ? entries
                                             : static_cast<double>(set_.entries_read(whole));
  }
  double link_bytes(double entries, const HeadShape& shape) const override {
    if (pages_of(entries) <= set_.held) return 0;
    return static_cast<double>(set_.best() * set_.page) * shape.row_bytes();
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const std::int64_t pages = pages_of(events.attended);
    const double digest = 2.0 * shape.head_dim * bits_of(shape.stored) / 8.0;
    // A page and its digest are written once, when the page is full: on average one row per step.
    traffic.side_write += digest / static_cast<double>(set_.page);
    traffic.link_write += shape.row_bytes();
    if (pages <= set_.whole()) return;
    traffic.side_read += static_cast<double>(pages - 1) * digest;
    traffic.extra_flops += static_cast<double>(pages - 1) * 3.0 * shape.head_dim * shape.group;
    // Upper bound: all chosen pages return. They are written once; their reads are already counted.
    if (pages > set_.held) {
      traffic.move_write += static_cast<double>(set_.best() * set_.page) * shape.row_bytes();
    }
  }
  /// Digests, and copies of the pages to host memory.
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const double elements = static_cast<double>((set_.pages(prompt) - 1) * set_.page) *
                            shape.n_kv_heads * shape.head_dim;
    const double bytes = bits_of(recorded) / 8.0;
    PrefillExtra extra;
    extra.flops = 5.0 * elements;  // minimum, maximum; difference, absolute value, sum
    extra.read = (2.0 + 2.0) * elements * bytes;  // keys twice, then rows of keys and values
    extra.written = (2.0 + 2.0 / static_cast<double>(set_.page)) * elements * bytes;
    extra.launches = 3;
    if (set_.pages(prompt) > set_.held) {  // the last query's scores
      const double full = static_cast<double>(set_.pages(prompt) - 1) * shape.head_dim;
      extra.flops += 3.0 * full * shape.n_heads;
      extra.read += 2.0 * full * shape.n_kv_heads * bytes;
      extra.launches += 2;
    }
    return extra;
  }

 private:
  [[nodiscard]] std::int64_t pages_of(double entries) const {
    return set_.pages(static_cast<std::int64_t>(std::ceil(entries)));
  }
  ArkvaleSettings set_;
  Dtype stored_;
};

std::shared_ptr<const ReadRule> resolve_arkvale(MethodResolver& resolver) {
  const std::string& store = resolver.choice("store");
  if (store != "recorded" && store != "fp16" && store != "bf16" && store != "fp32") {
    resolver.refuse(
        fmt::format("read=arkvale moves pages to host memory and back unchanged: expected a "
                    "floating-point store, got {}",
                    store));
  }
  if (resolver.word("granularity") != "kv_head") {
    resolver.refuse("read=arkvale has pages of KV heads: expected granularity=kv_head");
  }
  ArkvaleSettings set;
  set.page = resolver.integer("page");
  set.sinks = resolver.integer("sink_pages");
  set.window = resolver.integer("window_pages");
  set.reads_held = resolver.word("attends") == "held";
  set.by_layer = resolver.word("chosen_by") == "layer";
  const std::int64_t ratio = resolver.integer("held_ratio");
  const bool sized = resolver.budget() || resolver.given("token_budget");
  std::int64_t tokens = resolve_token_budget(resolver, 0.2);
  const std::int64_t least = set.sinks + set.window;  // one page between them
  if (set.reads_held) {
    if (!sized) {
      tokens *= ratio;
      resolver.resolve("token_budget", tokens);
    }
    set.held = std::max(least + 1, tokens / set.page);
    set.read = std::clamp(set.held / ratio, least, set.held - 1);
  } else {
    set.read = std::max(least, tokens / set.page);
    set.held = std::max(set.read * ratio, set.read + 1);
  }
  return std::make_shared<ArkvaleRule>(set, resolver.store().dtype(resolver.site().recorded));
}

}  // namespace

AxisChoice read_arkvale() {
  const std::string source = "ArkVale, README and longbench_pred.py";
  const std::string code = "ArkVale, infer_state.py";
  return {
      .axis = "read",
      .name = "arkvale",
      .params =
          {token_budget_param(kChosenTokens,
                              "entries that a step reads in addition to the last page: first "
                              "pages, window and the best; with attends=held all entries on the "
                              "GPU (held_ratio times as many if no budget is given)",
                              source + ": 32 pages, 128 held"),
           integer_param("page", "", 32, 1, 65536, "an integer in [1, 65536]", "entries per page",
                         source),
           integer_param("sink_pages", "", 2, 0, 65536, "an integer in [0, 65536]",
                         "first pages that are always held and read", code),
           integer_param(
               "window_pages", "", 2, 2, 65536, "an integer in [2, 65536]",
               "last pages that are always held and read, including the one that is being filled",
               code),
           integer_param("held_ratio", "", 4, 1, 65536, "an integer in [1, 65536]",
                         "pages on the GPU for each page that a step chooses",
                         source + ": 128 for 32"),
           word_param("attends", {"chosen", "held"},
                      "a step attends over the pages it chooses, or over all pages on the GPU "
                      "after it recalls them",
                      "chosen: ArkVale's option use_sparse_attn; held: its released code"),
           word_param("chosen_by", {"layer", "kv_head"},
                      "one choice for all heads of a layer, by the mean of their scores, or "
                      "one for each KV head",
                      code + ": n_groups 1, up to the KV heads")},
      .make = &resolve_arkvale};
}

}  // namespace kvsim
