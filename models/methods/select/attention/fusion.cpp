// MorphKV (2025): a cache of constant size. It holds the last R tokens and the C older tokens with
// the most attention from the last R queries, selected again at every step.
//
//   S_i(j) = sum over the group of the attention of window query i to entry j
//   F(j)   = sum (or max) over the last R queries of S_i(j)
//   held   = Top_C(F over entries older than the window) and the last R
//
// The released code evicts before a step attends and fuses raw logits (summed over the group,
// converted to probabilities over only the distant entries). It keeps a profile per query head and
// prunes its columns by that head's choice, but K and V by the group's choice. Under GQA its
// columns then belong to other entries than K and V.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "models/math/attention/attention_profile.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
constexpr double kProtected = std::numeric_limits<double>::infinity();

struct FusionSettings {
  std::int32_t window = 32;
  bool fuse_max = false;
  std::int64_t period = 1;
  double evict_after = 1.0;
  bool before_attend = false;
  ProfileSpace space = ProfileSpace::kProbability;
  bool by_query_head = false;      // the released code's profile
  std::int32_t profile_heads = 1;  // profiles per stored head
  bool offload = false;
};

/// Returns the schedule and size of cuts at decode steps for a head of `capacity`.
Sawtooth cuts(const FusionSettings& settings, std::int64_t capacity, std::int64_t start) {
  const std::int64_t target = capacity + (settings.before_attend ? 1 : 0);
  const auto requested = static_cast<std::int64_t>(
      std::ceil(settings.evict_after * static_cast<double>(capacity + 1)));
  return {.start = start,
          .trigger = std::max(requested, target + 1),
          .target = target,
          .period = settings.period};
}

/// The released code's profiles under GQA: one per query head, with columns by rank in the cache.
/// Each profile prunes separately, so it has one column per entry of the cache, but not for the
/// same entries.
class DriftingProfiles {
 public:
  DriftingProfiles(const FusionSettings& settings, std::int32_t heads)
      : group_{settings.window, settings.space, settings.fuse_max},
        sums_alone_{settings.space == ProfileSpace::kProbability && !settings.fuse_max} {
    for (std::int32_t m = 0; m < heads; ++m) {
      heads_.push_back(
          {AttentionProfile{settings.window, settings.space, settings.fuse_max}, {}, {}});
    }
  }

  /// Entries that the columns nominally belong to, ascending.
  [[nodiscard]] std::span<const std::int32_t> ids() const { return ids_; }
  void append(std::int32_t id) {
    ids_.push_back(id);
    for (Head& head : heads_) head.columns.push_back(head.profile.add_column());
  }
  void next_row() {
    for (Head& head : heads_) head.profile.next_row();
  }
  void write(std::size_t head, std::size_t rank, double attention) {
    heads_[head].profile.write(heads_[head].columns[rank], attention);
  }
  /// Computes fused scores of the first `distant` ranks; the group's rows are summed per column.
  void fuse(std::size_t distant, std::vector<double>& out) {
    if (sums_alone_) {  // each head's rows are already summed
      out.assign(distant, 0.0);
      for (Head& head : heads_) {
        head.profile.fuse(std::span{head.columns}.first(distant), of_head_);
        for (std::size_t rank = 0; rank < distant; ++rank) out[rank] += of_head_[rank];
      }
      return;
    }
    while (group_columns_.size() < distant) group_columns_.push_back(group_.add_column());
    const std::span columns = std::span{group_columns_}.first(distant);
    for (std::size_t rank = 0; rank < distant; ++rank) {
      for (std::size_t m = 0; m < heads_.size(); ++m) {
        const auto from = heads_[m].profile.column(heads_[m].columns[rank]);
        group_.take(columns[rank], from, /*add=*/m > 0);
      }
    }
    group_.fuse(columns, out);
  }
  /// Ids that head `m` dropped at the last pruning, according to their rank, ascending. They are
  /// hidden from the head at that step, although the cache may hold them.
  [[nodiscard]] std::span<const std::int32_t> hidden_from(std::size_t m) const {
    return heads_[m].hidden;
  }
  void show_all() {
    for (Head& head : heads_) head.hidden.clear();
  }
  /// Called when the cache drops the entries `leaving` (ids, ascending). Each profile drops the
  /// same number of its first `distant` columns: those with its lowest scores.
  void prune(std::size_t distant, std::span<const std::int32_t> leaving) {
    std::vector<double> fused;
    std::vector<std::size_t> rank(distant);
    std::vector<bool> gone;
    for (Head& head : heads_) {
      head.profile.fuse(std::span{head.columns}.first(distant), fused);
      std::iota(rank.begin(), rank.end(), std::size_t{0});
      const auto last = rank.begin() + static_cast<std::ptrdiff_t>(leaving.size());
      std::partial_sort(rank.begin(), last, rank.end(), [&fused](std::size_t a, std::size_t b) {
        return fused[a] != fused[b] ? fused[a] < fused[b] : a > b;
      });
      gone.assign(head.columns.size(), false);
      for (auto each = rank.begin(); each != last; ++each) gone[*each] = true;
      std::size_t to = 0;
      for (std::size_t from = 0; from < head.columns.size(); ++from) {
        if (gone[from]) {
          head.profile.release(head.columns[from]);
          head.hidden.push_back(ids_[from]);
        } else {
          head.columns[to++] = head.columns[from];
        }
      }
      head.columns.resize(to);
    }
    std::vector<std::int32_t> kept;
    std::set_difference(ids_.begin(), ids_.end(), leaving.begin(), leaving.end(),
                        std::back_inserter(kept));
    ids_ = std::move(kept);
  }

