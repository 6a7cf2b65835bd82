// ShadowKV: keys as a low-rank product shared by all heads of the layer, values in host memory. A
// step selects chunks of the prompt by their mean keys, reconstructs their keys and fetches their
// values. The prompt's last chunks, chunks whose keys differ most, and generated tokens are kept in
// full.

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "models/math/low_rank/truncated_svd.hpp"
#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct ShadowSettings {
  std::int64_t tokens = 2048;  // tokens of chunks read per step
  std::int64_t rank = 160;
  std::int64_t chunk = 8;
  std::int64_t local_chunks = 4;
  std::int64_t outlier_chunks = -1;  // -1: 24 per 1024 of `tokens`
};

/// Partition of a prompt, which is the same in every head.
struct ShadowParts {
  std::int64_t chunks = 0;    // chunks before the local chunks
  std::int64_t outliers = 0;  // chunks kept in full
  std::int64_t chosen = 0;    // other chunks that are read per step
  std::int64_t covered = 0;   // tokens of `chunks`; the rest of the prompt is local
  bool whole = false;         // the budget covers the prompt: no factorisation

  ShadowParts(const ShadowSettings& set, std::int64_t prompt) {
    chunks = std::max<std::int64_t>(0, prompt / set.chunk - set.local_chunks);
    covered = chunks * set.chunk;
    const std::int64_t wanted =
        set.outlier_chunks >= 0 ? set.outlier_chunks : 24 * set.tokens / 1024;
    outliers = std::min(wanted, chunks);
    chosen = std::min(std::max<std::int64_t>(1, set.tokens / set.chunk), chunks - outliers);
    whole = set.tokens >= prompt || chunks == 0;
  }
  [[nodiscard]] std::int64_t landmarks() const { return chunks - outliers; }
};

/// Keys of a layer, reconstructed from its factors, for all heads. Computed on first use.
class ShadowKeys {
 public:
  /// Returns the keys [prompt, d] of the layer's head `head`, after RoPE.
  std::span<const float> of_head(const PromptScores& scores, std::size_t head, std::int64_t rank) {
    if (rebuilt_.empty()) rebuild(scores, rank);
    return rebuilt_.at(head);
  }

 private:
  void rebuild(const PromptScores& scores, std::int64_t rank) {
    const auto heads = scores.heads();
    const Rope* rope = scores.layer().rope;
    KVSIM_CHECK(rope != nullptr, "keys before RoPE without the rotary embedding");
    const auto d = static_cast<std::size_t>(heads.front().head_dim);
    const auto prompt = static_cast<std::size_t>(heads.front().prompt);
    const std::size_t width = heads.size() * d;
    std::vector<float> rows(prompt * width);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (std::size_t t = 0; t < prompt; ++t) {
        const std::span<float> row = std::span{rows}.subspan(t * width + h * d, d);
        const auto key = heads[h].key(static_cast<std::int64_t>(t));
        std::copy(key.begin(), key.end(), row.begin());
        rope->rotate(row, -static_cast<std::int64_t>(t));
      }
    }
    const bool exact = rank >= static_cast<std::int64_t>(std::min(prompt, width));
    if (!exact) {
      rows = nearest_of_rank(rows, static_cast<std::int64_t>(prompt),
                             static_cast<std::int64_t>(width), rank);
    }
    rebuilt_.resize(heads.size());
    for (std::size_t h = 0; h < heads.size(); ++h) {
      if (exact) {  // applying and reversing RoPE would round
        const auto keys = heads[h].keys.first(prompt * d);
        rebuilt_[h].assign(keys.begin(), keys.end());
        continue;
      }
      rebuilt_[h].resize(prompt * d);
      for (std::size_t t = 0; t < prompt; ++t) {
        const std::span<float> row = std::span{rebuilt_[h]}.subspan(t * d, d);
        const auto head = std::span{rows}.subspan(t * width + h * d, d);
        std::copy(head.begin(), head.end(), row.begin());
        rope->rotate(row, static_cast<std::int64_t>(t));
      }
    }
  }
  std::vector<std::vector<float>> rebuilt_;  // by head
};

double cosine(std::span<const float> a, std::span<const float> b) {
  const double norms = dot(a, a) * dot(b, b);
  return norms > 0 ? dot(a, b) / std::sqrt(norms) : 0.0;
}

