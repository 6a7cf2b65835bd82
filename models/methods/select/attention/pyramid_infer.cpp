// PyramidInfer (Yang et al. 2024): each layer passes on only the prompt tokens with the most
// attention from its last queries, so deeper layers compute and cache fewer tokens. Generated
// tokens are evicted later. All heads of a layer keep the same tokens.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "models/methods/budget/nested.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct PyramidSettings {
  std::int64_t recent = 0;  // last tokens, always kept; their rows score the others
  std::int64_t sinks = 4;
  double last_weight = 1.2;
  double decay = 0.1;     // share of generated tokens kept, towards the last layer
  double compress = 0.9;  // the same in the first layer
  std::int64_t exceed = 16;
  bool total = false;  // growth is counted in tokens of the sequence, not in entries
  std::int32_t n_layers = 1;
  std::int32_t n_kv_heads = 1;

  /// Returns the number of tokens kept in `layer` out of `exceed` generated tokens.
  [[nodiscard]] std::int64_t keep(std::int32_t layer) const {
    const double share = cosine_share(layer, n_layers, decay);
    return std::max<std::int64_t>(
        static_cast<std::int64_t>(static_cast<double>(exceed) * compress * share), 1);
  }
};

/// The last `rows` attention rows of a layer, summed over its heads, over positions base ….
class RowRing {
 public:
  void start(std::int64_t rows, std::int64_t base, std::int64_t tokens) {
    base_ = static_cast<std::size_t>(base);
    width_ = static_cast<std::size_t>(tokens - base);
    rows_.assign(static_cast<std::size_t>(rows) * width_, 0.0);
    n_ = static_cast<std::size_t>(rows);
  }
  /// Adds a new youngest row of zeros.
  void push() {
    std::fill_n(rows_.begin() + static_cast<std::ptrdiff_t>(next_ * width_), width_, 0.0);
    youngest_ = next_;
    next_ = (next_ + 1) % n_;
  }
  void add(std::int64_t id, double p) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= base_) rows_[youngest_ * width_ + at - base_] += p;
  }
  /// Weighted sum over rows: the youngest row has weight `last`, the oldest weight 1.
  [[nodiscard]] double score(std::int32_t id, double last) const {
    double sum = 0;
    for (std::size_t i = 0; i < n_; ++i) {
      const double weight =
          n_ > 1 ? 1.0 + (last - 1.0) * static_cast<double>(i) / static_cast<double>(n_ - 1) : last;
      sum += weight * rows_[((next_ + i) % n_) * width_ + static_cast<std::size_t>(id) - base_];
    }
    return sum;
  }

 private:
  std::size_t base_ = 0, width_ = 0, n_ = 0, next_ = 0, youngest_ = 0;
  std::vector<double> rows_;
};

class PyramidSelector final : public Selector {
 public:
  PyramidSelector(const PyramidSettings& settings, const SessionPlace& place)
      : settings_{settings}, keep_{settings.keep(place.layer)}, tokens_{place.tokens} {}

