// InfLLM (Xiao et al. 2024, arXiv 2402.04617; thunlp/InfLLM, inf_llm/attention/context_manager.py,
// 12b7079): a window of local tokens, first tokens, and blocks of distant tokens in host memory.
//
//   n tokens so far: the first min(n - n_local, n_init) are initial; whole blocks of `page` tokens
//           after them that have left the local window are in host memory; the rest is the tail
//   block:  for each query head, the mean of the `representatives` keys with the largest
//           attention from local queries, which are less than n_local tokens later
//   step:   score of a block = q . block key, mean over the query heads of the layer; the topk best
//           are fetched; attention over initial tokens, these blocks and the tail
//   prompt: in chunks of 512 queries, which read the best blocks for their mean query. A token
//           becomes initial or part of a block only between chunks
//
// Attention from local queries is that of the method's softmax over the entries read. In decode it
// needs a second pass over the local keys, as in the released kernel. The `cached_blocks` most
// recently used blocks stay on the GPU (LRU) and are not fetched again. Their copies for the
// released kernel are not counted.
//
// Positions: the released code assigns every token outside the local window the distance
// n_local - 1 (far_positions=one). The outputs then differ from full attention not only by skipped
// entries, so the default reads keys at their original positions.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "models/methods/prefill_axis.hpp"
#include "models/methods/read/read.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

// In the released sizes (llama-3-inf-llm.yaml), 1/49 are initial tokens and 16/49 blocks.
constexpr std::int64_t kParts = 49, kBlockParts = 16;

struct InfllmSettings {
  std::int64_t init = 128, local = 4096, topk = 16, page = 128;
  std::int64_t representatives = 4;
  std::int64_t chunk = 512;
  std::int64_t cached = 32;   // blocks on the GPU, at least topk
  bool one_position = false;  // all far tokens have the same distance

  // State after n tokens were processed. A step reads the state before it.
  [[nodiscard]] std::int64_t init_at(std::int64_t n) const {
    return std::clamp<std::int64_t>(n - local, 0, init);
  }
  [[nodiscard]] std::int64_t blocks_at(std::int64_t n) const {
    return std::max<std::int64_t>(0, n - init - local) / page;
  }
  /// The first token of the tail.
  [[nodiscard]] std::int64_t tail_at(std::int64_t n) const {
    return init_at(n) + blocks_at(n) * page;
  }
  [[nodiscard]] std::int64_t blocks_read_at(std::int64_t n) const {
    return std::min(topk, blocks_at(n));
  }
  /// Entries that a step reads in addition to the tail.
  [[nodiscard]] std::int64_t far_at(std::int64_t n) const {
    return init_at(n) + blocks_read_at(n) * page;
  }
};

/// Work of a prompt, summed over its chunks.
struct InfllmPrompt {
  double pairs = 0, local_pairs = 0;
  double choices = 0;  // products of a chunk's mean query and a block key, per query head
  double local_rows = 0, fetched_rows = 0;
  std::int32_t chunks = 0;

  InfllmPrompt(const InfllmSettings& set, std::int64_t prompt) {
    const auto n = static_cast<double>(prompt);
    const double w = std::min(n, static_cast<double>(set.local));
    local_pairs = w * (w + 1) / 2 + (n - w) * w;
    for (std::int64_t first = 0; first < prompt; first += set.chunk) {
      const std::int64_t last = std::min(first + set.chunk, prompt);
      const auto m = static_cast<double>(last - first);
      const auto before = static_cast<double>(set.far_at(first) + first - set.tail_at(first));
      pairs += m * before + m * (m + 1) / 2;
      const std::int64_t blocks = set.blocks_at(first);
      if (blocks > set.topk) choices += static_cast<double>(blocks);
      fetched_rows += static_cast<double>(set.blocks_read_at(first) * set.page);
      local_rows += static_cast<double>(last - std::max<std::int64_t>(0, first + 1 - set.local));
      ++chunks;
    }
  }
};

