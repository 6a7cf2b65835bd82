// Compression every `interval` decode steps (kvpress, DecodingPress): the cache grows in between,
// so that its size is a sawtooth in [target, target + interval).

#include "models/methods/select/attention/periodic.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t target_at(const PeriodicSettings& settings, std::int64_t allotted,
                       std::int64_t tokens) {
  if (settings.target == 0) return allotted;
  if (settings.target >= 1) return static_cast<std::int64_t>(settings.target);
  return static_cast<std::int64_t>(settings.target * static_cast<double>(tokens));
}

class PeriodicSelector final : public ScoredSelector {
 public:
  PeriodicSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                   const PeriodicSettings& settings)
      : ScoredSelector{std::move(scorer), place}, settings_{settings} {}

  void learn_prompt(PromptScores& scores) override {
    head_ = scores.heads().front();
    kv_head_ = scores.head_number(0);
    if (settings_.prompt_scorer) {
      score_ = score_prompt(*settings_.prompt_scorer, scores, 0, place());
    } else if (settings_.prompt_too) {
      ScoredSelector::learn_prompt(scores);
    }
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t room,
               std::vector<std::int32_t>& out) override {
    const std::int64_t tokens = std::int64_t{newest} + 1;
    const std::int64_t steps = tokens - head_.prompt;
    if (steps <= 0 || steps % settings_.interval != 0) return;
    const std::int64_t target = std::max<std::int64_t>(target_at(settings_, room, tokens), 0);
    if (entries.free_size() <= target) return;
    gather(entries);
    const std::int64_t past = scorer().past_queries();
    const std::vector<double> all =
        scorer().score({.head = head_,
                        .positions = positions_,
                        .keys = keys_,
                        .values = values_,
                        .first_query = std::max<std::int64_t>(tokens - past, 0),
                        .tokens = tokens,
                        .kv_head = kv_head_},
                       place());
    KVSIM_CHECK(all.size() == positions_.size(), "{} scores of {} entries", all.size(),
                positions_.size());
    const std::vector<std::int32_t> kept = highest(all, target);
    std::size_t next = 0;
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (next < kept.size() && static_cast<std::size_t>(kept[next]) == i) {
        ++next;
      } else {
        out.push_back(positions_[i]);
      }
    }
  }

 private:
  /// Collects the entries that may leave, in order of position.
  void gather(const EntryTable& entries) {
    const auto d = static_cast<std::size_t>(head_.head_dim);
    positions_.clear();
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      if (!entries.is_pinned(slot)) positions_.push_back(entries.id(slot));
    }
    std::sort(positions_.begin(), positions_.end());
    keys_.resize(positions_.size() * d);
    values_.resize(positions_.size() * d);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const std::int32_t slot = entries.slot_of(positions_[i]);
      std::copy_n(entries.key(slot).data(), d, keys_.data() + i * d);
      std::copy_n(entries.value(slot).data(), d, values_.data() + i * d);
    }
  }

  PeriodicSettings settings_;
  HeadVectors head_;
  std::int32_t kv_head_ = 0;
  std::vector<std::int32_t> positions_;
  std::vector<float> keys_, values_;
};

class PeriodicRule final : public ScoredRule {
 public:
  PeriodicRule(std::shared_ptr<const Scorer> scorer, const PeriodicSettings& settings)
      : ScoredRule{std::move(scorer)}, settings_{settings} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<PeriodicSelector>(scorer(), place, settings_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs = ScoredRule::needs();
    if (!settings_.prompt_too || settings_.prompt_scorer) {
      needs.prompt_scores = PromptScoreClass::kNone;
      needs.prompt_window = 0;
    }
    if (settings_.prompt_scorer) needs += settings_.prompt_scorer->needs();
    return needs;
  }
  bool rerotates_once() const override { return false; }
  bool compresses_prompt() const override { return settings_.prompt_too; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    return periodic_held(settings_, budget, prompt, tokens);
  }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& shape) const override {
    return scorer()->past_queries() > 0 ? scorer()->past_bytes(shape) : Bytes{0};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (const double past = scorer()->past_queries(); past > 0) {
      traffic.side_write += static_cast<double>(scorer()->past_bytes(shape).count()) / past;
    }
    if (events.left <= 0) return;
    const ScoreCost cost = scorer()->cost(events.attended, scorer()->past_queries(), shape);
    traffic.extra_flops += cost.flops;
    traffic.side_read += cost.read;
    const double survivors = events.attended - events.left;
    traffic.move_read += survivors * shape.row_bytes();
    traffic.move_write += survivors * shape.row_bytes();
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    if (settings_.prompt_scorer) {
      return ScoredRule{settings_.prompt_scorer}.prefill_extra(shape, recorded, prompt);
    }
    return settings_.prompt_too ? ScoredRule::prefill_extra(shape, recorded, prompt)
                                : PrefillExtra{};
  }

 private:
  PeriodicSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_periodic(MethodResolver& resolver) {
  if (resolver.budget()) {
    resolver.refuse(
        "it leaves the prompt whole and takes no budget; set target, the entries after a "
        "compression");
  }
  if (resolver.choice("budget") != "none") {
    resolver.refuse("its target is the same in every head: expected budget=none");
  }
  const double target = resolver.number("target");
  const std::int64_t entries = target >= 1 ? static_cast<std::int64_t>(target) : resolver.prompt();
  return make_periodic({.interval = resolver.integer("interval"), .target = target},
                       make_wrapped_scorer(resolver, entries));
}