class ShadowReader final : public Reader {
 public:
  ShadowReader(const SessionPlace& place, const ShadowSettings& settings,
               std::shared_ptr<ShadowKeys> keys, Dtype stored)
      : set_{settings},
        parts_{settings, 1},
        shared_{std::move(keys)},
        stored_{stored},
        group_{static_cast<std::size_t>(place.group)},
        d_{static_cast<std::size_t>(place.head_dim)},
        attention_{place.group, place.head_dim, place.scale},
        landmark_attention_{place.group, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    parts_ = ShadowParts{set_, entries.size()};
    if (parts_.whole) return;
    rebuilt_ = shared_->of_head(scores, head, set_.rank);
    find_landmarks(entries);
    was_chosen_.assign(chunk_of_.size(), false);
    is_chosen_.assign(chunk_of_.size(), false);
  }
  void appended(const EntryTable& /*entries*/, std::int32_t /*slot*/) override {}

  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    outcome.from_host = Bytes{0};
    if (parts_.whole) {
      run(q, entries.keys(), entries.values(), outcome);
      return;
    }
    choose(q);
    keys_.clear();
    values_.clear();
    std::int64_t misses = 0;
    for (std::size_t i = 0; i < chunk_of_.size(); ++i) {
      if (is_chosen_[i]) {
        const std::int64_t first = chunk_of_[i] * set_.chunk;
        append_rows(rebuilt_, entries.values(), first, first + set_.chunk);
        if (!was_chosen_[i]) ++misses;
      }
    }
    for (const std::int64_t chunk : outliers_) {
      append_rows(entries.keys(), entries.values(), chunk * set_.chunk, (chunk + 1) * set_.chunk);
    }
    append_rows(entries.keys(), entries.values(), parts_.covered, entries.size());
    run(q, keys_, values_, outcome);
    outcome.from_host = bytes_of(misses * set_.chunk * static_cast<std::int64_t>(d_), stored_);
    ++steps_;
    misses_ += misses;
    std::swap(was_chosen_, is_chosen_);
  }

  void report(Counts& counts) const override {
    if (parts_.whole) {
      counts["shadowkv_heads_whole"] += 1;
      return;
    }
    counts["shadowkv_chunks_fetched"] += static_cast<double>(misses_);
    counts["shadowkv_chunks_chosen"] += static_cast<double>(steps_ * parts_.chosen);
  }

 private:
  /// Computes landmarks, the mean keys of chunks; the chunks that they represent worst are kept in
  /// full.
  void find_landmarks(const EntryTable& entries) {
    std::vector<float> means(static_cast<std::size_t>(parts_.chunks) * d_);
    std::vector<double> worst(static_cast<std::size_t>(parts_.chunks));
    std::vector<double> sum(d_);
    for (std::int64_t c = 0; c < parts_.chunks; ++c) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::int64_t t = c * set_.chunk; t < (c + 1) * set_.chunk; ++t) {
        const auto key = entries.key(static_cast<std::int32_t>(t));
        for (std::size_t j = 0; j < d_; ++j) sum[j] += static_cast<double>(key[j]);
      }
      const std::span<float> mean = std::span{means}.subspan(static_cast<std::size_t>(c) * d_, d_);
      for (std::size_t j = 0; j < d_; ++j) {
        mean[j] = static_cast<float>(sum[j] / static_cast<double>(set_.chunk));
      }
      double min = 1;
      for (std::int64_t t = c * set_.chunk; t < (c + 1) * set_.chunk; ++t) {
        min = std::min(min, cosine(entries.key(static_cast<std::int32_t>(t)), mean));
      }
      worst[static_cast<std::size_t>(c)] = min;
    }
    std::vector<std::int64_t> order(static_cast<std::size_t>(parts_.chunks));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&worst](std::int64_t a, std::int64_t b) {
      return worst[static_cast<std::size_t>(a)] < worst[static_cast<std::size_t>(b)];
    });
    const auto split = order.begin() + static_cast<std::ptrdiff_t>(parts_.outliers);
    outliers_.assign(order.begin(), split);
    chunk_of_.assign(split, order.end());
    std::sort(outliers_.begin(), outliers_.end());
    std::sort(chunk_of_.begin(), chunk_of_.end());
    for (const std::int64_t c : chunk_of_) {
      const auto mean = std::span{means}.subspan(static_cast<std::size_t>(c) * d_, d_);
      landmarks_.insert(landmarks_.end(), mean.begin(), mean.end());
    }
  }

  /// Marks in is_chosen_ the chunks whose landmark has the largest weight for any query head of the
  /// group, after a softmax over landmarks; ties go to the older.
  void choose(std::span<const float> q) {
    const auto chosen = static_cast<std::size_t>(parts_.chosen);
    is_chosen_.assign(chunk_of_.size(), chosen >= chunk_of_.size());
    if (chosen >= chunk_of_.size()) return;
    landmark_attention_.run_weights(q, landmarks_, {});
    const auto first = landmark_attention_.probabilities(0);
    weight_.assign(first.begin(), first.end());
    for (std::size_t g = 1; g < group_; ++g) {
      const auto more = landmark_attention_.probabilities(static_cast<std::int32_t>(g));
      for (std::size_t i = 0; i < more.size(); ++i) weight_[i] = std::max(weight_[i], more[i]);
    }
    order_.resize(weight_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(chosen),
                     order_.end(), [this](std::size_t a, std::size_t b) {
                       return weight_[a] != weight_[b] ? weight_[a] > weight_[b] : a < b;
                     });
    for (std::size_t i = 0; i < chosen; ++i) is_chosen_[order_[i]] = true;
  }

  void append_rows(std::span<const float> keys, std::span<const float> values, std::int64_t first,
                   std::int64_t last) {
    const auto at = static_cast<std::size_t>(first) * d_;
    const auto n = static_cast<std::size_t>(last - first) * d_;
    keys_.insert(keys_.end(), keys.data() + at, keys.data() + at + n);
    values_.insert(values_.end(), values.data() + at, values.data() + at + n);
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

  ShadowSettings set_;
  ShadowParts parts_;
  std::shared_ptr<ShadowKeys> shared_;
  Dtype stored_;
  std::size_t group_, d_;
  GroupAttention attention_, landmark_attention_;
  std::span<const float> rebuilt_;      // [prompt, d], in shared_
  std::vector<std::int64_t> chunk_of_;  // by landmark
  std::vector<std::int64_t> outliers_;  // chunks
  std::vector<float> landmarks_;        // [landmarks, d]
  std::vector<double> weight_;          // by landmark
  std::vector<std::size_t> order_;
  std::vector<bool> is_chosen_, was_chosen_;  // by landmark
  std::vector<float> keys_, values_;          // entries that the step reads
  std::int64_t steps_ = 0, misses_ = 0;
};

