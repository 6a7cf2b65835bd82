// Every token is kept or dropped once, when it leaves a window of recent tokens, by a score fixed
// at its creation. KVzap: a surrogate's log score, compared with one threshold for the whole model.
// DMS (delayed eviction): a learned bit.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/learn/oracle.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class ScoreSource : std::uint8_t { kNamed, kOracle, kEvictBit };

struct DelayedSettings {
  ScoreSource source = ScoreSource::kNamed;
  std::string name;  // name of the layer's scores, unless kOracle
  OracleSettings oracle;
  double threshold = 0;
  std::int64_t window = 128;
  bool decoding = true;         // false: decides only at the end of the prompt
  std::int64_t fifo_bits = 32;  // side data per token of the window
  // Surrogate's work per token and layer, and its weights; 0 if the model provides the score.
  double surrogate_flops = 0;
  std::int64_t surrogate_bytes = 0;
  std::int32_t n_kv_heads = 1;
  std::int32_t d_model = 0;
};

class DelayedSelector final : public Selector {
 public:
  explicit DelayedSelector(const DelayedSettings& settings)
      : settings_{settings}, threshold_{settings.threshold} {}

  void learn_prompt(PromptScores& scores) override {
    switch (settings_.source) {
      case ScoreSource::kNamed:
        score_ = recorded_scores(scores, settings_.name);
        break;
      case ScoreSource::kOracle:
        score_ = oracle_scores(scores, settings_.oracle);
        for (double& x : score_) x = std::log(x);
        break;
      case ScoreSource::kEvictBit:
        score_ = recorded_scores(scores, settings_.name);
        for (double& x : score_) x = x >= 0.5 ? -1.0 : 1.0;
        break;
    }
    // Tokens without a score are never dropped.
    for (double& x : score_) x = std::isnan(x) ? kInfinity : x;
  }
  void allow(const EntryBudget& allotted, std::int64_t /*room*/) override {
    threshold_ = std::max(settings_.threshold, allotted.threshold);
  }
  double score(std::int32_t id) const override {
    const auto at = static_cast<std::size_t>(id);
    return at < score_.size() ? score_[at] : kInfinity;
  }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    return id > newest - settings_.window ? kInfinity : score(id);
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    const double threshold = std::max(settings_.threshold, allotted.threshold);
    std::vector<std::int32_t> kept;
    for (std::int32_t id = 0; id < prompt; ++id) {
      if (id >= prompt - settings_.window || score(id) >= threshold) kept.push_back(id);
    }
    return kept;
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    const std::int64_t id = newest - settings_.window;
    if (!settings_.decoding || id < 0) return;
    const auto judged = static_cast<std::int32_t>(id);
    if (score(judged) < threshold_ && entries.slot_of(judged) >= 0) out.push_back(judged);
  }

 private:
  const DelayedSettings& settings_;
  double threshold_;
  std::vector<double> score_;  // by position
};

class DelayedRule final : public SelectRule {
 public:
  DelayedRule(DelayedSettings settings, TraceInputs inputs)
      : settings_{std::move(settings)}, inputs_{std::move(inputs)} {}

  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<DelayedSelector>(settings_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs = inputs_;
    return needs;
  }
  // Scores are unknown; only sequences within the window are certainly kept.
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t /*prompt*/,
                                   std::int64_t tokens) const override {
    if (tokens <= settings_.window || settings_.threshold == -kInfinity) return tokens;
    return std::nullopt;
  }
  // The window's scores, and this head's share of the layer's surrogate.
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{(settings_.window * settings_.fifo_bits + 7) / 8 +
                 (settings_.surrogate_bytes + settings_.n_kv_heads - 1) / settings_.n_kv_heads};
  }
  void add_step(StepTraffic& traffic, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {
    const double heads = settings_.n_kv_heads;
    const double one = static_cast<double>(settings_.fifo_bits) / 8.0;
    traffic.side_write += one;
    traffic.side_read += one + static_cast<double>(settings_.surrogate_bytes) / heads;
    traffic.extra_flops += settings_.surrogate_flops / heads;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    if (settings_.source == ScoreSource::kOracle) {
      return oracle_cost(settings_.oracle, shape, settings_.d_model, prompt);
    }
    PrefillExtra extra;
    if (settings_.surrogate_flops <= 0) return extra;
    const auto s = static_cast<double>(prompt);
    extra.flops = settings_.surrogate_flops * s;
    extra.read = static_cast<double>(settings_.surrogate_bytes) +
                 s * settings_.d_model * bits_of(recorded) / 8.0;
    extra.written = s * shape.n_kv_heads * 4.0;
    extra.transient = Bytes{prompt * shape.n_kv_heads * 4};
    extra.launches = 3;
    return extra;
  }

 private:
  DelayedSettings settings_;
  TraceInputs inputs_;
};

void refuse_query_heads(MethodResolver& resolver) {
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("it decides per KV head: expected granularity=kv_head");
  }
}

/// Derives the surrogate's parameters and work per token from the model's width.
void size_surrogate(MethodResolver& resolver, DelayedSettings& settings) {
  const std::int64_t d = resolver.site().d_model;
  const std::int64_t heads = settings.n_kv_heads;
  const bool linear = resolver.word("model") == "linear";
  const std::int64_t given = linear ? 0 : resolver.integer("surrogate_width");
  const std::int64_t width = given > 0 ? given : d / 8;
  const std::int64_t weights = linear ? d * heads : d * width + width * heads;
  settings.surrogate_flops = 2.0 * static_cast<double>(weights);
  settings.surrogate_bytes = bytes_of(weights, resolver.site().recorded).count();
}