/// The blocks of a layer: keys by query head, blocks read by a step, blocks on the GPU.
class InfllmLayer {
 public:
  InfllmLayer(const InfllmSettings& settings, const Rope* rope) : set_{settings}, rope_{rope} {
    KVSIM_CHECK(!set_.one_position || rope_ != nullptr,
                "one position of far tokens without the rotary embedding");
  }

  /// Processes the prompt, once for all heads.
  void start(const PromptScores& scores) {
    if (!heads_.empty()) return;
    for (const HeadVectors& vectors : scores.heads()) {
      Head& head = heads_.emplace_back();
      head.vectors = vectors;
      head.scores.resize(static_cast<std::size_t>(vectors.group));
      head.block_keys.resize(head.scores.size());
    }
    const std::int64_t prompt = heads_.front().vectors.prompt;
    for (std::int64_t first = 0; first < prompt; first += set_.chunk) {
      const std::int64_t last = std::min(first + set_.chunk, prompt);
      choose(first, last);
      for (Head& head : heads_) {
        attend_chunk(head, first, last);
        move(head, last, head.vectors.keys);
      }
    }
  }
  /// Returns the blocks that the step of position `t` reads, ascending. The first head of a step
  /// chooses for all heads, with the blocks of the previous step.
  const std::vector<std::int64_t>& blocks_of(std::int64_t t) {
    if (t != known_) choose(t, t + 1);
    known_ = t;
    return chosen_;
  }
  /// Number of blocks in the last choice that were not on the GPU.
  [[nodiscard]] std::int64_t misses() const { return misses_; }

  /// Processes the step of position `t`: the last elements of `attention` are the local tokens'.
  /// keys [t + 1, d]: as stored.
  void learn(std::size_t h, std::int64_t t, const GroupAttention& attention,
             std::span<const float> keys) {
    Head& head = heads_[h];
    const auto local = static_cast<std::size_t>(std::min(t + 1, set_.local));
    for (std::size_t g = 0; g < head.scores.size(); ++g) {
      const auto row = attention.probabilities(static_cast<std::int32_t>(g));
      std::vector<double>& scores = head.scores[g];
      scores.push_back(0);
      for (std::size_t i = 1; i <= local; ++i) {
        scores[scores.size() - i] += row[row.size() - i];
      }
    }
    move(head, t + 1, keys);
  }

 private:
  struct Head {
    HeadVectors vectors;
    std::vector<std::vector<double>> scores;     // by query head, of the tail's tokens
    std::vector<std::vector<float>> block_keys;  // by query head: [blocks, d]
    std::int64_t tail = 0;                       // first token of the tail
  };

