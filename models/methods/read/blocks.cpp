// Models that read blocks of tokens by design: a query attends over the `topk` blocks of the cache
// with the highest scores. MiniMax-M3 (MSA) scores a block by the largest product of an index query
// and its tokens' index keys (TensorRT-LLM, sparse/minimax_m3/indexer.py, 2495d6b0, and common.py,
// 1cadaaaf); MoBA by the product of the query and the mean of its keys (MoonshotAI/MoBA,
// moba/moba_naive.py, 61e456b), for each query head. Scores computed from the keys are the
// reference: the best result of an index with one score per block.

#include <algorithm>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "models/methods/prefill_axis.hpp"
#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

enum class Digest : std::uint8_t { kIndex, kMean, kKeys };

struct BlockSettings {
  Digest digest = Digest::kIndex;
  std::int64_t topk = 1;
  std::int64_t page = 1;
  std::int64_t first = 0, last = 1;  // blocks that are always read; included in topk
  std::int32_t dense = 0;            // first layers, which read all entries
  std::int32_t n_layers = 1;
  std::int64_t index_heads = 1, index_dim = 1, index_bytes = 1;
  std::int64_t heads = 1, group = 1;  // stored heads; query heads per stored head
  [[nodiscard]] std::int64_t index_row() const { return index_dim * index_bytes; }
};

double dot(std::span<const float> a, std::span<const float> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0, std::plus<>{},
                            [](float x, float y) { return double{x} * y; });
}