class ShadowRule final : public ReadRule {
 public:
  ShadowRule(const ShadowSettings& settings, std::int32_t kv_heads, Dtype stored)
      : set_{settings}, kv_heads_{std::max(kv_heads, 1)}, stored_{stored} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::move(start_heads(place, 1).front());
  }
  std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                   std::size_t heads) const override {
    const auto keys = std::make_shared<ShadowKeys>();
    std::vector<std::unique_ptr<Reader>> readers;
    for (std::size_t h = 0; h < heads; ++h) {
      readers.push_back(std::make_unique<ShadowReader>(place, set_, keys, stored_));
    }
    return readers;
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  bool needs_layer() const override { return true; }
  bool keeps_rows() const override { return false; }

  /// In GPU memory: a share of the layer's left factor, the head's right factor, rows in full,
  /// space for the values of the chosen chunks, and landmarks. In host memory: the prompt's values.
  CacheBytes cache_bytes(std::int32_t /*layer*/, Bytes full, std::int64_t prompt,
                         std::int64_t entries, const HeadShape& shape) const override {
    const ShadowParts parts{set_, prompt};
    if (parts.whole) return {.kv = full, .side = Bytes{0}, .host = Bytes{0}};
    const std::int64_t d = shape.head_dim;
    const std::int64_t rank = rank_of(prompt, d);
    const std::int64_t resident =
        entries - prompt + (prompt - parts.covered) + parts.outliers * set_.chunk;
    const std::int64_t left = (prompt * rank + kv_heads_ - 1) / kv_heads_;  // rounded up per head
    const std::int64_t elements =
        left + rank * d + 2 * resident * d + parts.chosen * set_.chunk * d;
    return {.kv = bytes_of(elements, shape.stored),
            .side = bytes_of(parts.landmarks() * d, shape.stored),
            .host = bytes_of(prompt * d, shape.stored)};
  }
  double entries_read(std::int32_t /*layer*/, double entries) const override {
    // The prompt length is unknown here; most of a long sequence is the prompt.
    const ShadowParts parts{set_, static_cast<std::int64_t>(entries)};
    if (parts.whole) return entries;
    return std::min(entries, entries - static_cast<double>(parts.covered) +
                                 static_cast<double>((parts.outliers + parts.chosen) * set_.chunk));
  }
  double link_bytes(double entries, const HeadShape& shape) const override {
    const ShadowParts parts{set_, static_cast<std::int64_t>(entries)};
    if (parts.whole) return 0;
    return static_cast<double>(parts.chosen * set_.chunk) * shape.head_dim * bits_of(shape.stored) /
           8.0;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const std::int64_t prompt =
        static_cast<std::int64_t>(events.prompt > 0 ? events.prompt : events.attended);
    const ShadowParts parts{set_, prompt};
    if (parts.whole) return;
    const auto rows = static_cast<double>(parts.chosen * set_.chunk);
    const auto rank = static_cast<double>(rank_of(prompt, shape.head_dim));
    const double element = bits_of(shape.stored) / 8.0;
    traffic.side_read += static_cast<double>(parts.landmarks()) * shape.head_dim * element;
    // Reads factors instead of the chosen chunks' keys, which are written once; their reads are
    // already counted.
    traffic.move_read += (rows * rank + rank * shape.head_dim) * element;
    traffic.move_write += rows * shape.head_dim * element;
    traffic.extra_flops +=
        2.0 * rows * rank * shape.head_dim + 3.0 * rows * shape.head_dim +
        2.0 * static_cast<double>(parts.landmarks()) * shape.head_dim * shape.group;
  }
  /// An SVD of [prompt, n_kv_heads d] (Golub and Van Loan: 6 m n^2 + 20 n^3 with QR first), the
  /// landmarks, and the copy of the values to host memory.
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const ShadowParts parts{set_, prompt};
    if (parts.whole) return {};
    const auto m = static_cast<double>(prompt);
    const double n = static_cast<double>(shape.n_kv_heads) * shape.head_dim;
    const double small = std::min(m, n);
    const double element = bits_of(recorded) / 8.0;
    const auto rank = static_cast<double>(rank_of(prompt, shape.head_dim));
    return {
        .flops = 6.0 * std::max(m, n) * small * small + 20.0 * small * small * small + 5.0 * m * n,
        .read = 3.0 * m * n * element,
        .written = (rank * (m + n) + m * n + m * n / static_cast<double>(set_.chunk)) * element,
        .transient = bytes_of(prompt * shape.n_kv_heads * shape.head_dim, Dtype::kFp32),
        .launches = 3,
        .prefill_repeats = 0};
  }

 private:
  [[nodiscard]] std::int64_t rank_of(std::int64_t prompt, std::int64_t head_dim) const {
    return std::min({set_.rank, prompt, kv_heads_ * head_dim});
  }
  ShadowSettings set_;
  std::int64_t kv_heads_;
  Dtype stored_;
};

