// DeepSeek's sparse attention (DSA): an indexer scores every token for a query, and all heads
// attend over the best `topk`. Source: DeepSeek-V3.2-Exp, inference/model.py and kernel.py
// (3b99a53). Scores come from a recorded indexer (index.q after RoPE, index.k after LayerNorm and
// RoPE, index.w including both square roots), or from the full attention's probabilities summed
// over all query heads of a layer. These are an upper bound of the mass retained by an indexer with
// one set of tokens.

#include <algorithm>
#include <bit>
#include <memory>

#include <fmt/format.h>

#include "models/math/attention/index_scores.hpp"
#include "models/methods/prefill_axis.hpp"
#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kScaleBytes = 4;  // per index key

/// The tokens that one layer attends over at a step.
class IndexedTokens {
 public:
  IndexedTokens(std::int64_t topk, bool oracle, bool rounds)
      : topk_{static_cast<std::size_t>(topk)}, oracle_{oracle}, rounds_{rounds} {}

  void start(const LayerVectors& layer) {
    if (layer_ != nullptr) return;
    layer_ = &layer;
    if (oracle_) return;
    const std::span<const float> keys = layer.per_head.at("index.k");
    keys_.assign(keys.begin(), keys.end());
    d_ = keys.size() / static_cast<std::size_t>(layer.heads.front().tokens);
    if (!rounds_) return;
    if (!std::has_single_bit(d_)) {
      throw InputError{
          fmt::format("read=dsa: index_format=fp8: expected index keys whose length is a power of "
                      "two (a Hadamard rotation), got {}; index_format=exact accepts any length",
                      d_)};
    }
    for (std::size_t at = 0; at < keys_.size(); at += d_) {
      round_index_row(std::span{keys_}.subspan(at, d_));
    }
  }
  /// Returns the positions, ascending, of the tokens that the query at `t` attends over; ties go to
  /// the older.
  const std::vector<std::int32_t>& at(std::int32_t t) {
    if (t == known_) return chosen_;
    known_ = t;
    const auto n = static_cast<std::size_t>(t) + 1;
    chosen_.resize(n);
    for (std::size_t i = 0; i < n; ++i) chosen_[i] = static_cast<std::int32_t>(i);
    if (topk_ >= n) return chosen_;
    scores_.assign(n, 0.0);
    oracle_ ? sum_probabilities(t) : score(t);
    const auto last = chosen_.begin() + static_cast<std::ptrdiff_t>(topk_);
    std::nth_element(chosen_.begin(), last - 1, chosen_.end(), [this](auto a, auto b) {
      const double x = scores_[static_cast<std::size_t>(a)];
      const double y = scores_[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    chosen_.erase(last, chosen_.end());
    std::sort(chosen_.begin(), chosen_.end());
    return chosen_;
  }

 private:
  void score(std::int32_t t) {
    const auto at = static_cast<std::size_t>(t);
    const std::span<const float> w = layer_->per_head.at("index.w");
    const std::size_t heads = w.size() / static_cast<std::size_t>(layer_->heads.front().tokens);
    const auto q = layer_->per_head.at("index.q").subspan(at * heads * d_, heads * d_);
    q_.assign(q.begin(), q.end());
    for (std::size_t h = 0; rounds_ && h < heads; ++h) {
      round_index_row(std::span{q_}.subspan(h * d_, d_));
    }
    index_scores(q_, w.subspan(at * heads, heads), std::span{keys_}.first(scores_.size() * d_),
                 scores_);
  }
  void sum_probabilities(std::int32_t t) {
    for (const HeadVectors& head : layer_->heads) {
      const auto d = static_cast<std::size_t>(head.head_dim);
      q_.clear();
      for (std::int32_t g = 0; g < head.group; ++g) {
        const std::span<const float> q = head.query(g, t);
        q_.insert(q_.end(), q.begin(), q.end());
      }
      GroupAttention attention{head.group, head.head_dim, head.scale};
      attention.run_weights(q_, head.keys.first(scores_.size() * d), {});
      const std::span<const double> sum = attention.group_sum();
      for (std::size_t i = 0; i < scores_.size(); ++i) scores_[i] += sum[i];
    }
  }

  std::size_t topk_;
  bool oracle_, rounds_;
  const LayerVectors* layer_ = nullptr;
  std::size_t d_ = 1;
  std::vector<float> keys_, q_;
  std::vector<double> scores_;
  std::int32_t known_ = -1;
  std::vector<std::int32_t> chosen_;
};

class DsaReader final : public Reader {
 public:
  DsaReader(const SessionPlace& place, std::shared_ptr<IndexedTokens> tokens)
      : d_{static_cast<std::size_t>(place.head_dim)},
        attention_{place.group, place.head_dim, place.scale},
        tokens_{std::move(tokens)} {}

  void prompt_written(EntryTable& /*entries*/, PromptScores& scores,
                      std::size_t /*head*/) override {
    tokens_->start(scores.layer());
  }
  void appended(const EntryTable& entries, std::int32_t slot) override {
    newest_ = entries.id(slot);
  }
  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const std::vector<std::int32_t>& ids = tokens_->at(newest_);
    keys_.clear();
    values_.clear();
    for (const std::int32_t id : ids) {
      const std::int32_t slot = entries.slot_of(id);
      KVSIM_CHECK(slot >= 0, "token {} is not held", id);
      keys_.insert(keys_.end(), entries.key(slot).begin(), entries.key(slot).end());
      values_.insert(values_.end(), entries.value(slot).begin(), entries.value(slot).end());
    }
    attention_.run(q, keys_, values_, {});
    outcome.out.assign(attention_.output().begin(), attention_.output().end());
    outcome.log_sums.resize(q.size() / d_);
    for (std::size_t g = 0; g < outcome.log_sums.size(); ++g) {
      outcome.log_sums[g] = attention_.log_sum(static_cast<std::int32_t>(g));
    }
    outcome.entries_read = static_cast<double>(ids.size());
    outcome.max_read = std::ssize(ids);
  }

 private:
  std::size_t d_;
  GroupAttention attention_;
  std::shared_ptr<IndexedTokens> tokens_;
  std::int32_t newest_ = 0;
  std::vector<float> keys_, values_;
};

class DsaRule final : public ReadRule, public ReadsPromptInPart {
 public:
  struct Settings {
    std::int64_t topk = 1;
    bool oracle = false, rounds = true;
    std::int64_t index_heads = 1, index_dim = 1;
    std::int64_t heads = 1;  // stored heads, which share the index
  };
  explicit DsaRule(const Settings& settings) : settings_{settings} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::move(start_heads(place, 1).front());
  }
  std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                   std::size_t heads) const override {
    auto tokens =
        std::make_shared<IndexedTokens>(settings_.topk, settings_.oracle, settings_.rounds);
    std::vector<std::unique_ptr<Reader>> all;
    for (std::size_t h = 0; h < heads; ++h) {
      all.push_back(std::make_unique<DsaReader>(place, tokens));
    }
    return all;
  }
  bool needs_layer() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    if (!settings_.oracle) needs.inputs.per_head = {"index.q", "index.k", "index.w"};
    return needs;
  }
  /// The index keys of a layer, divided evenly among its stored heads.
  CacheBytes cache_bytes(std::int32_t /*layer*/, Bytes full, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& /*shape*/) const override {
    const std::int64_t index = key_bytes() * entries;
    return {.kv = full,
            .side = Bytes{(index + settings_.heads - 1) / settings_.heads},
            .host = Bytes{0}};
  }
  double entries_read(std::int32_t /*layer*/, double entries) const override {
    return std::min(entries, static_cast<double>(settings_.topk));
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& /*shape*/) const override {
    const double share = 1.0 / static_cast<double>(settings_.heads);
    traffic.side_read += static_cast<double>(key_bytes()) * events.attended * share;
    traffic.side_write += static_cast<double>(key_bytes()) * share;
    traffic.extra_flops += score_flops() * events.attended * share;
  }
  PrefillExtra prefill_extra(const LayerShape& /*shape*/, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const auto n = static_cast<double>(prompt);
    PrefillExtra extra;
    extra.flops = score_flops() * n * n / 2;
    extra.read = static_cast<double>(key_bytes()) * n;
    extra.written = extra.read;
    extra.launches = 4;  // rotation and rounding of queries and keys, scores, choice
    return extra;
  }
  double prompt_pairs_share(std::int64_t prompt) const override {
    const auto n = static_cast<double>(prompt);
    const double k = std::min(n, static_cast<double>(settings_.topk));
    return (k * (k + 1) / 2 + (n - k) * k) / (n * (n + 1) / 2);
  }

 private:
  [[nodiscard]] std::int64_t key_bytes() const { return settings_.index_dim + kScaleBytes; }
  [[nodiscard]] double score_flops() const {
    return 2.0 * static_cast<double>(settings_.index_heads * settings_.index_dim);
  }

  Settings settings_;
};

