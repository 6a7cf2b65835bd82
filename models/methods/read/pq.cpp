// PQCache (Zhang et al. 2024, arXiv 2407.12820; vq_method/retrieval_based/pq_search.py): keys in
// host memory, retrieved by product quantisation.
//
//   prompt: every key after the sinks is split into `subvectors` parts; each part of a KV head has
//           2^bits centres, from k-means in fp32 on the CPU during the prefill; stored in fp16
//   step:   logit of a key ~ sum over parts of query part . centre of its code; softmax over the
//           candidates (all between sinks and recent tokens); sum over the group; the top k tokens
//           are fetched; exact attention over sinks, recent, fetched and the new token
//
// A generated token is assigned the nearest centres. Its code is counted when it is no longer
// recent. Budgets: a step reads `token_budget` tokens and the new one: sinks, the share
// recent_share of the rest as recent tokens, top k. In the released code both are shares of the
// prompt without its sinks. As released, all entries stay and are read if at most as many tokens as
// centres follow the sinks.
//
// Centres: the released code starts k-means at random rows; here at evenly spaced rows. It stores
// codes as 64-bit integers; here bytes are counted from the bits. Its cache of fetched blocks (LFU)
// is not modelled: every chosen token is fetched.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "models/math/attention/key_redundancy.hpp"
#include "models/math/kmeans.hpp"
#include "models/math/low_int.hpp"
#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kDefaultShare = 0.1;  // of the prompt: COMPRESS in run_llama.sh

struct PqSettings {
  std::int64_t sinks = 32, recent = 0, chosen = 0;
  std::int32_t subvectors = 2;
  std::int32_t bits = 6;
  std::int32_t iterations = 25;
  [[nodiscard]] std::int32_t centres() const { return 1 << bits; }
  /// True if a prompt of `prompt` tokens is not indexed.
  [[nodiscard]] bool whole(std::int64_t prompt) const {
    return prompt - sinks <= centres() || sinks + recent + chosen >= prompt;
  }
  [[nodiscard]] std::int64_t code_bytes(std::int64_t tokens) const {
    return (tokens * subvectors * bits + 7) / 8;
  }
  /// Bytes of the fp16 centres of one KV head.
  [[nodiscard]] std::int64_t centre_bytes(std::int32_t head_dim) const {
    return std::int64_t{2} * centres() * head_dim;
  }
};

class PqReader final : public Reader {
 public:
  PqReader(const SessionPlace& place, const PqSettings& settings, Dtype stored)
      : set_{settings},
        stored_{stored},
        group_{static_cast<std::size_t>(place.group)},
        d_{static_cast<std::size_t>(place.head_dim)},
        scale_{place.scale},
        attention_{place.group, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& /*scores*/,
                      std::size_t /*head*/) override {
    whole_ = set_.whole(entries.size());
    if (whole_) return;
    const auto first = static_cast<std::size_t>(set_.sinks);
    const std::size_t n = static_cast<std::size_t>(entries.size()) - first;
    const std::size_t part = part_size();
    codes_.resize(n * parts());
    for (std::size_t p = 0; p < parts(); ++p) {
      std::vector<float> rows;
      for (std::size_t i = 0; i < n; ++i) {
        const auto row = entries.key(static_cast<std::int32_t>(first + i)).subspan(p * part, part);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      KmeansRows found =
          kmeans_rows(rows, static_cast<std::int32_t>(part), set_.centres(), set_.iterations);
      for (float& x : found.centres) x = as_stored(x, Dtype::kFp16);
      centres_.push_back(std::move(found.centres));
      for (std::size_t i = 0; i < n; ++i) codes_[i * parts() + p] = found.nearest[i];
    }
  }
  void appended(const EntryTable& entries, std::int32_t slot) override {
    if (whole_) return;
    for (std::size_t p = 0; p < parts(); ++p) {
      codes_.push_back(
          nearest_centre(entries.key(slot).subspan(p * part_size(), part_size()), centres_[p]));
    }
  }

  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    outcome.from_host = Bytes{0};
    const auto held = static_cast<std::size_t>(entries.size());
    const auto sinks = static_cast<std::size_t>(set_.sinks);
    const auto recent = static_cast<std::size_t>(set_.recent) + 1;  // plus the new token
    const auto wanted = static_cast<std::size_t>(set_.chosen);
    if (whole_ || sinks + recent + wanted >= held) {
      run(q, entries.keys(), entries.values(), outcome);
      return;
    }
    weigh(q, held - recent - sinks);
    order_.resize(weight_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    if (wanted > 0) {
      std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(wanted),
                       order_.end(), [this](std::size_t a, std::size_t b) {
                         return weight_[a] != weight_[b] ? weight_[a] > weight_[b] : a < b;
                       });
    }
    order_.resize(wanted);
    std::sort(order_.begin(), order_.end());
    keys_.clear();
    values_.clear();
    copy_rows(entries, 0, sinks);
    for (const std::size_t i : order_) copy_rows(entries, sinks + i, sinks + i + 1);
    copy_rows(entries, held - recent, held);
    run(q, keys_, values_, outcome);
    outcome.from_host = bytes_of(2 * set_.chosen * static_cast<std::int64_t>(d_), stored_);
    count_recall(q, entries, sinks, held - recent);
  }