std::shared_ptr<const ReadRule> resolve_shadowkv(MethodResolver& resolver) {
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("read=shadowkv factors the keys of KV heads: expected granularity=kv_head");
  }
  const std::string& store = resolver.choice("store");
  if (store != "recorded" && store != "fp16" && store != "bf16" && store != "fp32") {
    resolver.refuse(fmt::format(
        "read=shadowkv stores keys as factors: expected a floating-point store, got {}", store));
  }
  ShadowSettings set;
  set.tokens = resolve_token_budget(resolver, 0.2);
  set.rank = resolver.integer("rank");
  set.chunk = resolver.integer("chunk");
  set.local_chunks = resolver.integer("local_chunks");
  set.outlier_chunks = resolver.integer("outlier_chunks");
  const MethodContext& site = resolver.site();
  return std::make_shared<ShadowRule>(set, site.shape.n_kv_heads,
                                      resolver.store().dtype(site.recorded));
}

}  // namespace

AxisChoice read_shadowkv() {
  const std::string source = "ShadowKV, released code";
  return {
      .axis = "read",
      .name = "shadowkv",
      .params = {token_budget_param(2048,
                                    "entries of chosen chunks that a step reads, in addition to "
                                    "outliers, local and generated ones; a budget sets this "
                                    "number, and the cache stays whole if it covers the prompt",
                                    source),
                 integer_param("rank", "r", 160, 1, 65536, "an integer in [1, 65536]",
                               "rank of the factors of a layer's keys before RoPE", source),
                 integer_param("chunk", "", 8, 1, 65536, "an integer in [1, 65536]",
                               "entries per chunk, chosen and fetched together", source),
                 integer_param(
                     "local_chunks", "", 4, 0, 65536, "an integer in [0, 65536]",
                     "last chunks of the prompt kept in full, in addition to a partial chunk",
                     source),
                 integer_param("outlier_chunks", "", -1, -1, 65536,
                               "an integer in [0, 65536], or -1 for 24 in 1024 of the budget",
                               "chunks kept in full, whose keys are least similar to their mean",
                               source + ": 48 at 2048, 24 in 1024 in its batched form")},
      .make = &resolve_shadowkv};
}

}  // namespace kvsim