std::shared_ptr<const ReadRule> resolve_dsa(MethodResolver& resolver) {
  if (resolver.choice("select") != "all" || resolver.choice("share") != "none" ||
      resolver.word("granularity") != "kv_head") {
    resolver.refuse(
        "read=dsa chooses among all tokens of a layer, for all of its heads: expected select=all, "
        "share=none and granularity=kv_head");
  }
  const bool oracle = resolver.word("index") == "oracle";
  return std::make_shared<DsaRule>(
      DsaRule::Settings{.topk = resolver.integer("topk"),
                        .oracle = oracle,
                        .rounds = !oracle && resolver.word("index_format") == "fp8",
                        .index_heads = resolver.integer("index_heads"),
                        .index_dim = resolver.integer("index_dim"),
                        .heads = std::max(resolver.site().shape.n_kv_heads, 1)});
}

}  // namespace

AxisChoice read_dsa() {
  return {.axis = "read",
          .name = "dsa",
          .params = {integer_param("topk", "", 2048, 1, kManyEntries, ">= 1",
                                   "tokens that all heads of a layer attend over",
                                   "DeepSeek-V3.2: index_topk 2048"),
                     word_param("index", {"recorded", "oracle"},
                                "scores of the trace's indexer (index.q, index.k, index.w), or the "
                                "full attention's probabilities summed over the query heads",
                                "DeepSeek-V3.2; the oracle is a reference of this program"),
                     word_param("index_format", {"fp8", "exact"},
                                "the indexer's queries and keys rotated and rounded to E4M3, or as "
                                "recorded",
                                "DeepSeek-V3.2: fp8"),
                     integer_param("index_heads", "", 64, 1, 65536, ">= 1",
                                   "query heads of the indexer, for costs", "DeepSeek-V3.2: 64"),
                     integer_param("index_dim", "", 128, 1, 65536, ">= 1",
                                   "channels of an index key, for costs; 4 B of scale in addition",
                                   "DeepSeek-V3.2: 128")},
          .make = &resolve_dsa,
          .takes_budget = false};
}

}  // namespace kvsim