 private:
  struct Head {
    AttentionProfile profile;
    std::vector<std::int32_t> columns;   // by rank
    std::vector<std::int32_t> hidden{};  // at this step; ids ascending
  };
  std::vector<Head> heads_;
  std::vector<std::int32_t> ids_;
  AttentionProfile group_;  // scratch: the sum over heads
  bool sums_alone_;         // group_ is not needed
  std::vector<double> of_head_;
  std::vector<std::int32_t> group_columns_;
};

class FusionSelector final : public Selector {
 public:
  FusionSelector(const FusionSettings& settings, const SessionPlace& place)
      : settings_{settings},
        group_{place.group},
        profile_{rows_kept(settings, place), settings.space, settings.fuse_max},
        protected_{settings.window},
        column_(static_cast<std::size_t>(place.tokens), -1),
        score_(static_cast<std::size_t>(place.tokens), 0.0) {
    if (settings.by_query_head) {
      FusionSettings kept = settings;
      kept.window = rows_kept(settings, place);
      drifting_.emplace_back(kept, place.group);
    }
  }

  void learn_prompt(PromptScores& scores) override {
    prompt_ = scores.prompt();
    const WindowRows& rows = scores.window(settings_.window);
    const auto& source = settings_.space == ProfileSpace::kLogit ? rows.logits : rows.probabilities;
    std::vector<double> sum(static_cast<std::size_t>(prompt_));
    for (std::int32_t id = 0; id < prompt_; ++id) add_entry(id);
    for (std::int32_t r = 0; r < rows.rows; ++r) {
      std::fill(sum.begin(), sum.end(), 0.0);
      profile_.next_row();
      for (DriftingProfiles& each : drifting_) each.next_row();
      for (std::size_t h = 0; h < scores.heads().size(); ++h) {
        for (std::int32_t g = 0; g < rows.group; ++g) {
          const auto row = rows.row(source, h, g, r);
          for (std::size_t i = 0; i < sum.size(); ++i) {
            sum[i] += row[i];
            for (DriftingProfiles& each : drifting_) {
              each.write(static_cast<std::size_t>(g), i, row[i]);
            }
          }
        }
      }
      for (std::size_t i = 0; i < sum.size(); ++i) profile_.write(column_[i], sum[i]);
    }
    ids_.resize(static_cast<std::size_t>(prompt_));
    std::iota(ids_.begin(), ids_.end(), 0);
    score_distant(ids_, prompt_ - 1, settings_.window);
  }

  void allow(const EntryBudget& /*allotted*/, std::int64_t room) override {
    capacity_ = room;
    protected_ = std::min<std::int64_t>(settings_.window, room);
    degenerate_ = room <= settings_.window;
    start_ = settings_.before_attend ? prompt_ : std::min<std::int64_t>(prompt_, room);
  }