  void report(Counts& counts) const override {
    if (whole_) {
      counts["pqcache_heads_whole"] += 1;
      return;
    }
    counts["pqcache_tokens_chosen"] += static_cast<double>(chosen_);
    counts["pqcache_tokens_found"] += static_cast<double>(found_);
  }

 private:
  [[nodiscard]] std::size_t parts() const { return static_cast<std::size_t>(set_.subvectors); }
  [[nodiscard]] std::size_t part_size() const { return d_ / parts(); }

  /// Writes to weight_ the sum over the group of the candidates' weights.
  void weigh(std::span<const float> q, std::size_t candidates) {
    const auto n_centres = static_cast<std::size_t>(set_.centres());
    weight_.assign(candidates, 0.0);
    std::vector<double> table(parts() * n_centres), logits(candidates);
    for (std::size_t g = 0; g < group_; ++g) {
      for (std::size_t p = 0; p < parts(); ++p) {
        const auto query = q.subspan(g * d_ + p * part_size(), part_size());
        for (std::size_t c = 0; c < n_centres; ++c) {
          double sum = 0;
          for (std::size_t j = 0; j < query.size(); ++j) {
            sum += static_cast<double>(query[j]) *
                   static_cast<double>(centres_[p][c * part_size() + j]);
          }
          table[p * n_centres + c] = sum * scale_;
        }
      }
      for (std::size_t i = 0; i < candidates; ++i) {
        logits[i] = 0;
        for (std::size_t p = 0; p < parts(); ++p) {
          logits[i] += table[p * n_centres + static_cast<std::size_t>(codes_[i * parts() + p])];
        }
      }
      softmax_in_place(logits);
      for (std::size_t i = 0; i < candidates; ++i) weight_[i] += logits[i];
    }
  }

  /// Counts the chosen tokens that would also be chosen with exact keys.
  void count_recall(std::span<const float> q, const EntryTable& entries, std::size_t first,
                    std::size_t last) {
    attention_.run_weights(q, entries.keys().subspan(first * d_, (last - first) * d_), {});
    const std::span<const double> exact = attention_.group_sum();
    std::copy(exact.begin(), exact.end(), weight_.begin());
    std::vector<std::size_t> best(weight_.size());
    std::iota(best.begin(), best.end(), std::size_t{0});
    const auto cut = best.begin() + static_cast<std::ptrdiff_t>(order_.size());
    std::nth_element(best.begin(), cut, best.end(), [this](std::size_t a, std::size_t b) {
      return weight_[a] != weight_[b] ? weight_[a] > weight_[b] : a < b;
    });
    std::sort(best.begin(), cut);
    std::vector<std::size_t> both;
    std::set_intersection(best.begin(), cut, order_.begin(), order_.end(),
                          std::back_inserter(both));
    chosen_ += std::ssize(order_);
    found_ += std::ssize(both);
  }