  /// Chooses blocks for the queries of positions first … last - 1, after `first` tokens.
  void choose(std::int64_t first, std::int64_t last) {
    const auto blocks = static_cast<std::size_t>(set_.blocks_at(first));
    chosen_.resize(blocks);
    std::iota(chosen_.begin(), chosen_.end(), std::int64_t{0});
    used_.resize(blocks, 0);
    if (static_cast<std::int64_t>(blocks) > set_.topk) {
      score(first, last, blocks);
      const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(set_.topk);
      std::nth_element(chosen_.begin(), end, chosen_.end(), [this](std::int64_t a, std::int64_t b) {
        const double x = block_scores_[static_cast<std::size_t>(a)];
        const double y = block_scores_[static_cast<std::size_t>(b)];
        return x != y ? x > y : a < b;
      });
      chosen_.erase(end, chosen_.end());
      std::sort(chosen_.begin(), chosen_.end());
    }
    use();
  }
  void score(std::int64_t first, std::int64_t last, std::size_t blocks) {
    block_scores_.assign(blocks, 0.0);
    std::vector<double> own(blocks), mean;
    for (const Head& head : heads_) {
      const auto d = static_cast<std::size_t>(head.vectors.head_dim);
      std::fill(own.begin(), own.end(), 0.0);
      for (std::size_t g = 0; g < head.scores.size(); ++g) {
        mean.assign(d, 0.0);
        for (std::int64_t t = first; t < last; ++t) {
          const auto query = head.vectors.query(static_cast<std::int32_t>(g), t);
          row_.assign(query.begin(), query.end());
          if (set_.one_position) rope_->rotate(std::span{row_}, set_.local - 1 - t);
          for (std::size_t j = 0; j < d; ++j) mean[j] += static_cast<double>(row_[j]);
        }
        for (std::size_t b = 0; b < blocks; ++b) {
          const float* key = head.block_keys[g].data() + b * d;
          double product = 0;
          for (std::size_t j = 0; j < d; ++j) product += mean[j] * static_cast<double>(key[j]);
          own[b] += product / static_cast<double>(last - first);
        }
      }
      for (std::size_t b = 0; b < blocks; ++b) block_scores_[b] += own[b];
    }
  }
  /// Moves the chosen blocks to the GPU and evicts the least recently used others.
  void use() {
    misses_ = 0;
    ++clock_;
    for (const std::int64_t block : chosen_) {
      std::int64_t& used = used_[static_cast<std::size_t>(block)];
      if (used == 0) ++misses_;
      used = clock_;
    }
    std::vector<std::size_t> others;
    for (std::size_t b = 0; b < used_.size(); ++b) {
      if (used_[b] > 0 && used_[b] < clock_) others.push_back(b);
    }
    const std::int64_t extra = std::ssize(others) + std::ssize(chosen_) - set_.cached;
    if (extra <= 0) return;
    std::stable_sort(others.begin(), others.end(),
                     [this](std::size_t a, std::size_t b) { return used_[a] < used_[b]; });
    for (std::size_t i = 0; i < static_cast<std::size_t>(extra); ++i) used_[others[i]] = 0;
  }