  void observe(const StepView& step) override {
    for (const std::int32_t id : gone_) {
      profile_.release(column_[static_cast<std::size_t>(id)]);
      column_[static_cast<std::size_t>(id)] = -1;
    }
    gone_.clear();
    if (!forgot_prompt_) forget_prompt(step.heads.front().entries);
    profile_.next_row();
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      const std::int32_t id = step.ids[slot];
      if (column_[static_cast<std::size_t>(id)] < 0) add_entry(id);
      if (!drifting_.empty()) continue;  // the group's profile is not read
      double attention = 0;
      if (settings_.space == ProfileSpace::kProbability) {
        attention = step.group_sum[slot];
      } else {
        for (const HeadStep& head : step.heads) {
          for (std::int32_t g = 0; g < group_; ++g) {
            attention += head.attention.logits(g)[slot];
          }
        }
      }
      profile_.write(column_[static_cast<std::size_t>(id)], attention);
    }
    for (DriftingProfiles& each : drifting_) observe_heads(each, step.heads.front());
  }

  double score(std::int32_t id) const override { return score_[static_cast<std::size_t>(id)]; }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    return is_distant(id, newest, at_prefill) ? score(id) : kProtected;
  }
  void hide(const EntryTable& entries, std::span<double> bias) const override {
    const auto n = static_cast<std::size_t>(entries.size());
    for (const DriftingProfiles& each : drifting_) {
      for (std::size_t g = 0; g < static_cast<std::size_t>(group_); ++g) {
        for (const std::int32_t id : each.hidden_from(g)) {
          const std::int32_t slot = entries.slot_of(id);
          if (slot >= 0) bias[g * n + static_cast<std::size_t>(slot)] = -kProtected;
        }
      }
    }
  }
  void merge_scores(std::int32_t into, std::int32_t from, bool take_max) override {
    const std::int32_t to = column_[static_cast<std::size_t>(into)];
    const std::int32_t other = column_[static_cast<std::size_t>(from)];
    if (to >= 0 && other >= 0) profile_.combine(to, other, take_max);
  }

  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    for (DriftingProfiles& each : drifting_) each.show_all();
    if (capacity_ == kNoLimit) return;
    const Sawtooth cut = cuts(settings_, capacity_, start_);
    const std::int64_t step = newest - prompt_ + 1;
    const bool feeding = step <= 0;  // a merge that feeds the prompt token by token
    if (!feeding && (step % settings_.period != 0 || entries.free_size() < cut.trigger)) return;
    if (!feeding) {
      ids_.clear();
      for (const std::int32_t id : entries.ids()) {
        if (column_[static_cast<std::size_t>(id)] >= 0) ids_.push_back(id);
      }
      score_distant(ids_, newest, protected_ + (settings_.before_attend ? 1 : 0));
    }
    const std::size_t before = out.size();
    Selector::leaving(entries, newest, cut.target, out);
    gone_.insert(gone_.end(), out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
    if (feeding) return;
    for (DriftingProfiles& each : drifting_) {
      if (out.size() > before)
        each.prune(distant_ranks(each, newest), std::span{out}.subspan(before));
    }
  }
  void report(Counts& counts) const override {
    if (degenerate_) counts["degenerate"] += 1;
  }

 private:
  /// A sequence has at most one row per token.
  static std::int32_t rows_kept(const FusionSettings& settings, const SessionPlace& place) {
    return std::min(settings.window, std::max(place.tokens, 1));
  }
  bool is_distant(std::int32_t id, std::int32_t newest, bool at_prefill) const {
    const bool one_more = settings_.before_attend && !at_prefill;
    return id <= newest - protected_ - (one_more ? 1 : 0);
  }
  /// Releases entries that the compression of the prompt dropped or merged.
  void forget_prompt(const EntryTable& entries) {
    forgot_prompt_ = true;
    std::vector<std::int32_t> lost;
    for (std::int32_t id = 0; id < prompt_; ++id) {
      std::int32_t& column = column_[static_cast<std::size_t>(id)];
      if (column < 0 || entries.slot_of(id) >= 0) continue;
      profile_.release(column);
      column = -1;
      lost.push_back(id);
    }
    for (DriftingProfiles& each : drifting_) {
      if (!lost.empty()) each.prune(distant_ranks(each, prompt_ - 1), lost);
    }
  }
  void add_entry(std::int32_t id) {
    column_[static_cast<std::size_t>(id)] = profile_.add_column();
    for (DriftingProfiles& each : drifting_) each.append(id);
  }
  std::size_t distant_ranks(const DriftingProfiles& profiles, std::int32_t newest) const {
    std::size_t distant = 0;
    while (distant < profiles.ids().size() &&
           is_distant(profiles.ids()[distant], newest, /*at_prefill=*/false)) {
      ++distant;
    }
    return distant;
  }
  void observe_heads(DriftingProfiles& profiles, const HeadStep& head) const {
    profiles.next_row();
    for (std::size_t rank = 0; rank < profiles.ids().size(); ++rank) {
      const std::int32_t slot = head.entries.slot_of(profiles.ids()[rank]);
      if (slot < 0) continue;
      for (std::int32_t g = 0; g < group_; ++g) {
        const auto row = settings_.space == ProfileSpace::kLogit ? head.attention.logits(g)
                                                                 : head.attention.probabilities(g);
        profiles.write(static_cast<std::size_t>(g), rank, row[static_cast<std::size_t>(slot)]);
      }
    }
  }
  /// Computes F for the entries in `ids` before the last `recent` tokens; 0 for the others.
  void score_distant(std::span<const std::int32_t> ids, std::int32_t newest, std::int64_t recent) {
    if (!drifting_.empty()) {
      const auto ranked = drifting_.front().ids();
      std::size_t distant = 0;
      while (distant < ranked.size() && ranked[distant] <= newest - recent) ++distant;
      drifting_.front().fuse(distant, fused_);
      for (std::size_t rank = 0; rank < distant; ++rank) {
        score_[static_cast<std::size_t>(ranked[rank])] = fused_[rank];
      }
      return;
    }
    distant_.clear();
    distant_columns_.clear();
    for (const std::int32_t id : ids) {
      if (id > newest - recent) continue;
      distant_.push_back(id);
      distant_columns_.push_back(column_[static_cast<std::size_t>(id)]);
    }
    profile_.fuse(distant_columns_, fused_);
    for (std::size_t i = 0; i < distant_.size(); ++i) {
      score_[static_cast<std::size_t>(distant_[i])] = fused_[i];
    }
  }

  FusionSettings settings_;
  std::int32_t group_;
  AttentionProfile profile_;
  std::int64_t protected_;
  std::vector<DriftingProfiles> drifting_;  // none or one
  std::vector<std::int32_t> column_;        // column of profile_, by id; -1: none
  std::vector<double> score_;               // F, by id
  std::vector<std::int32_t> gone_;          // evicted entries with columns not yet released
  std::vector<std::int32_t> ids_, distant_, distant_columns_;
  std::vector<double> fused_;
  std::int32_t prompt_ = 0;
  std::int64_t capacity_ = kNoLimit, start_ = 0;
  bool degenerate_ = false;
  bool forgot_prompt_ = false;
};

