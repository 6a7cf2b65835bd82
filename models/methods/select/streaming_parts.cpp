// Streaming layers or heads keep only sinks and recent tokens if the budget requires it, otherwise
// all entries. In SimLayerKV (Zhang et al. 2024) lazy layers stream; in DuoAttention (Xiao et al.
// 2024) non-retrieval heads do. The selector's statistic determines them.

#include <limits>

#include "models/math/attention/expected_attention.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kDuoPositions = 500;  // kvpress, duo_attention_on_the_fly

enum class Judged : std::uint8_t { kLazyLayer, kRetrievalHead, kByTable };

class StreamingSelector final : public Selector {
 public:
  StreamingSelector(Judged judged, std::int64_t sinks, std::int64_t recent,
                    const SessionPlace& place)
      : judged_{judged}, sinks_{sinks}, recent_{recent}, rope_{place.rope} {}

  void learn_prompt(PromptScores& scores) override {
    if (judged_ == Judged::kLazyLayer) statistic_ = attention_within(scores);
    if (judged_ == Judged::kRetrievalHead) statistic_ = retrieval(scores.heads().front());
  }
  double score(std::int32_t /*id*/) const override { return 0.0; }
  double statistic() const override { return statistic_; }
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return id < sinks_ ? std::numeric_limits<double>::infinity() : static_cast<double>(id);
  }

 private:
  /// Returns the attention of the last query to sinks and recent tokens, averaged over the group. 0
  /// for a prompt without other tokens.
  [[nodiscard]] double attention_within(PromptScores& scores) const {
    const std::int64_t prompt = scores.prompt();
    if (prompt <= sinks_ + recent_) return 0.0;
    const WindowRows& rows = scores.window(1);
    double sum = 0;
    for (std::int32_t g = 0; g < rows.group; ++g) {
      const auto row = rows.row(rows.probabilities, 0, g, 0);
      for (std::int64_t i = 0; i < prompt; ++i) {
        if (i < sinks_ || i >= prompt - recent_) sum += row[static_cast<std::size_t>(i)];
      }
    }
    return sum / rows.group;
  }
  [[nodiscard]] double retrieval(const HeadVectors& head) const {
    KVSIM_CHECK(rope_ != nullptr, "heads of group {} without the rotary embedding", head.group);
    const auto d = static_cast<std::size_t>(head.head_dim);
    const std::size_t rows = static_cast<std::size_t>(head.prompt) * d;
    const std::vector<double> key = mean_before_rope(head.keys.first(rows), head.head_dim, *rope_);
    double sum = 0;
    for (std::int32_t g = 0; g < head.group; ++g) {
      const auto q = head.q.subspan(static_cast<std::size_t>(g * head.tokens) * d, rows);
      sum += retrieval_score(mean_before_rope(q, head.head_dim, *rope_), key, *rope_, kDuoPositions,
                             head.scale);
    }
    return sum / head.group;
  }

  Judged judged_;
  std::int64_t sinks_, recent_;
  const Rope* rope_;
  double statistic_ = std::numeric_limits<double>::quiet_NaN();
};

class StreamingRule final : public SelectRule {
 public:
  StreamingRule(Judged judged, std::int64_t sinks, std::int64_t recent)
      : judged_{judged}, sinks_{sinks}, recent_{recent} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<StreamingSelector>(judged_, sinks_, recent_, place);
  }
  bool ranks_by_position() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    if (judged_ == Judged::kLazyLayer) {
      needs.prompt_scores = PromptScoreClass::kLastWindow;
      needs.prompt_window = 1;
    }
    needs.inputs.rope = judged_ == Judged::kRetrievalHead;
    return needs;
  }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kRing; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    if (judged_ != Judged::kRetrievalHead) return {};
    // Queries and keys are read, and their RoPE is reversed, to compute their means.
    const double rows = static_cast<double>(prompt) * (shape.n_heads + shape.n_kv_heads);
    return {.flops = 4.0 * rows * shape.head_dim,
            .read = rows * shape.head_dim * bits_of(recorded) / 8.0,
            .written = 0,
            .transient = Bytes{0},
            .launches = 4,
            .prefill_repeats = 0};
  }

 private:
  Judged judged_;
  std::int64_t sinks_, recent_;
};

void expect_budget(const MethodResolver& resolver, const std::string& budget) {
  if (resolver.choice("budget") != budget) {
    resolver.refuse("the budget decides what streams: expected budget=" + budget);
  }
}

std::shared_ptr<const SelectRule> make_lazy(MethodResolver& resolver) {
  expect_budget(resolver, "lazy");
  if (resolver.budget()) {
    resolver.refuse(
        "the prompt decides how many layers are lazy, so it takes no budget; set lazy_threshold");
  }
  return std::make_shared<StreamingRule>(Judged::kLazyLayer, resolver.integer("n_sink"),
                                         resolver.integer("n_recent"));
}

std::shared_ptr<const SelectRule> make_duo(MethodResolver& resolver) {
  expect_budget(resolver, "duo");
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("its table is per KV head: expected granularity=kv_head");
  }
  return std::make_shared<StreamingRule>(
      resolver.word("heads").empty() ? Judged::kRetrievalHead : Judged::kByTable,
      resolver.integer("n_sink"), resolver.integer("n_recent"));
}

}  // namespace

AxisChoice select_lazy_layers() {
  return {.axis = "select",
          .name = "lazy-layers",
          .params = {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                                   "first tokens that lazy layers keep",
                                   "SimLayerKV; kvpress n_initial", {"n_initial"}),
                     integer_param("n_recent", "", 1024, 2, kManyEntries, "an integer >= 2",
                                   "last tokens whose attention is counted; a lazy layer keeps one "
                                   "less",
                                   "SimLayerKV; kvpress n_recent")},
          .make = &make_lazy,
          .takes_budget = false};
}

AxisChoice select_streaming_heads() {
  return {.axis = "select",
          .name = "streaming-heads",
          .params = {integer_param("n_sink", "", 128, 0, kManyEntries, "an integer >= 0",
                                   "first tokens that streaming heads keep",
                                   "DuoAttention, training; 64 deployed", {"sinks"}),
                     integer_param("n_recent", "", 256, 1, kManyEntries, "an integer >= 1",
                                   "last tokens that streaming heads keep",
                                   "DuoAttention, training and deployment", {"recent"})},
          .make = &make_duo};
}

}  // namespace kvsim