  void copy_rows(const EntryTable& entries, std::size_t first, std::size_t last) {
    const auto keys = entries.keys().subspan(first * d_, (last - first) * d_);
    const auto values = entries.values().subspan(first * d_, (last - first) * d_);
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    values_.insert(values_.end(), values.begin(), values.end());
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

  PqSettings set_;
  Dtype stored_;
  std::size_t group_, d_;
  double scale_;
  GroupAttention attention_;
  bool whole_ = true;
  std::vector<std::vector<float>> centres_;  // by part: [centres, part size]
  std::vector<std::int32_t> codes_;          // by token after the sinks: [tokens, parts]
  std::vector<double> weight_;               // by candidate
  std::vector<std::size_t> order_;           // chosen candidates
  std::vector<float> keys_, values_;         // entries that the step reads
  std::int64_t chosen_ = 0, found_ = 0;
};

class PqRule final : public ReadRule {
 public:
  PqRule(const PqSettings& settings, std::int64_t prompt, Dtype stored)
      : set_{settings}, whole_{settings.whole(prompt)}, stored_{stored} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::make_unique<PqReader>(place, set_, stored_);
  }
  /// In GPU memory: sinks, recent tokens and space for fetched tokens; codes and centres. In host
  /// memory: all keys and values.
  CacheBytes cache_bytes(std::int32_t /*layer*/, Bytes full, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& shape) const override {
    if (whole_) return {.kv = full, .side = Bytes{0}, .host = Bytes{0}};
    const std::int64_t resident = std::min(entries, set_.sinks + set_.recent + set_.chosen);
    const std::int64_t d = shape.head_dim;
    return {
        .kv = bytes_of(2 * resident * d, shape.stored),
        .side = Bytes{set_.code_bytes(entries - set_.sinks) + set_.centre_bytes(shape.head_dim)},
        .host = bytes_of(2 * entries * d, shape.stored)};
  }
  double entries_read(std::int32_t /*layer*/, double entries) const override {
    if (whole_) return entries;
    return std::min(entries, static_cast<double>(set_.sinks + set_.recent + set_.chosen + 1));
  }
  double link_bytes(double entries, const HeadShape& shape) const override {
    if (whole_ || entries_read(0, entries) >= entries) return 0;
    return static_cast<double>(set_.chosen) * shape.row_bytes();
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (whole_) return;
    const double row = shape.row_bytes();
    traffic.link_write += row;  // a token is no longer recent
    const double candidates =
        std::max(0.0, events.attended - static_cast<double>(set_.sinks + set_.recent + 1));
    if (candidates <= static_cast<double>(set_.chosen)) return;
    // Products with the centres; a sum of table entries, a softmax and a sum over the group for
    // each candidate. Fetched rows are written once; their reads are already counted.
    traffic.extra_flops +=
        shape.group * (2.0 * set_.centres() * shape.head_dim + candidates * (set_.subvectors + 4));
    traffic.side_read += candidates * set_.subvectors * set_.bits / 8.0 +
                         static_cast<double>(set_.centre_bytes(shape.head_dim));
    traffic.move_write += static_cast<double>(set_.chosen) * row;
  }
  /// k-means runs on the CPU: the GPU copies keys and values to host memory.
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    if (set_.whole(prompt)) return {};
    const double rows = static_cast<double>(prompt) * shape.n_kv_heads;
    const double bytes = rows * 2.0 * shape.head_dim * bits_of(recorded) / 8.0;
    return {.flops = 0,
            .read = bytes,
            .written = bytes,
            .transient = Bytes{0},
            .launches = 1,
            .prefill_repeats = 0};
  }

 private:
  PqSettings set_;
  bool whole_;
  Dtype stored_;
};

std::shared_ptr<const ReadRule> resolve_pq(MethodResolver& resolver) {
  const std::string& store = resolver.choice("store");
  if (store != "recorded" && store != "fp16" && store != "bf16" && store != "fp32") {
    resolver.refuse(fmt::format(
        "read=pq fetches rows from host memory unchanged: expected a floating-point store, got {}",
        store));
  }
  PqSettings set;
  const std::int64_t tokens = resolve_token_budget(resolver, kDefaultShare);
  set.sinks = resolver.integer("n_sink");
  set.subvectors = static_cast<std::int32_t>(resolver.integer("subvectors"));
  set.bits = static_cast<std::int32_t>(resolver.integer("centre_bits"));
  set.iterations = static_cast<std::int32_t>(resolver.integer("iterations"));
  const std::int32_t d = resolver.site().shape.head_dim;
  if (d > 0 && d % set.subvectors != 0) {
    resolver.refuse(fmt::format("subvectors: expected a divisor of the head dimension {}, got {}",
                                d, set.subvectors));
  }
  if (tokens <= set.sinks && tokens < resolver.prompt()) {
    if (resolver.given("n_sink")) {
      resolver.refuse(
          fmt::format("n_sink: expected fewer than the {} tokens that a step reads, got {}", tokens,
                      set.sinks));
    }
    set.sinks = tokens;  // sinks fill the budget
    resolver.resolve("n_sink", set.sinks);
  }
  const std::int64_t rest = std::max<std::int64_t>(tokens - set.sinks, 0);
  set.recent =
      static_cast<std::int64_t>(static_cast<double>(rest) * resolver.number("recent_share"));
  set.chosen = rest - set.recent;
  return std::make_shared<PqRule>(set, resolver.prompt(),
                                  resolver.store().dtype(resolver.site().recorded));
}

}  // namespace

AxisChoice read_pq() {
  const std::string source = "PQCache, run_llama.sh";
  return {.axis = "read",
          .name = "pq",
          .params = {token_budget_param(0,
                                        "entries that a step reads in addition to the new one: "
                                        "sinks, recent and fetched ones",
                                        source + ": 0.1 of the prompt"),
                     integer_param("n_sink", "", 32, 0, kManyEntries, "an integer >= 0",
                                   "first tokens that stay on the GPU", source),
                     number_param("recent_share", "r", 0.5, 0, 1, "a number in [0, 1]",
                                  "share of recent tokens in the rest", source),
                     integer_param("subvectors", "m", 2, 1, 16, "an integer in [1, 16]",
                                   "parts of a key", source),
                     integer_param("centre_bits", "b", 6, 1, 12, "an integer in [1, 12]",
                                   "bits of a part's code", source),
                     integer_param("iterations", "", 25, 1, 1000, "an integer in [1, 1000]",
                                   "maximum number of k-means iterations",
                                   "PQCache fits them to the prefill's time (MAX_ITER=0)")},
          .make = &resolve_pq};
}

}  // namespace kvsim