  void restrict_prompt(std::span<const std::int32_t> alive) override {
    alive_.assign(alive.begin(), alive.end());
  }
  void learn_prompt(PromptScores& scores) override {
    prompt_ = scores.prompt();
    const auto s = static_cast<std::size_t>(prompt_);
    lives_.assign(s, alive_.empty());
    for (const std::int32_t id : alive_) lives_[static_cast<std::size_t>(id)] = true;
    entries_ = alive_.empty() ? prompt_ : std::ssize(alive_);
    score_.assign(s, 0.0);
    ring_.start(settings_.recent, settings_.total ? 0 : prompt_, tokens_);
    // Recent tokens are kept in every layer, so all these queries are available.
    const std::int64_t first = prompt_ - settings_.recent;
    std::vector<double> row_sums;
    std::vector<std::vector<double>> rows;
    if (settings_.total) rows.resize(static_cast<std::size_t>(settings_.recent));
    scores.each_row(first, [&](const PromptScores::Row& row) {
      // Dropped tokens are excluded: the softmax is over the tokens of the layer.
      double sum = 0;
      for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
        if (lives_[i]) sum += row.probabilities[i];
      }
      const auto at = row.t - first;
      const double weight = settings_.recent > 1
                                ? 1.0 + (settings_.last_weight - 1.0) * static_cast<double>(at) /
                                            static_cast<double>(settings_.recent - 1)
                                : settings_.last_weight;
      for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
        if (lives_[i]) score_[i] += weight * row.probabilities[i] / sum;
      }
      if (!settings_.total) return;
      auto& kept = rows[static_cast<std::size_t>(at)];
      kept.resize(s);
      for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
        if (lives_[i]) kept[i] += row.probabilities[i] / sum;
      }
    });
    for (const auto& row : rows) {
      ring_.push();
      for (std::size_t i = 0; i < s; ++i) ring_.add(static_cast<std::int64_t>(i), row[i]);
    }
  }
  void observe(const StepView& step) override {
    ring_.push();
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      ring_.add(step.ids[slot], step.group_sum[slot]);
    }
  }
  double score(std::int32_t id) const override {
    const auto at = static_cast<std::size_t>(id);
    return at < score_.size() ? score_[at] : 0.0;
  }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    if (at_prefill && !lives_[static_cast<std::size_t>(id)]) return -kInfinity;
    if (id < settings_.sinks || id > newest - settings_.recent) return kInfinity;
    return score(id);
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    const std::int64_t late = settings_.recent + settings_.exceed;
    candidates_.clear();
    if (settings_.total) {
      if (newest + 1 - entries_ < late) return;
      candidates_.assign(entries.ids().begin(), entries.ids().end());
      const std::int64_t from = entries.size() - late;
      if (from < settings_.sinks) return;
      std::sort(candidates_.begin(), candidates_.end());
      candidates_.erase(candidates_.begin() + (from + settings_.exceed), candidates_.end());
      candidates_.erase(candidates_.begin(), candidates_.begin() + from);
    } else {
      const std::int64_t grown = newest + 1 - prompt_ - late;
      if (grown < 0 || grown % settings_.exceed != 0) return;
      for (std::int64_t i = 0; i < settings_.exceed; ++i) {
        candidates_.push_back(static_cast<std::int32_t>(newest + 1 - late + i));
      }
    }
    ranked_.clear();
    for (const std::int32_t id : candidates_) {
      const bool sink = id < settings_.sinks;  // also decoded tokens, after a shorter prompt
      ranked_.push_back({sink ? kInfinity : ring_.score(id, settings_.last_weight), id});
    }
    const auto sinks = std::count_if(ranked_.begin(), ranked_.end(),
                                     [](const auto& each) { return each.first == kInfinity; });
    const std::int64_t keep = std::max<std::int64_t>(keep_, sinks);
    std::sort(ranked_.begin(), ranked_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    const auto first_new = static_cast<std::ptrdiff_t>(out.size());
    for (auto i = static_cast<std::size_t>(std::min<std::int64_t>(keep, std::ssize(ranked_)));
         i < ranked_.size(); ++i) {
      out.push_back(ranked_[i].second);
    }
    std::sort(out.begin() + first_new, out.end());
  }

 private:
  const PyramidSettings& settings_;
  std::int64_t keep_;
  std::int64_t tokens_;
  std::int32_t prompt_ = 0;
  std::int64_t entries_ = 0;  // entries after the prompt
  std::vector<std::int32_t> alive_;
  std::vector<bool> lives_;
  std::vector<double> score_;
  RowRing ring_;
  std::vector<std::int32_t> candidates_;
  std::vector<std::pair<double, std::int32_t>> ranked_;
};

class PyramidRule final : public SelectRule {
 public:
  explicit PyramidRule(const PyramidSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<PyramidSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = static_cast<std::int32_t>(settings_.recent);
    needs.decode_rows = true;
    return needs;
  }
  bool shared_by_layer() const override { return true; }
  bool nested() const override { return true; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }

  std::optional<std::int64_t> held_at(std::int32_t layer, std::int64_t budget, std::int64_t prompt,
                                      std::int64_t tokens) const override {
    const std::int64_t n = tokens - prompt;
    const std::int64_t late = settings_.recent + settings_.exceed;
    const std::int64_t gone = settings_.exceed - std::min(settings_.keep(layer), settings_.exceed);
    if (!settings_.total) {
      const std::int64_t times = n < late ? 0 : 1 + (n - late) / settings_.exceed;
      std::int64_t spared = 0;  // sinks among generated tokens
      for (std::int64_t i = 0; i < times && prompt + i * settings_.exceed < settings_.sinks; ++i) {
        const std::int64_t sinks =
            std::min(settings_.sinks - prompt - i * settings_.exceed, settings_.exceed);
        spared += std::max<std::int64_t>(sinks - (settings_.exceed - gone), 0);
      }
      return budget + n - times * gone + spared;
    }
    // Every step starting at the first with `late` tokens more than the layer held.
    const std::int64_t start = std::max<std::int64_t>(late + budget - prompt, 1);
    if (n < start || gone == 0) return budget + n;
    const std::int64_t floor = settings_.recent + settings_.sinks;
    const std::int64_t before = budget + start - 1 - floor;  // excluding entries that never leave
    const std::int64_t steps = n - start + 1;
    // As long as there are `exceed` entries after the append, each step removes `gone` and adds
    // one.
    std::int64_t falling = 0;
    if (before >= settings_.exceed - 1) {
      if (gone == 1) return budget + start - 1;
      falling = (before - (settings_.exceed - 1)) / (gone - 1) + 1;
    }
    if (steps <= falling) return floor + before - steps * (gone - 1);
    const std::int64_t low = before - falling * (gone - 1);
    const std::int64_t rise = settings_.exceed - 1 - low;  // steps until the next cut
    const std::int64_t rest = steps - falling;
    if (rest <= rise) return floor + low + rest;
    return floor + settings_.exceed - gone + (rest - rise - 1) % gone;
  }
  std::optional<std::int64_t> attended_at(std::int32_t layer, std::int64_t budget,
                                          std::int64_t prompt, std::int64_t tokens) const override {
    return *held_at(layer, budget, prompt, tokens - 1) + 1;
  }
  // The rows used for scoring, averaged over heads: one set per layer.
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return Bytes{settings_.recent * entries * 4};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double row = events.attended * 4.0;
    const double heads = settings_.n_kv_heads;
    traffic.score_row_write += shape.group * row;
    traffic.score_row_read += shape.group * row;
    traffic.side_write += row / heads;
    traffic.extra_flops += events.attended * shape.group;
    if (events.left <= 0) return;
    // The candidates' columns are read; the remaining entries are rewritten.
    const double scored = static_cast<double>(settings_.recent * settings_.exceed);
    traffic.side_read += scored * 4.0 / heads;
    traffic.extra_flops += 2.0 * scored / heads;
    traffic.move_read += (events.attended - events.left) * shape.row_bytes();
    traffic.move_write += (events.attended - events.left) * shape.row_bytes();
  }

 private:
  PyramidSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_pyramid_infer(MethodResolver& resolver) {
  if (resolver.choice("budget") != "nested") {
    resolver.refuse(
        fmt::format("each layer keeps a part of the previous layer's tokens, so budget={} has no "
                    "meaning (expected budget=nested)",
                    resolver.choice("budget")));
  }
  if (resolver.choice("share") != "none") {
    resolver.refuse(
        "a layer has tokens that the next does not have, so layers cannot share rows "
        "(expected share=none)");
  }
  PyramidSettings settings;
  const std::int64_t s = resolver.prompt();
  settings.recent = std::min(
      static_cast<std::int64_t>(resolver.number("recent") * static_cast<double>(s)) + 1, s);
  settings.sinks = resolver.integer("n_sink");
  settings.last_weight = resolver.number("last_weight");
  settings.decay = resolver.number("decay");
  settings.compress = resolver.number("compress");
  settings.exceed = resolver.integer("exceed");
  settings.total = resolver.word("growth") == "total";
  settings.n_layers = resolver.n_layers();
  settings.n_kv_heads = std::max(resolver.site().shape.n_kv_heads, 1);
  resolver.resolve("recent_tokens", settings.recent);
  if (resolver.budget()) {
    if (resolver.given("delta")) {
      resolver.refuse("budget and delta are both given; one follows from the other");
    }
    resolver.set_entries(resolver.entries_of(*resolver.budget()));
    NestedSchedule schedule{.shape = resolver.word("schedule"),
                            .delta = 0,
                            .recent = settings.recent,
                            .min_context = resolver.integer("min_context"),
                            .interval = static_cast<std::int32_t>(resolver.integer("interval"))};
    const std::int64_t room = resolver.entries() * settings.n_layers;
    std::int64_t best = 0;
    std::int64_t min = std::numeric_limits<std::int64_t>::max();
    double delta = -1;
    // Steps of 1e-4: lengths are not monotonic in delta if min_context stops a cut.
    constexpr int kSteps = 10000;
    for (int i = 0; i <= kSteps; ++i) {
      schedule.delta = static_cast<double>(i) / kSteps;
      std::int64_t total = 0;
      for (const std::int64_t length : nested_lengths(schedule, s, settings.n_layers)) {
        total += length;
      }
      min = std::min(min, total);
      if (total <= room && total >= best) {
        best = total;
        delta = schedule.delta;
      }
    }
    if (delta < 0) {
      resolver.refuse(fmt::format(
          "a budget of {} entries per layer cannot be met: with recent={} and min_context={} the "
          "layers hold at least {:.1f} on average (expected a smaller recent or a larger budget)",
          resolver.entries(), to_text(resolver.number("recent")), schedule.min_context,
          static_cast<double>(min) / settings.n_layers));
    }
    resolver.resolve("delta", delta);
  }
  return std::make_shared<PyramidRule>(settings);
}

}  // namespace