  /// Adds the local attention of a chunk's queries to the scores of `head`.
  void attend_chunk(Head& head, std::int64_t first, std::int64_t last) {
    const HeadVectors& vectors = head.vectors;
    const auto d = static_cast<std::size_t>(vectors.head_dim);
    GroupAttention near{vectors.group, vectors.head_dim, vectors.scale};
    GroupAttention far{vectors.group, vectors.head_dim, vectors.scale};
    std::vector<float> far_keys, q, far_q;
    const auto add = [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        const auto key = vectors.key(i);
        far_keys.insert(far_keys.end(), key.begin(), key.end());
        if (set_.one_position) rope_->rotate(std::span{far_keys}.last(d), -i);
      }
    };
    add(0, set_.init_at(first));
    for (const std::int64_t block : chosen_) {
      const std::int64_t from = set_.init + block * set_.page;
      add(from, from + set_.page);
    }
    // Tokens of the tail leave the window query by query.
    add(head.tail, std::max(head.tail, last - set_.local));
    const auto fixed = static_cast<std::size_t>(set_.far_at(first));
    for (auto& scores : head.scores) scores.resize(static_cast<std::size_t>(last - head.tail), 0.0);
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t from = std::max<std::int64_t>(0, t + 1 - set_.local);
      q.clear();
      for (std::int32_t g = 0; g < vectors.group; ++g) {
        const auto query = vectors.query(g, t);
        q.insert(q.end(), query.begin(), query.end());
      }
      near.run_weights(q,
                       vectors.keys.subspan(static_cast<std::size_t>(from) * d,
                                            static_cast<std::size_t>(t + 1 - from) * d),
                       {});
      const std::size_t n_far = fixed + static_cast<std::size_t>(from - head.tail);
      if (n_far > 0) {
        far_q = q;
        for (std::size_t g = 0; set_.one_position && g < head.scores.size(); ++g) {
          rope_->rotate(std::span{far_q}.subspan(g * d, d), set_.local - 1 - t);
        }
        far.run_weights(far_q, std::span{far_keys}.first(n_far * d), {});
      }
      for (std::size_t g = 0; g < head.scores.size(); ++g) {
        const auto at = static_cast<std::int32_t>(g);
        // Share of the near tokens in the sum of exponentials over near and far.
        const double share =
            n_far > 0 ? 1 / (1 + std::exp(far.log_sum(at) - near.log_sum(at))) : 1.0;
        const auto row = near.probabilities(at);
        double* scores = head.scores[g].data() + (from - head.tail);
        for (std::size_t i = 0; i < row.size(); ++i) scores[i] += share * row[i];
      }
    }
  }

  /// After `n` tokens, converts tokens that left the local window to initial tokens or blocks. keys
  /// [n, d].
  void move(Head& head, std::int64_t n, std::span<const float> keys) {
    const std::int64_t initial = set_.init_at(n) - std::min(head.tail, set_.init);
    if (initial > 0) drop_scores(head, initial);
    for (const std::int64_t end = set_.tail_at(n); head.tail < end;) {
      for (std::size_t g = 0; g < head.scores.size(); ++g) add_block_key(head, g, keys);
      drop_scores(head, set_.page);
    }
  }
  static void drop_scores(Head& head, std::int64_t n) {
    for (auto& scores : head.scores) scores.erase(scores.begin(), scores.begin() + n);
    head.tail += n;
  }
  /// Adds the key of the block at the tail's start for query head `g`. Ties go to the older token.
  void add_block_key(Head& head, std::size_t g, std::span<const float> keys) {
    const auto d = static_cast<std::size_t>(head.vectors.head_dim);
    const std::vector<double>& scores = head.scores[g];
    std::vector<std::int64_t> order(static_cast<std::size_t>(set_.page));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(set_.representatives);
    std::partial_sort(order.begin(), end, order.end(), [&](std::int64_t a, std::int64_t b) {
      const double x = scores[static_cast<std::size_t>(a)];
      const double y = scores[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    order.erase(end, order.end());
    std::sort(order.begin(), order.end());
    std::vector<double> mean(d, 0.0);
    for (const std::int64_t i : order) {
      const auto key = keys.subspan(static_cast<std::size_t>(head.tail + i) * d, d);
      row_.assign(key.begin(), key.end());
      if (set_.one_position) rope_->rotate(std::span{row_}, -(head.tail + i));
      for (std::size_t j = 0; j < d; ++j) mean[j] += static_cast<double>(row_[j]);
    }
    for (const double sum : mean) {
      head.block_keys[g].push_back(
          static_cast<float>(sum / static_cast<double>(set_.representatives)));
    }
  }

  InfllmSettings set_;
  const Rope* rope_;
  std::vector<Head> heads_;
  std::int64_t known_ = -1, misses_ = 0, clock_ = 0;
  std::vector<std::int64_t> chosen_;
  std::vector<std::int64_t> used_;    // by block: time of its last use; 0: not on the GPU
  std::vector<double> block_scores_;  // by block
  std::vector<float> row_;
};

class InfllmReader final : public Reader {
 public:
  InfllmReader(const SessionPlace& place, const InfllmSettings& settings,
               std::shared_ptr<InfllmLayer> layer, Dtype stored)
      : set_{settings},
        layer_{std::move(layer)},
        rope_{place.rope},
        stored_{stored},
        d_{static_cast<std::size_t>(place.head_dim)},
        group_{static_cast<std::size_t>(place.group)},
        attention_{place.group, place.head_dim, place.scale} {}

  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    head_ = head;
    entries_ = entries.size();
    layer_->start(scores);
  }
  void appended(const EntryTable& /*entries*/, std::int32_t slot) override {
    KVSIM_CHECK(slot == entries_, "slot {} after {} entries", slot, entries_);
    ++entries_;
  }
  void attend(std::span<const float> q, const EntryTable& entries, ReadOutcome& outcome) override {
    const std::int64_t t = entries_ - 1;
    const std::vector<std::int64_t>& blocks = layer_->blocks_of(t);
    keys_.clear();
    values_.clear();
    copy_rows(entries, 0, set_.init_at(t));
    for (const std::int64_t block : blocks) {
      const std::int64_t first = set_.init + block * set_.page;
      copy_rows(entries, first, first + set_.page);
    }
    copy_rows(entries, set_.tail_at(t), entries_);
    outcome.log_sums.resize(group_);
    attend_rows(attention_, q, keys_, values_, outcome);
    outcome.max_read = static_cast<std::int64_t>(keys_.size() / d_);
    outcome.entries_read = static_cast<double>(outcome.max_read);
    outcome.from_host =
        bytes_of(layer_->misses() * set_.page * 2 * static_cast<std::int64_t>(d_), stored_);
    chosen_ += std::ssize(blocks);
    fetched_ += layer_->misses();
    layer_->learn(head_, t, attention_, entries.keys());
  }
  void report(Counts& counts) const override {
    counts["infllm_blocks_chosen"] += static_cast<double>(chosen_);
    counts["infllm_blocks_fetched"] += static_cast<double>(fetched_);
  }

 private:
  void copy_rows(const EntryTable& entries, std::int64_t first, std::int64_t last) {
    const auto at = static_cast<std::size_t>(first) * d_;
    const auto n = static_cast<std::size_t>(last - first) * d_;
    const auto keys = entries.keys().subspan(at, n);
    const auto values = entries.values().subspan(at, n);
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    values_.insert(values_.end(), values.begin(), values.end());
    if (!set_.one_position) return;
    const std::int64_t t = entries_ - 1, far = t - set_.local + 1;  // the position of far tokens
    for (std::int64_t i = first; i < std::min(last, far); ++i) {
      rope_->rotate(
          std::span{keys_}.subspan(keys_.size() - n + static_cast<std::size_t>(i - first) * d_, d_),
          far - i);
    }
  }

  InfllmSettings set_;
  std::shared_ptr<InfllmLayer> layer_;
  const Rope* rope_;
  Dtype stored_;
  std::size_t d_, group_, head_ = 0;
  GroupAttention attention_;
  std::int64_t entries_ = 0;
  std::vector<float> keys_, values_;  // entries that the step reads
  std::int64_t chosen_ = 0, fetched_ = 0;
};

class InfllmRule final : public ReadRule, public ReadsPromptInPart {
 public:
  InfllmRule(const InfllmSettings& settings, Dtype stored) : set_{settings}, stored_{stored} {}

  std::unique_ptr<Reader> start(const SessionPlace& place) const override {
    return std::move(start_heads(place, 1).front());
  }
  std::vector<std::unique_ptr<Reader>> start_heads(const SessionPlace& place,
                                                   std::size_t heads) const override {
    const auto layer = std::make_shared<InfllmLayer>(set_, place.rope);
    std::vector<std::unique_ptr<Reader>> all;
    for (std::size_t h = 0; h < heads; ++h) {
      all.push_back(std::make_unique<InfllmReader>(place, set_, layer, stored_));
    }
    return all;
  }
  bool needs_layer() const override { return true; }
  bool keeps_rows() const override { return !set_.one_position; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = set_.one_position;
    return needs;
  }

  /// In GPU memory: initial tokens, tail, and space for blocks; per query head, a key of each block
  /// and a score of each token of the tail. In host memory: the blocks.
  CacheBytes cache_bytes(std::int32_t /*layer*/, Bytes /*full*/, std::int64_t /*prompt*/,
                         std::int64_t entries, const HeadShape& shape) const override {
    const std::int64_t blocks = set_.blocks_at(entries), d = shape.head_dim;
    const std::int64_t away = (blocks - std::min(blocks, set_.cached)) * set_.page;
    const std::int64_t tail = entries - set_.tail_at(entries);
    return {.kv = bytes_of(2 * (entries - away) * d, shape.stored),
            .side = bytes_of((blocks * d + tail) * shape.group, shape.stored),
            .host = bytes_of(2 * blocks * set_.page * d, shape.stored)};
  }
  double entries_read(std::int32_t /*layer*/, double entries) const override {
    const std::int64_t n = before(entries);
    return std::min(entries, static_cast<double>(set_.far_at(n) - set_.tail_at(n)) + entries);
  }
  double link_bytes(double entries, const HeadShape& shape) const override {
    return static_cast<double>(set_.blocks_read_at(before(entries)) * set_.page) *
           shape.row_bytes();
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const std::int64_t n = before(events.attended);
    const double element = bits_of(shape.stored) / 8.0;
    const double local = std::min(events.attended, static_cast<double>(set_.local));
    // A second pass over the local keys adds their attention to their scores.
    traffic.move_read += local * shape.head_dim * element;
    traffic.side_read += local * shape.group * element;
    traffic.side_write += local * shape.group * element;
    traffic.extra_flops += local * shape.group * (2.0 * shape.head_dim + 1);
    if (n < set_.init + set_.local) return;
    // Each step sends a token that leaves the window, and a share of a block key is written.
    const double block_key = static_cast<double>(shape.group) * shape.head_dim * element;
    traffic.link_write += shape.row_bytes();
    traffic.side_write += block_key / static_cast<double>(set_.page);
    const auto blocks = static_cast<double>(set_.blocks_at(n));
    if (set_.blocks_at(n) > set_.topk) {
      traffic.side_read += blocks * block_key;
      traffic.extra_flops += blocks * 2.0 * shape.head_dim * shape.group;
    }
    // Upper bound: all blocks are fetched. They are written once; their reads are already counted.
    traffic.move_write +=
        static_cast<double>(set_.blocks_read_at(n) * set_.page) * shape.row_bytes();
  }
  /// Scores and choices of the chunks, and transfers of blocks to and from host memory.
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const InfllmPrompt work{set_, prompt};
    const double element = bits_of(recorded) / 8.0;
    const double key = static_cast<double>(shape.n_kv_heads) * shape.head_dim * element;
    const double query = static_cast<double>(shape.n_heads) * shape.head_dim;
    const auto blocks = static_cast<double>(set_.blocks_at(prompt));
    const double sent = blocks * static_cast<double>(set_.page);
    PrefillExtra extra;
    extra.flops = 2.0 * query * (work.local_pairs + work.choices) +
                  query * static_cast<double>(prompt);  // plus the mean queries
    extra.read = key * work.local_rows + query * element * work.choices + 2.0 * key * sent;
    extra.written = 2.0 * key * (sent + work.fetched_rows) + query * element * blocks;
    extra.launches = 4 * work.chunks;  // local scores, mean query, scores of blocks, choice
    return extra;
  }
  double prompt_pairs_share(std::int64_t prompt) const override {
    const auto n = static_cast<double>(prompt);
    return InfllmPrompt{set_, prompt}.pairs / (n * (n + 1) / 2);
  }

 private:
  /// Number of tokens before a step over `entries` entries, which may be a mean over a batch.
  [[nodiscard]] static std::int64_t before(double entries) {
    return std::max<std::int64_t>(0, static_cast<std::int64_t>(std::ceil(entries)) - 1);
  }
  InfllmSettings set_;
  Dtype stored_;
};