/// kvpress, PrefillDecodingPress: one scorer for the prompt, another one for decode steps.
std::shared_ptr<const SelectRule> resolve_prefill_decoding(MethodResolver& resolver) {
  const std::int64_t kept = resolve_ratio(resolver);
  if (resolver.slots() > 0) {
    resolver.refuse(
        "the entries after a compression are set by target, which leaves no room for merged "
        "entries: expected merge=drop");
  }
  const double target = resolver.number("target");
  const std::int64_t entries = target >= 1 ? static_cast<std::int64_t>(target) : resolver.prompt();
  const PeriodicSettings settings{
      .interval = resolver.integer("interval"),
      .target = target,
      .prompt_too = true,
      .prompt_scorer = make_wrapped_scorer(resolver, kept, "prompt_scorer")};
  return make_periodic(settings, make_wrapped_scorer(resolver, entries));
}

std::vector<ParamInfo> interval_params() {
  return {integer_param("interval", "", 512, 1, kManyEntries, "an integer >= 1",
                        "decode steps between compressions",
                        "kvpress, DecodingPress compression_interval", {"compression_interval"}),
          number_param("target", "", 2048, 1e-6, kManyEntries,
                       "entries, or a share of the tokens so far "
                       "below 1",
                       "entries after a compression",
                       "kvpress, DecodingPress target_size; below 1 CompressionRatioDecodingPress",
                       {"target_size"})};
}

}  // namespace

std::int64_t periodic_held(const PeriodicSettings& settings, std::int64_t entries,
                           std::int64_t prompt, std::int64_t tokens) {
  const std::int64_t generated = std::max<std::int64_t>(tokens - prompt, 0);
  const std::int64_t after_prompt =
      settings.prompt_too ? std::min({prompt, tokens, entries}) : std::min(prompt, tokens);
  const std::int64_t since = generated % settings.interval;
  if (generated < settings.interval) return after_prompt + generated;
  // If the first compression has more entries than its target, so have all later ones.
  const std::int64_t target = target_at(settings, entries, tokens - since);
  if (target == kUnlimited) return after_prompt + generated;
  return std::min(after_prompt + generated, target + since);
}

std::shared_ptr<const SelectRule> make_periodic(const PeriodicSettings& settings,
                                                std::shared_ptr<const Scorer> scorer) {
  return std::make_shared<PeriodicRule>(std::move(scorer), settings);
}

AxisChoice select_periodic() {
  std::vector<ParamInfo> params = wrapped_scorer_params("knorm");
  for (ParamInfo& param : interval_params()) params.push_back(std::move(param));
  return {.axis = "select",
          .name = "periodic",
          .params = std::move(params),
          .make = &resolve_periodic,
          .takes_budget = false};
}

AxisChoice select_prefill_decoding() {
  std::vector<ParamInfo> params = wrapped_scorer_params("knorm");
  params.insert(params.begin(), {ratio_param(), prompt_scorer_param("knorm")});
  for (ParamInfo& param : interval_params()) params.push_back(std::move(param));
  return {.axis = "select",
          .name = "prefill-decoding",
          .params = std::move(params),
          .make = &resolve_prefill_decoding};
}

}  // namespace kvsim