class FusionRule final : public SelectRule {
 public:
  explicit FusionRule(const FusionSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<FusionSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = settings_.window;
    needs.decode_rows = true;
    return needs;
  }
  bool compresses_prompt() const override { return !settings_.before_attend; }
  bool leaves_before_attend() const override { return settings_.before_attend; }
  // The released code masks a step's attention by each query head's choice at that step. Eviction
  // after attention needs no mask.
  bool hides_entries() const override { return settings_.by_query_head && settings_.before_attend; }
  PrefillPeak prefill_peak() const override { return PrefillPeak::kAllLayers; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  // Sum over the group, the profile's new row and its cut, fusion, top C, their indices and those
  // of the window, the profile's columns.
  std::int32_t operators() const override { return 9; }

  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    if (budget == kNoLimit || tokens <= prompt) {
      return settings_.before_attend ? tokens : std::min(tokens, budget);
    }
    const std::int64_t start = settings_.before_attend ? prompt : std::min(prompt, budget);
    return cuts(settings_, budget, start).held(decode_steps(prompt, tokens));
  }
  std::optional<std::int64_t> attended(std::int64_t budget, std::int64_t prompt,
                                       std::int64_t tokens) const override {
    if (settings_.before_attend) return held(budget, prompt, tokens);
    return SelectRule::attended(budget, prompt, tokens);
  }