class BlockReader final : public Reader {
 public:
  BlockReader(const SessionPlace& place, const BlockSettings& settings, std::size_t head)
      : set_{settings},
        group_{static_cast<std::size_t>(place.group)},
        d_{static_cast<std::size_t>(place.head_dim)},
        head_{head},
        whole_{place.group, place.head_dim, place.scale},
        single_{1, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t /*head*/) override {
    if (set_.digest == Digest::kIndex) start_index(scores.layer());
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) appended(entries, slot);
  }
  void appended(const EntryTable& entries, std::int32_t slot) override {
    KVSIM_CHECK(slot == entries_, "slot {} after {} entries", slot, entries_);
    if (set_.digest == Digest::kMean) {
      if (entries_ % set_.page == 0) sums_.resize(sums_.size() + d_, 0.0);
      const std::span<const float> key = entries.key(slot);
      double* sum = sums_.data() + sums_.size() - d_;
      for (std::size_t j = 0; j < d_; ++j) sum[j] += key[j];
    }
    ++entries_;
  }
  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const auto n_blocks = static_cast<std::size_t>((entries_ + set_.page - 1) / set_.page);
    outcome.log_sums.resize(group_);
    if (static_cast<std::size_t>(set_.topk) >= n_blocks) {
      attend_rows(whole_, q, entries.keys(), entries.values(), outcome);
      outcome.entries_read = static_cast<double>(entries_);
      outcome.max_read = entries_;
      return;
    }
    read_.assign(n_blocks, false);
    if (set_.digest != Digest::kMean) {
      set_.digest == Digest::kIndex ? score_index(n_blocks) : score_keys(q, entries, n_blocks);
      choose(n_blocks);
      gather_pages(entries, chosen_, set_.page, keys_, values_);
      attend_rows(whole_, q, keys_, values_, outcome);
      outcome.max_read = chosen_entries();
      outcome.entries_read = static_cast<double>(outcome.max_read);
      return;
    }
    outcome.out.resize(group_ * d_);
    outcome.max_read = 0;
    for (std::size_t g = 0; g < group_; ++g) {
      const auto query = q.subspan(g * d_, d_);
      score_means(query, n_blocks);
      choose(n_blocks);
      for (const std::size_t block : chosen_) read_[block] = true;
      outcome.max_read = std::max(outcome.max_read, chosen_entries());
      gather_pages(entries, chosen_, set_.page, keys_, values_);
      single_.run(query, keys_, values_, {});
      std::copy(single_.output().begin(), single_.output().end(),
                outcome.out.begin() + static_cast<std::ptrdiff_t>(g * d_));
      outcome.log_sums[g] = single_.log_sum(0);
    }
    outcome.entries_read = 0;
    for (std::size_t block = 0; block < n_blocks; ++block) {
      if (read_[block]) outcome.entries_read += static_cast<double>(size_of(block));
    }
  }

 private:
  [[nodiscard]] std::int64_t size_of(std::size_t block) const {
    return std::min(set_.page, entries_ - static_cast<std::int64_t>(block) * set_.page);
  }
  [[nodiscard]] std::int64_t chosen_entries() const {
    return std::accumulate(
        chosen_.begin(), chosen_.end(), std::int64_t{0},
        [this](std::int64_t sum, std::size_t block) { return sum + size_of(block); });
  }

  void start_index(const LayerVectors& layer) {
    index_keys_ = layer.per_head.at("index.k");
    index_queries_ = layer.per_head.at("index.q");
    const auto tokens = static_cast<std::size_t>(layer.heads.front().tokens);
    index_d_ = index_keys_.size() / tokens;
    const std::size_t all = index_queries_.size() / (tokens * index_d_), heads = layer.heads.size();
    if (all % heads != 0 && heads % all != 0) {
      throw InputError{
          fmt::format("read=blocks: expected a number of index heads that is a multiple or a "
                      "divisor of the {} KV heads, got {} index heads",
                      heads, all)};
    }
    index_row_ = all * index_d_;
    own_heads_ = std::max<std::size_t>(1, all / heads);
    first_head_ = all >= heads ? head_ * own_heads_ : head_ * all / heads;
  }
  /// Scores each block by the largest product of an index query and an index key.
  void score_index(std::size_t n_blocks) {
    const auto now = index_queries_.subspan(static_cast<std::size_t>(entries_ - 1) * index_row_);
    scores_.assign(n_blocks, -std::numeric_limits<double>::infinity());
    for (std::int64_t i = 0; i < entries_; ++i) {
      const auto key = index_keys_.subspan(static_cast<std::size_t>(i) * index_d_, index_d_);
      double& score = scores_[static_cast<std::size_t>(i / set_.page)];
      for (std::size_t h = first_head_; h < first_head_ + own_heads_; ++h) {
        score = std::max(score, dot(now.subspan(h * index_d_, index_d_), key));
      }
    }
  }
  /// Scores each block by the largest product of a query of the group and a key.
  void score_keys(std::span<const float> q, const EntryTable& entries, std::size_t n_blocks) {
    scores_.assign(n_blocks, -std::numeric_limits<double>::infinity());
    for (std::int64_t i = 0; i < entries_; ++i) {
      double& score = scores_[static_cast<std::size_t>(i / set_.page)];
      const std::span<const float> key = entries.key(static_cast<std::int32_t>(i));
      for (std::size_t g = 0; g < group_; ++g) {
        score = std::max(score, dot(q.subspan(g * d_, d_), key));
      }
    }
  }
  void score_means(std::span<const float> q, std::size_t n_blocks) {
    scores_.resize(n_blocks);
    for (std::size_t block = 0; block < n_blocks; ++block) {
      const double* sum = sums_.data() + block * d_;
      double product = 0;
      for (std::size_t j = 0; j < d_; ++j) product += q[j] * sum[j];
      scores_[block] = product / static_cast<double>(size_of(block));
    }
  }
  /// Writes the blocks to read to chosen_, ascending: the first, then the last, then those with the
  /// largest scores; ties go to the older.
  void choose(std::size_t n_blocks) {
    const auto rank = [&](std::size_t block) {
      if (static_cast<std::int64_t>(block) < set_.first) return 2;
      return static_cast<std::int64_t>(n_blocks - block) <= set_.last ? 1 : 0;
    };
    chosen_.resize(n_blocks);
    std::iota(chosen_.begin(), chosen_.end(), std::size_t{0});
    const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(set_.topk);
    std::nth_element(chosen_.begin(), end - 1, chosen_.end(), [&](std::size_t a, std::size_t b) {
      if (rank(a) != rank(b)) return rank(a) > rank(b);
      return scores_[a] != scores_[b] && rank(a) == 0 ? scores_[a] > scores_[b] : a < b;
    });
    chosen_.erase(end, chosen_.end());
    std::sort(chosen_.begin(), chosen_.end());
  }

  BlockSettings set_;
  std::size_t group_, d_, head_;
  GroupAttention whole_, single_;
  std::int64_t entries_ = 0;
  std::span<const float> index_keys_, index_queries_;
  std::size_t index_d_ = 0, index_row_ = 0, first_head_ = 0, own_heads_ = 1;
  std::vector<double> sums_;  // [blocks, d], sums of keys
  std::vector<double> scores_;
  std::vector<std::size_t> chosen_;
  std::vector<bool> read_;
  std::vector<float> keys_, values_;  // of the chosen blocks
};