/// Divides a budget of `tokens` entries in the released proportions, except for given sizes.
void divide(MethodResolver& resolver, std::int64_t tokens, InfllmSettings& set) {
  const auto pick = [&](const char* name, std::int64_t otherwise) {
    return resolver.given(name) ? resolver.integer(name) : otherwise;
  };
  const std::int64_t part = tokens / kParts;
  set.init = pick("n_init", std::min(resolver.integer("n_init"), part));
  set.page = pick("page", std::clamp<std::int64_t>(part, 1, resolver.integer("page")));
  if (resolver.given("topk") && resolver.given("n_local")) {
    resolver.refuse("n_local and topk are both given; with a budget, one follows from the other");
  }
  if (resolver.given("n_local")) {
    set.local = resolver.integer("n_local");
    set.topk = (tokens - set.init - set.local) / set.page;
    if (tokens < set.init + set.local) {
      resolver.refuse(
          fmt::format("n_init and n_local: expected at most the {} tokens that a step "
                      "reads, got {}",
                      tokens, set.init + set.local));
    }
    return;
  }
  set.topk = pick("topk", kBlockParts * tokens / kParts / set.page);
  set.local = tokens - set.init - set.topk * set.page;
  if (set.local < 1) {
    resolver.refuse(
        fmt::format("n_init and topk: expected fewer than the {} tokens that a step "
                    "reads, got {}",
                    tokens, set.init + set.topk * set.page));
  }
}