AxisChoice select_pyramid_infer() {
  const std::string code = "PyramidInfer, released configurations";
  return {
      .axis = "select",
      .name = "pyramidinfer",
      .params =
          {number_param("delta", "", 0.9, 0, 1, "a number in [0, 1]",
                        "share of its context that the last layer passes on; solved from a budget",
                        code + "; 0.8 for 13B"),
           number_param("recent", "", 0.2, 0, 1, "a number in [0, 1]",
                        "share of the prompt's last tokens that stay in every layer and score the "
                        "others",
                        code),
           integer_param("recent_tokens", "", 0, 0, 0, "0: derived from recent",
                         "tokens that correspond to recent: int(recent s) + 1", code),
           integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                         "first tokens that are always kept", code + "; 64 in the class",
                         {"sinks"}),
           integer_param("min_context", "", 64, 0, kManyEntries, "an integer >= 0",
                         "a layer's older tokens are not cut to this number or less", code),
           integer_param("interval", "", 1, 1, 1024, "an integer in [1, 1024]",
                         "layers between two cuts", code + "; 2 for 13B, 3 for 70B"),
           number_param("last_weight", "", 1.2, 0, 1e6, "a number >= 0",
                        "weight of the last query's attention; the first of the window has 1",
                        code),
           word_param("schedule", {"cosine", "linear", "constant"},
                      "how the share passed on falls from 1 to delta over the layers",
                      code + "; its linear schedule is overwritten by the constant"),
           number_param(
               "decay", "", 0.1, 0, 1, "a number in [0, 1]",
               "share of the first layer's generated tokens that is kept towards the last layer",
               code),
           number_param("compress", "", 0.9, 0, 1, "a number in [0, 1]",
                        "share of the generated tokens kept in the first layer", code),
           integer_param("exceed", "", 16, 1, 1 << 20, "an integer >= 1",
                         "generated tokens that are thinned at once", code),
           word_param("growth", {"layer", "total"},
                      "unit of a layer's growth: its own tokens, or all tokens seen, which thins "
                      "deep layers at every step",
                      "PyramidInfer; its port to newer transformers")},
      .make = &resolve_pyramid_infer};
}

}  // namespace kvsim