class BlockRule final : public ReadRule, public ReadsPromptInPart {
 public:
  explicit BlockRule(const BlockSettings& settings) : set_{settings} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::move(start_heads(place, 1).front());
  }
  std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                   std::size_t heads) const override {
    std::vector<std::unique_ptr<Reader>> all(heads);
    if (place.layer < set_.dense) return all;
    for (std::size_t h = 0; h < heads; ++h) {
      all[h] = std::make_unique<BlockReader>(place, set_, h);
    }
    return all;
  }
  bool needs_layer() const override { return set_.digest == Digest::kIndex; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    if (set_.digest == Digest::kIndex) needs.inputs.per_head = {"index.q", "index.k"};
    return needs;
  }
  /// Index keys of a layer, divided evenly among its stored heads; or a mean key per block.
  CacheBytes cache_bytes(std::int32_t layer, Bytes full, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& shape) const override {
    Bytes side{0};
    if (layer >= set_.dense && set_.digest == Digest::kIndex) {
      side = Bytes{(set_.index_row() * entries + set_.heads - 1) / set_.heads};
    } else if (layer >= set_.dense && set_.digest == Digest::kMean) {
      side = bytes_of((entries + set_.page - 1) / set_.page * shape.head_dim, shape.stored);
    }
    return {.kv = full, .side = side, .host = Bytes{0}};
  }
  double entries_read(std::int32_t layer, double entries) const override {
    if (layer < set_.dense) return -1;
    const double choosers = set_.digest == Digest::kMean ? static_cast<double>(set_.group) : 1;
    return std::min(entries, choosers * static_cast<double>(set_.topk * set_.page));
  }
  std::int32_t layer_kind(std::int32_t layer) const override { return layer < set_.dense ? 0 : 1; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (events.read < 0) return;  // a layer that reads all entries
    if (set_.digest == Digest::kIndex) {
      const double share = 1.0 / static_cast<double>(set_.heads);
      traffic.side_read += static_cast<double>(set_.index_row()) * events.attended * share;
      traffic.side_write += static_cast<double>(set_.index_row()) * share;
      traffic.extra_flops += index_flops() * events.attended * share;
    } else if (set_.digest == Digest::kMean) {
      const double blocks = std::ceil(events.attended / static_cast<double>(set_.page));
      const double row = shape.head_dim * bits_of(shape.stored) / 8.0;
      traffic.side_read += blocks * row;
      traffic.side_write += row;  // the last block's mean, updated for the new token
      traffic.extra_flops += blocks * 2.0 * shape.head_dim * shape.group;
    }
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const auto n = static_cast<double>(prompt);
    PrefillExtra extra;
    if (set_.digest == Digest::kIndex) {
      extra.flops = index_flops() * n * n / 2;
      extra.read = extra.written = static_cast<double>(set_.index_row()) * n;
      extra.launches = 2;  // scores, choice
    } else if (set_.digest == Digest::kMean) {
      const double blocks = std::ceil(n / static_cast<double>(set_.page));
      const double row =
          static_cast<double>(shape.n_kv_heads) * shape.head_dim * bits_of(recorded) / 8.0;
      extra.flops = 2.0 * n * blocks / 2 * shape.n_heads * shape.head_dim;
      extra.read = n * row;
      extra.written = blocks * row;
      extra.launches = 3;  // means, scores, choice
    }
    return extra;
  }
  /// Query t reads topk blocks; the last is the query's block up to the query.
  double prompt_pairs_share(std::int64_t prompt) const override {
    const auto n = static_cast<double>(prompt);
    const auto page = static_cast<double>(set_.page);
    const double all = std::min(n, static_cast<double>(set_.topk) * page);
    const double rest = n - all, blocks = std::floor(rest / page), part = rest - blocks * page;
    const double earlier = static_cast<double>(set_.topk - 1) * page;
    const double pairs = all * (all + 1) / 2 + blocks * (page * earlier + page * (page + 1) / 2) +
                         part * earlier + part * (part + 1) / 2;
    const double sparse = 1.0 - static_cast<double>(std::min(set_.dense, set_.n_layers)) /
                                    static_cast<double>(set_.n_layers);
    return 1 - sparse * (1 - pairs / (n * (n + 1) / 2));
  }

 private:
  [[nodiscard]] double index_flops() const {
    return 2.0 * static_cast<double>(set_.index_heads * set_.index_dim);
  }

  BlockSettings set_;
};