std::shared_ptr<const ReadRule> resolve_infllm(MethodResolver& resolver) {
  const std::string& store = resolver.choice("store");
  if (store != "recorded" && store != "fp16" && store != "bf16" && store != "fp32") {
    resolver.refuse(
        fmt::format("read=infllm moves blocks to host memory and back unchanged: expected a "
                    "floating-point store, got {}",
                    store));
  }
  if (resolver.word("granularity") != "kv_head") {
    resolver.refuse("read=infllm has blocks of KV heads: expected granularity=kv_head");
  }
  InfllmSettings set;
  const bool sized = resolver.budget() || resolver.given("token_budget");
  const std::int64_t tokens = resolve_token_budget(resolver, 0.2);
  set.one_position = resolver.word("far_positions") == "one";
  set.init = resolver.integer("n_init");
  set.local = resolver.integer("n_local");
  set.topk = resolver.integer("topk");
  set.page = resolver.integer("page");
  if (sized) {
    divide(resolver, tokens, set);
  } else {
    resolver.resolve("token_budget", set.init + set.local + set.topk * set.page);
  }
  set.representatives = std::min(resolver.integer("representatives"), set.page);
  set.chunk = std::min(resolver.integer("chunk"), set.local);
  set.cached = std::max(resolver.integer("cached_blocks"), set.topk);
  resolver.resolve("n_init", set.init);
  resolver.resolve("n_local", set.local);
  resolver.resolve("topk", set.topk);
  resolver.resolve("page", set.page);
  resolver.resolve("representatives", set.representatives);
  resolver.resolve("chunk", set.chunk);
  resolver.resolve("cached_blocks", set.cached);
  return std::make_shared<InfllmRule>(set, resolver.store().dtype(resolver.site().recorded));
}

}  // namespace