  // The buffer has a column for every entry that a step attends over.
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    const std::int64_t columns = entries + (settings_.before_attend || entries == 0 ? 0 : 1);
    return Bytes{columns * settings_.window * element_bytes() * settings_.profile_heads};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double row = events.attended * static_cast<double>(element_bytes()) *
                       settings_.profile_heads;  // of the profile
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += shape.group * events.attended * 4.0;
    traffic.side_read += row * settings_.window;
    traffic.side_write += row;
    // Sum over the group, then over the window; logits also need a maximum and an exponential.
    const double per_element = settings_.space == ProfileSpace::kLogit ? 4.0 : 1.0;
    traffic.extra_flops +=
        events.attended * (shape.group + per_element * settings_.window * settings_.profile_heads);
    if (events.left > 0) {
      // One gather of K, V and profile per cut; a step that evicts one of `period` entries counts
      // as a share.
      const double share = std::min(1.0, events.left / static_cast<double>(settings_.period));
      const double kept =
          std::max(events.attended - (settings_.before_attend ? 0 : events.left), 0.0);
      const double gathered = share * kept *
                              (shape.row_bytes() + settings_.window * settings_.profile_heads *
                                                       static_cast<double>(element_bytes()));
      traffic.move_read += gathered;
      traffic.move_write += gathered;
    }
    if (settings_.offload) {  // fetched before the layer runs, written back after
      traffic.link_read += events.attended * shape.row_bytes();
      traffic.link_write += events.attended * shape.row_bytes();
    }
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const auto s = static_cast<double>(prompt);
    const std::int32_t heads = shape.n_kv_heads * settings_.profile_heads;
    return {.flops = s * settings_.window * (shape.n_heads + heads),
            .written = s * settings_.window * heads * static_cast<double>(element_bytes())};
  }

 private:
  // The released code's profile is fp32; the aligned profile has 16 bits, as the cache usually
  // does.
  [[nodiscard]] std::int64_t element_bytes() const { return settings_.by_query_head ? 4 : 2; }

  FusionSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_fusion(MethodResolver& resolver) {
  resolve_size(resolver, "total");
  FusionSettings settings{.window = static_cast<std::int32_t>(resolver.integer("window")),
                          .fuse_max = resolver.word("fusion") == "max",
                          .period = resolver.integer("evict_period"),
                          .evict_after = resolver.number("evict_after"),
                          .before_attend = resolver.word("evict_timing") == "before_attend",
                          .space = resolver.word("score_space") == "logit_sum"
                                       ? ProfileSpace::kLogit
                                       : ProfileSpace::kProbability,
                          .by_query_head = resolver.word("profile") == "query_head",
                          .profile_heads = 1,
                          .offload = resolver.flag("offload")};
  if (settings.by_query_head && resolver.choice("merge") != "drop") {
    resolver.refuse(
        "profile=query_head prunes columns by rank, which merged entries do not have: expected "
        "merge=drop");
  }
  if (settings.by_query_head && resolver.choice("share") != "none") {
    resolver.refuse(
        "profile=query_head is stored per query head of one layer: expected share=none");
  }
  const LayerShape& shape = resolver.site().shape;
  if (settings.by_query_head && resolver.word("granularity") == "kv_head" && shape.n_kv_heads > 0) {
    settings.profile_heads = shape.n_heads / shape.n_kv_heads;
  }
  return std::make_shared<FusionRule>(settings);
}

}  // namespace

AxisChoice select_fusion() {
  return {
      .axis = "select",
      .name = "fusion",
      .params =
          {integer_param("window", "R", 32, 1, kMaxRows, kRowsRange,
                         "last tokens kept, whose queries choose among the older ones",
                         "MorphKV: 32 LongBench, 30 LongWriter, 200 LongGenBench", {"window_size"}),
           integer_param("total", "C+R", 2000, 1, kManyEntries, "an integer >= 1",
                         "entries kept, if no budget is given",
                         "MorphKV: 2000 LongBench, 600 LongWriter, 4000 LongGenBench",
                         {"capacity"}),
           word_param("fusion", {"sum", "max"}, "how the window's queries are fused into one score",
                      "MorphKV: sum for LongBench and LongWriter, max for LongGenBench"),
           integer_param("evict_period", "", 1, 1, kManyEntries, "an integer >= 1",
                         "decode steps between cuts",
                         "MorphKV's ablation: 8 runs in 0.82 of the time"),
           word_param("evict_timing", {"after_attend", "before_attend"},
                      "the prompt is cut at its end and each step after attention, or nothing is "
                      "cut before the first decode step and each step before attention",
                      "MorphKV's paper against its released code"),
           word_param("score_space", {"prob", "logit_sum"},
                      "probabilities, or logits summed over the group and normalised to "
                      "probabilities over the older entries",
                      "MorphKV's paper against its released code"),
           word_param("profile", {"kv_head_aligned", "query_head"},
                      "attention of the window kept per KV head, or per query head and pruned by "
                      "each head's own choice, which with evict_timing=before_attend also masks "
                      "the step's attention",
                      "MorphKV's released code has query_head"),
           number_param("evict_after", "", 1.0, 1.0, kManyEntries, "a number >= 1",
                        "cut once entries reach this factor times (capacity + 1)",
                        "MorphKV, released code"),
           flag_param("offload", false, "the cache is in host memory and is moved layer by layer",
                      "MorphKV, released code")},
      .make = &resolve_fusion};
}

}  // namespace kvsim
