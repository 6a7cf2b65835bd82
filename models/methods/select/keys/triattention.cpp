// TriAttention (released code WeianMao/triattention c3744ee6): every 128 decode steps, keeps the
// entries whose keys would score highest with future queries equal to the mean query of each head.
//
//   score of a query head: models/math/frequency_scores, z-normalised over the candidates
//   score of an entry: the maximum over the query heads of its KV head
//
// A round happens when the length of the sequence is a multiple of `interval` and the cache is at
// its limit, or (trigger=slack) when the cache is `interval` above it. The prompt is held in
// addition to the limit (TensorRT-LLM), counted in it, or cut like other tokens (the plugin for
// vLLM).
//
// Statistics of queries are those of the trace's prompt; the authors calibrate them in advance.
// Every layer and KV head keeps its own entries (per_layer_perhead_pruning). The released code can
// also keep one set for all layers: sizes and costs are the same, kept entries are not.
// It breaks ties by noise of 1e-6; here the older entry is kept.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/math/attention/frequency_scores.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMinDeviation = 1e-6;  // the released code's clamp

enum class OfPrompt : std::uint8_t { kOnTop, kCounted, kCut };

struct TriSettings {
  std::int64_t limit = 2048;
  std::int64_t interval = 128;
  std::int64_t window = 0;
  bool slack = false;
  OfPrompt prompt = OfPrompt::kOnTop;
  bool normalize = true, group_mean = false, maximum = false;

  /// Entries after a round.
  [[nodiscard]] std::int64_t kept(std::int64_t prompt_tokens) const {
    return prompt == OfPrompt::kOnTop ? prompt_tokens + limit : limit;
  }
  /// Number of first tokens that are exempt.
  [[nodiscard]] std::int64_t exempt(std::int64_t prompt_tokens) const {
    return prompt == OfPrompt::kCut ? 0 : prompt_tokens;
  }
};

class TriSelector final : public Selector {
 public:
  TriSelector(const TriSettings& settings, const SessionPlace& place)
      : settings_{settings}, rope_{place.rope} {}

  void learn_prompt(PromptScores& scores) override {
    KVSIM_CHECK(rope_ != nullptr, "frequencies of queries without the rotary embedding");
    head_ = scores.heads().front();
    const auto d = static_cast<std::size_t>(head_.head_dim);
    const auto row = static_cast<std::size_t>(head_.tokens) * d;
    for (std::int32_t g = 0; g < head_.group; ++g) {
      stats_.push_back(frequency_stats(head_.q.subspan(static_cast<std::size_t>(g) * row,
                                                       static_cast<std::size_t>(head_.prompt) * d),
                                       *rope_));
    }
  }
  double score(std::int32_t /*id*/) const override { return 0.0; }
  double importance(std::int32_t /*id*/, std::int32_t /*newest*/,
                    bool /*at_prefill*/) const override {
    return kInfinity;  // the prompt is not compressed before the first round
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    const std::int64_t tokens = std::int64_t{newest} + 1;
    const std::int64_t kept = settings_.kept(head_.prompt);
    const std::int64_t excess = entries.size() - kept;
    const bool due = settings_.slack ? excess >= settings_.interval
                                     : excess >= 0 && tokens % settings_.interval == 0;
    if (!due || excess <= 0) return;
    gather(entries);
    std::vector<double> all = aggregated(tokens);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (positions_[i] > newest - settings_.window) all[i] = kInfinity;
    }
    const std::vector<std::int32_t> stay = highest(all, std::ssize(all) - excess);
    std::size_t next = 0;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (next < stay.size() && static_cast<std::size_t>(stay[next]) == i) {
        ++next;
      } else {
        out.push_back(positions_[i]);
      }
    }
  }

 private:
  /// Collects the candidates, in order of position.
  void gather(const EntryTable& entries) {
    const auto d = static_cast<std::size_t>(head_.head_dim);
    positions_.clear();
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      const std::int32_t id = entries.id(slot);
      if (id >= settings_.exempt(head_.prompt) && !entries.is_pinned(slot)) {
        positions_.push_back(id);
      }
    }
    std::sort(positions_.begin(), positions_.end());
    keys_.resize(positions_.size() * d);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      std::copy_n(entries.key(entries.slot_of(positions_[i])).data(), d, keys_.data() + i * d);
    }
  }

  /// Returns scores of the candidates, aggregated over the query heads that share them.
  [[nodiscard]] std::vector<double> aggregated(std::int64_t tokens) const {
    std::vector<double> all(positions_.size(), settings_.group_mean ? 0.0 : -kInfinity);
    for (const FrequencyStats& stats : stats_) {
      std::vector<double> one = frequency_scores(stats, keys_, tokens, settings_.maximum, *rope_);
      if (settings_.normalize) standardize(one);
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i] = settings_.group_mean ? all[i] + one[i] : std::max(all[i], one[i]);
      }
    }
    return all;
  }
  static void standardize(std::vector<double>& x) {
    const auto n = static_cast<double>(x.size());
    double mean = 0;
    for (const double each : x) mean += each / n;
    double squares = 0;
    for (const double each : x) squares += (each - mean) * (each - mean);
    const double deviation = std::max(std::sqrt(squares / n), kMinDeviation);
    for (double& each : x) each = (each - mean) / deviation;
  }

  const TriSettings& settings_;
  const Rope* rope_;
  HeadVectors head_;
  std::vector<FrequencyStats> stats_;  // by query head of the group
  std::vector<std::int32_t> positions_;
  std::vector<float> keys_;
};

