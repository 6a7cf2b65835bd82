// SepLLM (Chen et al. 2024, arXiv 2412.12094), streaming form of the released code: first tokens,
// separators (punctuation and white space, which condense the segment before them) and a window of
// recent tokens.
//
//   held: n_sink first | kept separators | every token since, of which the last `local` are recent
//   when more than `cache` are held: from those between the separators and the last `local`, only
//   separators are kept; they join the kept separators, limited to the newest `separators`
//
// As in the released code, a prompt is fed to the cache token by token. There are no scores.

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct SeparatorSettings {
  std::size_t sinks = 4, separators = 32, local = 224, cache = 324;
  std::vector<std::int32_t> ids;  // token ids of separators; empty: those in the trace
};

class SeparatorSelector final : public Selector {
 public:
  explicit SeparatorSelector(const SeparatorSettings& settings) : settings_{settings} {}

  void learn_prompt(PromptScores& scores) override {
    const LayerVectors& layer = scores.layer();
    tokens_ = layer.token_ids;
    separators_ = settings_.ids.empty() ? layer.separator_ids : settings_.ids;
    KVSIM_CHECK(std::ssize(tokens_) >= scores.prompt(), "{} token ids of a prompt of {}",
                tokens_.size(), scores.prompt());
    for (std::int32_t id = 0; id < scores.prompt(); ++id) add(id);
  }
  double score(std::int32_t id) const override { return is_separator(id) ? 1 : 0; }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (id < at(settings_.sinks) || id > newest - at(settings_.local)) return kInfinity;
    return is_separator(id) ? static_cast<double>(id) : -kInfinity;
  }
  std::vector<std::int32_t> plan(std::int32_t /*prompt*/,
                                 const EntryBudget& /*allotted*/) const override {
    return held_;
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    const std::vector<std::int32_t> before = held_;
    add(newest);
    std::set_difference(before.begin(), before.end(), held_.begin(), held_.end(),
                        std::back_inserter(out));
  }

 private:
  [[nodiscard]] bool is_separator(std::int32_t id) const {
    const std::int32_t token = tokens_[static_cast<std::size_t>(id)];
    return std::find(separators_.begin(), separators_.end(), token) != separators_.end();
  }
  void add(std::int32_t id) {
    held_.push_back(id);
    if (held_.size() <= settings_.cache) return;
    std::vector<std::int32_t> kept{held_.begin() + at(settings_.sinks), held_.begin() + at(kept_)};
    const std::size_t local = held_.size() - settings_.local;
    std::copy_if(held_.begin() + at(kept_), held_.begin() + at(local), std::back_inserter(kept),
                 [this](std::int32_t token) { return is_separator(token); });
    if (kept.size() > settings_.separators) {
      kept.erase(kept.begin(), kept.end() - at(settings_.separators));
    }
    kept_ = settings_.sinks + kept.size();
    held_.erase(held_.begin() + at(settings_.sinks), held_.begin() + at(local));
    held_.insert(held_.begin() + at(settings_.sinks), kept.begin(), kept.end());
  }
  static std::ptrdiff_t at(std::size_t index) { return static_cast<std::ptrdiff_t>(index); }

  const SeparatorSettings& settings_;
  std::span<const std::int32_t> tokens_, separators_;
  std::vector<std::int32_t> held_;      // ascending
  std::size_t kept_ = settings_.sinks;  // number of first tokens and kept separators in held_
};

class SeparatorRule final : public SelectRule {
 public:
  explicit SeparatorRule(SeparatorSettings settings) : settings_{std::move(settings)} {}
  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<SeparatorSelector>(settings_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.token_ids = true;
    needs.inputs.separator_ids = settings_.ids.empty();
    return needs;
  }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  // The number of separators depends on the tokens.
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t /*prompt*/,
                                   std::int64_t tokens) const override {
    if (tokens <= static_cast<std::int64_t>(settings_.cache)) return tokens;
    return std::nullopt;
  }
  // Token ids of held entries are one list for all heads and layers.
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    if (events.left <= 0) return;
    const double survivors = events.attended - events.left;
    traffic.move_read += survivors * shape.row_bytes();
    traffic.move_write += survivors * shape.row_bytes();
  }

 private:
  SeparatorSettings settings_;
};

/// Parses "13,11,30". Errors: refuses other text.
std::vector<std::int32_t> read_ids(MethodResolver& resolver, const std::string& list) {
  std::vector<std::int32_t> ids;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at != end) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || id < 0 || (next != end && (*next != ',' || next + 1 == end))) {
      resolver.refuse(fmt::format(
          "separator_ids: expected a list of token ids such as \"13,11,30\", got \"{}\"",
          list.substr(0, 80)));
    }
    ids.push_back(id);
    at = next == end ? next : next + 1;
  }
  return ids;
}

std::shared_ptr<const SelectRule> resolve_separators(MethodResolver& resolver) {
  if (resolver.budget()) {
    resolver.refuse("it takes no budget: set cache, local, separators and n_sink instead");
  }
  if (resolver.choice("budget") != "none" || resolver.choice("merge") != "drop") {
    resolver.refuse(
        fmt::format("its cache is the same in every head and has no room for merged entries: "
                    "expected budget=none and merge=drop, got budget={} and merge={}",
                    resolver.choice("budget"), resolver.choice("merge")));
  }
  const auto size = [&](const char* name) {
    return static_cast<std::size_t>(resolver.integer(name));
  };
  SeparatorSettings set{.sinks = size("n_sink"),
                        .separators = size("separators"),
                        .local = size("local"),
                        .cache = size("cache"),
                        .ids = read_ids(resolver, resolver.word("separator_ids"))};
  const std::size_t parts = set.sinks + set.separators + set.local;
  if (set.cache < parts) {
    resolver.refuse(
        fmt::format("a cache of {} entries is less than its parts: expected at least {} (n_sink {} "
                    "+ separators {} + local {})",
                    set.cache, parts, set.sinks, set.separators, set.local));
  }
  return std::make_shared<SeparatorRule>(std::move(set));
}

}  // namespace

AxisChoice select_separators() {
  const std::string code = "SepLLM, released streaming code";
  return {.axis = "select",
          .name = "separators",
          .params = {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                                   "first tokens that are always kept", code, {"sinks"}),
                     integer_param("separators", "s", 32, 0, kManyEntries, "an integer >= 0",
                                   "newest separators kept from before the recent tokens", code),
                     integer_param("local", "w", 224, 1, kManyEntries, "an integer >= 1",
                                   "last tokens that stay when the cache is trimmed", code),
                     integer_param("cache", "c", 324, 1, kManyEntries, "an integer >= 1",
                                   "entries that may be held; one more trims the cache", code),
                     text_param("separator_ids", "a list such as 13,11,30",
                                "token ids of separators; if empty, separator_ids in the trace's "
                                "metadata",
                                "SepLLM: . , ? ! ; : space, tab, newline and their merged forms, a "
                                "list per tokenizer"),
                     positions_param()},
          .make = &resolve_separators,
          .takes_budget = false};
}

}  // namespace kvsim