AxisChoice read_infllm() {
  const std::string source = "InfLLM, llama-3-inf-llm.yaml";
  return {
      .axis = "read",
      .name = "infllm",
      .params = {token_budget_param(
                     6272,
                     "entries that a step reads in addition to the new one and to a "
                     "block that is not full: initial, local and fetched ones, in the "
                     "released proportions",
                     source + ": 128 + 4096 + 16 * 128"),
                 integer_param("n_init", "", 128, 0, kManyEntries, "an integer >= 0",
                               "first tokens that are always read", source),
                 integer_param("n_local", "", 4096, 1, kManyEntries, "an integer >= 1",
                               "last tokens that are always read, including the new one", source),
                 integer_param("topk", "", 16, 0, kManyEntries, "an integer >= 0",
                               "blocks that a step reads", source),
                 integer_param("page", "", 128, 1, kManyEntries, "an integer >= 1",
                               "tokens of a block", source + ": block_size"),
                 integer_param("representatives", "", 4, 1, kManyEntries, "an integer >= 1",
                               "tokens whose mean key describes a block", source + ": repr_topk"),
                 integer_param("chunk", "", 512, 1, kManyEntries, "an integer >= 1",
                               "queries of the prompt that read the same blocks, at most n_local",
                               source + ": exc_block_size"),
                 integer_param("cached_blocks", "", 32, 0, kManyEntries, "an integer >= 0",
                               "blocks that stay on the GPU after their use, at least topk",
                               source + ": max_cached_block"),
                 word_param("far_positions", {"own", "one"},
                            "distance of tokens outside the local window: the actual one, or "
                            "n_local - 1 for all",
                            "one: InfLLM, released code; own: reads a recorded cache")},
      .make = &resolve_infllm};
}

}  // namespace kvsim