std::shared_ptr<const ReadRule> resolve_blocks(MethodResolver& resolver) {
  if (resolver.choice("select") != "all" || resolver.choice("share") != "none" ||
      resolver.word("granularity") != "kv_head") {
    resolver.refuse(
        "read=blocks chooses among all tokens of a KV head: expected select=all, share=none and "
        "granularity=kv_head");
  }
  const std::string& digest = resolver.word("digest");
  BlockSettings set{.digest = digest == "index"  ? Digest::kIndex
                              : digest == "mean" ? Digest::kMean
                                                 : Digest::kKeys,
                    .topk = resolver.integer("topk"),
                    .page = resolver.integer("page"),
                    .first = resolver.integer("first"),
                    .last = resolver.integer("last"),
                    .dense = static_cast<std::int32_t>(resolver.integer("dense")),
                    .n_layers = std::max(resolver.n_layers(), 1),
                    .index_heads = resolver.integer("index_heads"),
                    .index_dim = resolver.integer("index_dim"),
                    .index_bytes = resolver.word("index_format") == "fp8" ? 1 : 2,
                    .heads = std::max(resolver.site().shape.n_kv_heads, 1),
                    .group = group_of(resolver)};
  if (digest == "mean" && resolver.store().groups_tokens()) {
    resolver.refuse(fmt::format(
        "read=blocks averages keys when they are written, but store={} rewrites them later",
        resolver.choice("store")));
  }
  return std::make_shared<BlockRule>(set);
}

}  // namespace

AxisChoice read_blocks() {
  return {
      .axis = "read",
      .name = "blocks",
      .params = {word_param(
                     "digest", {"index", "mean", "keys"},
                     "a block's score: the largest score of the trace's indexer (index.q, index.k; "
                     "index.w is not used) for each KV head; the mean key times the query of each "
                     "query head; or the largest logit of any query head of a KV head",
                     "MiniMax-M3: index; MoBA: mean; keys are a reference of this program"),
                 integer_param("topk", "", 16, 1, kManyEntries, ">= 1",
                               "blocks that a query reads, including those that it always reads",
                               "MiniMax-M3: 16"),
                 integer_param("page", "", 128, 1, kManyEntries, ">= 1", "tokens of a block",
                               "MiniMax-M3: 128"),
                 integer_param("first", "", 0, 0, 65536, "an integer in [0, 65536]",
                               "first blocks that are always read; chosen before the last blocks",
                               "MiniMax-M3: 0"),
                 integer_param("last", "", 1, 1, 65536, "an integer in [1, 65536]",
                               "last blocks that are always read, including the query's block",
                               "MiniMax-M3 and MoBA: 1"),
                 integer_param("dense", "", 3, 0, 65536, "an integer in [0, 65536]",
                               "first layers that read everything", "MiniMax-M3: 3"),
                 integer_param("index_heads", "", 4, 1, 65536, ">= 1",
                               "query heads of the indexer, for costs", "MiniMax-M3: 4"),
                 integer_param("index_dim", "", 128, 1, 65536, ">= 1",
                               "channels of an index key, for costs", "MiniMax-M3: 128"),
                 word_param("index_format", {"bf16", "fp8"}, "format of index keys, for costs",
                            "MiniMax-M3: bf16, fp8 as an option")},
      .make = &resolve_blocks,
      .takes_budget = false};
}

}  // namespace kvsim