/// Resolves `auto`: weights if given, else the trace's data (scores, or a repeat that KVzip+ can
/// use). Without a trace it is the surrogate, which a service would run.
std::string score_source(const MethodResolver& resolver) {
  const std::string& source_word = resolver.word("kvzap_source");
  if (source_word != "auto") return source_word;
  const auto& recorded = resolver.site().recorded_inputs;
  if (!resolver.word("weights").empty() || !recorded) return "surrogate";
  if (std::find(recorded->per_head.begin(), recorded->per_head.end(), "score.kvzap") !=
      recorded->per_head.end()) {
    return "trace";
  }
  return recorded->repeat && recorded->hidden && recorded->output_projection ? "oracle"
                                                                             : "surrogate";
}

std::shared_ptr<const SelectRule> make_kvzap(MethodResolver& resolver) {
  refuse_query_heads(resolver);
  if (resolver.choice("budget") != "threshold") {
    resolver.refuse(fmt::format(
        "its threshold is its budget, so budget={} has no meaning (expected budget=threshold)",
        resolver.choice("budget")));
  }
  DelayedSettings settings;
  settings.threshold = resolver.number("threshold");
  settings.window = resolver.integer("window");
  settings.decoding = resolver.flag("decoding");
  settings.d_model = resolver.site().d_model;
  settings.n_kv_heads = std::max(resolver.site().shape.n_kv_heads, 1);
  if (resolver.budget()) {
    if (resolver.given("threshold")) {
      resolver.refuse("budget and threshold are both given; one follows from the other");
    }
    resolver.set_entries(resolver.entries_of(*resolver.budget()));
    const std::int64_t window = std::min(settings.window, resolver.prompt());
    if (resolver.entries() < window) {
      resolver.refuse(fmt::format(
          "a budget of {} entries is less than its window of {} (expected a smaller window or a "
          "budget of at least {})",
          resolver.entries(), window, window));
    }
    settings.threshold = -kInfinity;  // set by the budget when scores are known
    resolver.resolve("threshold", std::string{"solved from the budget"});
  }
  TraceInputs inputs;
  const std::string source = score_source(resolver);
  resolver.resolve("kvzap_source", source);
  if (source == "oracle") {
    settings.source = ScoreSource::kOracle;
    settings.oracle.plus = true;
    settings.oracle.subsample = false;
    settings.oracle.residual_norm = resolver.word("kvzip_plus_norm") == "residual";
    inputs = oracle_inputs(settings.oracle);
  } else if (source == "trace") {
    settings.name = "score.kvzap";
    inputs.per_head = {settings.name};
  } else {
    const bool ridge = source == "ridge";
    const std::string& path = resolver.word(ridge ? "calibration" : "weights");
    settings.name = fmt::format("{}:{}", source, path);
    inputs.hidden = true;
    inputs.predicted.push_back({.name = settings.name, .path = path, .calibrates = ridge});
  }
  if (source != "oracle") size_surrogate(resolver, settings);
  return std::make_shared<DelayedRule>(std::move(settings), std::move(inputs));
}

std::shared_ptr<const SelectRule> make_dms(MethodResolver& resolver) {
  refuse_query_heads(resolver);
  if (resolver.budget()) {
    resolver.refuse("the retrofitted model decides evictions: it takes no budget");
  }
  DelayedSettings settings;
  settings.source = ScoreSource::kEvictBit;
  settings.name = "decision.evict";
  settings.window = resolver.integer("window");
  settings.fifo_bits = 1;
  TraceInputs inputs;
  inputs.per_head = {settings.name};
  return std::make_shared<DelayedRule>(std::move(settings), std::move(inputs));
}

ParamInfo window_param(std::int64_t value, std::string source) {
  return integer_param(
      "window", "w", value, 0, kManyEntries, "an integer >= 0",
      "last tokens that are always attended to; a token is judged when it leaves this window",
      std::move(source));
}

}  // namespace

AxisChoice select_kvzap() {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  return {
      .axis = "select",
      .name = "kvzap",
      .params =
          {number_param(
               "threshold", "tau", -4, -kAny, kAny, "a number",
               "log score below which a token is evicted; solved from a budget if one is given",
               "KVzap: -3 to -6 for Qwen3-8B (-4 in its README), -6 to -9 for "
               "Llama-3.1-8B",
               {"tau"}),
           window_param(128, "KVzap"),
           flag_param("decoding", true, "whether tokens are judged in decode too",
                      "the method; off by default in kvpress"),
           word_param(
               "kvzap_source", {"auto", "surrogate", "trace", "oracle", "ridge"},
               "source of log scores: a surrogate's weights on the hidden states, score.kvzap of "
               "the trace, KVzip+ of its repeat, or a linear fit on a calibration trace's repeat; "
               "auto: the first available of weights, trace and repeat (shown in the result)",
               "kvsim"),
           path_param("weights", "file of kvsim fit-surrogate, for kvzap_source=surrogate",
                      "kvsim"),
           path_param("calibration", "trace with a repeat, for kvzap_source=ridge", "kvsim"),
           word_param("model", {"mlp", "linear"}, "shape of the surrogate, for its cost", "KVzap"),
           integer_param("surrogate_width", "D_m", 0, 0, kManyEntries,
                         "an integer >= 1, or 0 for D/8", "inner width of an mlp, for its cost",
                         "KVzap: D/8"),
           word_param("kvzip_plus_norm", {"post_norm", "residual"},
                      "as for kvzip-plus, for kvzap_source=oracle", "kvpress")},
      .make = &make_kvzap};
}

AxisChoice select_dms() {
  return {.axis = "select",
          .name = "dms",
          .params = {window_param(256, "Dynamic Memory Sparsification: 128 to 512")},
          .make = &make_dms,
          .takes_budget = false};
}

}  // namespace kvsim