class TriRule final : public SelectRule {
 public:
  explicit TriRule(const TriSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<TriSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  bool compresses_prompt() const override { return false; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    const std::int64_t kept = settings_.kept(prompt);
    if (settings_.slack) {
      const std::int64_t first = std::max(kept + settings_.interval, prompt + 1);
      return tokens < first ? tokens : kept + (tokens - first) % settings_.interval;
    }
    const std::int64_t last = tokens / settings_.interval * settings_.interval;
    return last > prompt && last >= kept ? kept + (tokens - last) : tokens;
  }
  /// Means of q_f (complex) and of |q_f| in fp32, for each query head.
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& shape) const override {
    return bytes_of(std::int64_t{3} * shape.group * (shape.head_dim / 2), Dtype::kFp32);
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (events.left <= 0) return;
    const double candidates =
        events.attended - (settings_.prompt == OfPrompt::kCut ? 0 : events.prompt);
    // RoPE of a key is reversed once (3 operations per channel). Each query head then needs, per
    // pair, amplitude and phase (6) and the cosines: of 17 offsets, or of their mean, which the
    // released code folds into one weight per frequency.
    constexpr double kTurn = 3, kPhase = 6, kFolded = 8, kOffsets = 17, kPerOffset = 4;
    const double pair = kPhase + (settings_.maximum ? kOffsets * kPerOffset : kFolded);
    traffic.extra_flops +=
        candidates * (kTurn * shape.head_dim + shape.group * pair * shape.head_dim / 2);
    traffic.side_read +=
        candidates * shape.row_bytes() / 2 + static_cast<double>(side_bytes(0, shape).count());
    const double survivors = events.attended - events.left;
    traffic.move_read += survivors * shape.row_bytes();
    traffic.move_write += survivors * shape.row_bytes();
  }

 private:
  TriSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_triattention(MethodResolver& resolver) {
  if (resolver.budget()) {
    resolver.refuse(
        "it leaves the prompt whole and takes no budget; set limit, the entries after a round");
  }
  if (resolver.choice("budget") != "none") {
    resolver.refuse("its limit is the same in every head: expected budget=none");
  }
  const std::string& of_prompt = resolver.word("prompt_tokens");
  const TriSettings set{.limit = resolver.integer("limit"),
                        .interval = resolver.integer("interval"),
                        .window = resolver.integer("window"),
                        .slack = resolver.word("trigger") == "slack",
                        .prompt = of_prompt == "on_top"    ? OfPrompt::kOnTop
                                  : of_prompt == "counted" ? OfPrompt::kCounted
                                                           : OfPrompt::kCut,
                        .normalize = resolver.flag("normalize"),
                        .group_mean = resolver.word("heads") == "mean",
                        .maximum = resolver.word("offsets") == "max"};
  const std::int64_t free = set.kept(resolver.prompt()) - set.exempt(resolver.prompt());
  if (free <= set.window) {
    resolver.refuse(fmt::format(
        "a limit of {} entries, {} of them for the prompt, leaves none to choose outside the "
        "window of {}",
        set.limit, set.limit - free, set.window));
  }
  return std::make_shared<TriRule>(set);
}

}  // namespace

AxisChoice select_triattention() {
  const std::string source = "TriAttention, released code";
  return {
      .axis = "select",
      .name = "triattention",
      .params =
          {integer_param("limit", "B", 2048, 1, kManyEntries, "an integer >= 1",
                         "entries after a round", source + ": 2048; 512 for a Llama-8B",
                         {"kv_budget"}),
           integer_param("interval", "", 128, 1, kManyEntries, "an integer >= 1",
                         "tokens between rounds", source, {"divide_length"}),
           word_param("trigger", {"multiple", "slack"},
                      "a round when the sequence length is a multiple of the interval, or when the "
                      "cache exceeds its limit by the interval",
                      source + "; its scripts set slack"),
           word_param(
               "prompt_tokens", {"on_top", "counted", "cut"},
               "the prompt is held on top of the limit, counted in it, or cut like other tokens",
               "on_top: TensorRT-LLM; counted: the authors' scripts; cut: their "
               "plugin for vLLM"),
           integer_param("window", "w", 0, 0, kManyEntries, "an integer >= 0",
                         "last tokens that are always kept",
                         "TriAttention, plugin for vLLM: 128; others 0"),
           flag_param("normalize", true,
                      "standardise scores of each query head to mean 0 and deviation 1",
                      "TriAttention, scripts"),
           word_param("heads", {"max", "mean"},
                      "reduction over the query heads that share a KV head", source),
           word_param("offsets", {"mean", "max"}, "reduction over the 17 distances ahead", source)},
      .make = &resolve_triattention,
      .takes_budget = false};
}

}  // namespace kvsim
