// LESS (Dong et al. 2024): evicted entries are added to a state of constant size, through which
// later queries still attend to them.
//
//   H <- H + psi(k)^T v,  z <- z + psi(k)
//   o = (phi(q) H + sum over kept of e^l v) / (phi(q) z + sum over kept of e^l)
//
// The paper trains phi and psi in advance, per layer and head; such weights can be given as a file.
// Without a file they are fitted on the prompt itself, with a few steps of Adam per stored head, so
// that the method runs on any trace. Weights trained on other text would lead to different results,
// better or worse.

#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "models/math/attention/attend.hpp"
#include "models/math/counter_random.hpp"
#include "models/math/low_rank/low_rank_kernel.hpp"
#include "models/methods/merge/low_rank_weights.hpp"
#include "models/methods/merge/merge.hpp"

namespace kvsim {
namespace {

struct Settings {
  std::int32_t rank = 8, hidden = 64, fit_steps = 40;
  double rate = 0.01;
  std::int64_t budget = 0;
  std::shared_ptr<const LowRankWeights> weights;  // nullptr: fitted on the prompt
};

class LowRankMerger final : public Merger {
 public:
  LowRankMerger(const Settings& settings, const SessionPlace& place)
      : settings_{settings},
        place_{place},
        kernel_{{.head_dim = place.head_dim, .hidden = settings.hidden, .rank = settings.rank},
                counter_key({place.seed, static_cast<std::uint64_t>(place.layer),
                             static_cast<std::uint64_t>(place.first_head)})},
        outer_(static_cast<std::size_t>(settings.rank * place.head_dim), 0.0),
        sum_(static_cast<std::size_t>(settings.rank), 0.0) {}

  void learn_prompt(PromptScores& scores, std::size_t head) override {
    prompt_ = scores.heads()[head];
    if (settings_.weights) {
      const auto given =
          settings_.weights->of(place_.layer, place_.first_head + static_cast<std::int32_t>(head));
      std::copy(given.begin(), given.end(), kernel_.parameters().begin());
    }
  }
  void absorb_prompt(EntryTable& entries, Selector& /*selector*/,
                     std::span<const std::int32_t> losers, std::span<const float> keys,
                     std::span<const float> values) override {
    const auto d = static_cast<std::size_t>(place_.head_dim);
    if (!settings_.weights && settings_.fit_steps > 0) {
      std::tie(loss_before_, loss_after_) =
          fit_low_rank(kernel_, task(entries, losers), settings_.fit_steps, settings_.rate);
    }
    for (const std::int32_t id : losers) {
      const std::size_t row = static_cast<std::size_t>(id) * d;
      take_in(keys.subspan(row, d), values.subspan(row, d));
    }
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    for (const std::int32_t id : leaving) {
      const std::int32_t slot = entries.slot_of(id);
      take_in(entries.key(slot), entries.value(slot));
      entries.erase(slot);
    }
    return static_cast<std::int32_t>(leaving.size());
  }
  void extend_output(std::span<const float> q, std::span<double> out,
                     std::span<double> log_sums) override {
    if (taken_ == 0) return;
    row_.assign(q.begin(), q.end());
    const std::vector<double> phi = kernel_.phi(row_);
    const auto d = static_cast<std::size_t>(place_.head_dim);
    const std::size_t rank = sum_.size();
    for (std::size_t g = 0; g < log_sums.size(); ++g) {
      double mass = 0;
      for (std::size_t r = 0; r < rank; ++r) mass += phi[g * rank + r] * sum_[r];
      if (!(mass > 0)) continue;
      // phi z has the scale of the unshifted exponentials.
      const double high = std::max(log_sums[g], std::log(mass));
      const double all =
          high + std::log(std::exp(log_sums[g] - high) + std::exp(std::log(mass) - high));
      const double keep = std::exp(log_sums[g] - all);
      const double add = std::exp(-all);
      for (std::size_t j = 0; j < d; ++j) {
        double seen = 0;
        for (std::size_t r = 0; r < rank; ++r) seen += phi[g * rank + r] * outer_[r * d + j];
        out[g * d + j] = out[g * d + j] * keep + seen * add;
      }
      log_sums[g] = all;
    }
  }
  void report(Counts& counts) const override {
    counts["less_taken_in"] += taken_;
    counts["less_fit_loss_before"] += loss_before_;
    counts["less_fit_loss_after"] += loss_after_;
  }

 private:
  void take_in(std::span<const float> key, std::span<const float> value) {
    row_.assign(key.begin(), key.end());
    const std::vector<double> psi = kernel_.psi(row_);
    for (std::size_t r = 0; r < psi.size(); ++r) {
      sum_[r] += psi[r];
      for (std::size_t j = 0; j < value.size(); ++j) {
        outer_[r * value.size() + j] += psi[r] * static_cast<double>(value[j]);
      }
    }
    ++taken_;
  }

  /// Collects queries near the prompt's end and entries evicted before them, few enough for a short
  /// fit. The target is attention over the kept entries and these entries.
  [[nodiscard]] LowRankTask task(const EntryTable& entries,
                                 std::span<const std::int32_t> losers) const {
    constexpr std::int64_t kMaxQueries = 32;  // per query head
    constexpr std::size_t kMaxKeys = 512;
    const auto d = static_cast<std::size_t>(place_.head_dim);
    LowRankTask task;
    std::vector<std::int32_t> left;
    const std::size_t stride = (losers.size() + kMaxKeys - 1) / kMaxKeys;
    for (std::size_t i = 0; i < losers.size(); i += stride) left.push_back(losers[i]);
    for (const std::int32_t id : left) {
      const auto k = prompt_.key(id);
      const auto v = prompt_.value(id);
      task.keys.insert(task.keys.end(), k.begin(), k.end());
      task.values.insert(task.values.end(), v.begin(), v.end());
    }
    for (std::int64_t t = std::max<std::int64_t>(prompt_.prompt - kMaxQueries, 0);
         t < prompt_.prompt; ++t) {
      for (std::int32_t g = 0; g < prompt_.group; ++g) {
        const auto q = prompt_.query(g, t);
        std::vector<double> kept_out(d, 0.0);
        std::vector<double> all_out(d, 0.0);
        double kept = 0;
        double all = 0;
        double shift = 0;  // the largest logit, to avoid overflow
        const auto logit = [&](std::int32_t id) { return prompt_.scale * dot(q, prompt_.key(id)); };
        bool any = false;
        const auto highest = [&](std::int32_t id) {
          if (id > t) return;
          shift = any ? std::max(shift, logit(id)) : logit(id);
          any = true;
        };
        for (const std::int32_t id : entries.ids()) highest(id);
        if (!any) continue;  // no kept entry is visible
        for (const std::int32_t id : left) highest(id);
        const auto add = [&](std::int32_t id, std::vector<double>& out, double& sum) {
          if (id > t) return;
          const double w = std::exp(logit(id) - shift);
          sum += w;
          const auto v = prompt_.value(id);
          for (std::size_t j = 0; j < d; ++j) out[j] += w * static_cast<double>(v[j]);
        };
        for (const std::int32_t id : entries.ids()) add(id, kept_out, kept);
        all_out = kept_out;
        all = kept;
        for (const std::int32_t id : left) {
          add(id, all_out, all);
          task.visible.push_back(id <= t ? 1.0 : 0.0);
        }
        for (double& x : all_out) x /= all;
        // The kernel's mass has the scale of unshifted exponentials times e^-shift. If all logits
        // are far below 0, the kept entries are scaled down instead.
        constexpr double kMinShift = -300;
        if (shift < kMinShift) {
          const double by = std::exp(shift - kMinShift);
          for (double& x : kept_out) x *= by;
          kept *= by;
          shift = kMinShift;
        }
        task.queries.insert(task.queries.end(), q.begin(), q.end());
        task.kept_out.insert(task.kept_out.end(), kept_out.begin(), kept_out.end());
        task.kept_sum.push_back(kept);
        task.shift.push_back(shift);
        task.target.insert(task.target.end(), all_out.begin(), all_out.end());
      }
    }
    return task;
  }

  Settings settings_;
  SessionPlace place_;
  LowRankKernel kernel_;
  HeadVectors prompt_;
  std::vector<double> outer_;  // H [R, d]
  std::vector<double> sum_;    // z [R]
  std::vector<double> row_;
  double taken_ = 0, loss_before_ = 0, loss_after_ = 0;
};

class LowRankRule final : public MergeRule {
 public:
  explicit LowRankRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Merger> start(const SessionPlace& place) const override {
    return std::make_unique<LowRankMerger>(settings_, place);
  }
  bool merges() const override { return true; }
  bool extends_output() const override { return true; }
  double bias(std::int32_t /*count*/, double /*weight*/) const override { return 0.0; }
  // H and z in fp32, independent of the number of entries. The weights belong to the model, not to
  // a sequence.
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& shape) const override {
    return Bytes{4} * (settings_.rank * (shape.head_dim + 1LL));
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 10; }
  // Two maps of two layers with a product and its activation each; products and sums of both
  // states; the query's product, both denominators, three for the division; four moves of the slot.
  std::int32_t operators() const override { return 22; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double state = 4.0 * settings_.rank * (shape.head_dim + 1.0);
    traffic.side_read += state;
    if (events.left > 0) traffic.side_write += state;
    traffic.move_read += events.left * shape.row_bytes();
    traffic.extra_flops += (shape.group + events.left) * map_flops(shape.head_dim) +
                           (shape.group + events.left) * 2.0 * settings_.rank * shape.head_dim;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    const std::int64_t lost = prompt - settings_.budget;
    if (lost <= 0) return extra;
    const double rows = shape.n_kv_heads * static_cast<double>(lost);
    extra.flops = rows * (map_flops(shape.head_dim) + 2.0 * settings_.rank * shape.head_dim);
    extra.read = rows * 2.0 * shape.head_dim * bits_of(recorded) / 8.0;
    extra.transient = truncated<Bytes>(rows * settings_.hidden * bits_of(recorded) / 8.0);
    extra.launches = 6;
    return extra;
  }
  // The released code maps the keys of the whole cache again and adds evicted entries through a
  // mask (LESS, src/inference/generative/llama_gen.py: key_states_ker, H_update).
  PrefillExtra masked_step(const LayerShape& shape, Dtype recorded,
                           std::int64_t tokens) const override {
    const double rows = shape.n_kv_heads * static_cast<double>(tokens);
    const double element = bits_of(recorded) / 8.0;
    const double hidden = settings_.hidden;
    const double dim = shape.head_dim;
    PrefillExtra extra;
    extra.flops = rows * (map_flops(shape.head_dim) + 2.0 * settings_.rank * dim);
    // Keys; hidden rows before and after their activation; values twice, masked in between.
    extra.read = rows * element * (3 * dim + 2 * hidden);
    extra.written = rows * element * (dim + 2 * hidden);
    extra.transient = truncated<Bytes>(2 * rows * hidden * element);
    extra.launches = 12;
    return extra;
  }

 private:
  [[nodiscard]] double map_flops(std::int32_t head_dim) const {
    return 2.0 * settings_.hidden * (static_cast<double>(head_dim) + settings_.rank);
  }
  Settings settings_;
};

std::shared_ptr<const MergeRule> resolve_low_rank(MethodResolver& resolver) {
  Settings settings{.rank = static_cast<std::int32_t>(resolver.integer("rank")),
                    .hidden = static_cast<std::int32_t>(resolver.integer("hidden")),
                    .fit_steps = static_cast<std::int32_t>(resolver.integer("fit_steps")),
                    .rate = resolver.number("fit_rate"),
                    .budget = resolver.entries(),
                    .weights = nullptr};
  if (const std::string& path = resolver.word("weights"); !path.empty()) {
    for (const char* name : {"rank", "hidden", "fit_steps", "fit_rate"}) {
      if (resolver.given(name)) {
        resolver.refuse(
            fmt::format("weights and {} are both given; the file already sets it", name));
      }
    }
    settings.weights = LowRankWeights::read(path);
    const LowRankShape& shape = settings.weights->shape();
    const LayerShape& site = resolver.site().shape;
    if (shape.head_dim != site.head_dim || settings.weights->n_heads() != site.n_kv_heads ||
        settings.weights->n_layers() != resolver.n_layers()) {
      resolver.refuse(fmt::format(
          "weights are for {} layers, {} heads and head dimension {}; the model has {}, {} and {}",
          settings.weights->n_layers(), settings.weights->n_heads(), shape.head_dim,
          resolver.n_layers(), site.n_kv_heads, site.head_dim));
    }
    settings.rank = shape.rank;
    settings.hidden = shape.hidden;
    resolver.resolve("rank", std::int64_t{shape.rank});
    resolver.resolve("hidden", std::int64_t{shape.hidden});
    resolver.resolve("fit_steps", std::int64_t{0});
  }
  return std::make_shared<LowRankRule>(settings);
}

}  // namespace

AxisChoice merge_low_rank() {
  return {.axis = "merge",
          .name = "low_rank",
          .params = {path_param("weights",
                                "trained feature maps of every layer and head; without them the "
                                "maps are fitted on the prompt",
                                "LESS section 4; the format is ours"),
                     integer_param("rank", "R", 8, 1, 1024, "an integer in [1, 1024]",
                                   "number of features of the state for evicted tokens",
                                   "LESS section 4"),
                     integer_param("hidden", "", 64, 1, 65536, "an integer in [1, 65536]",
                                   "width of the feature maps; 512 in the paper, which trains them "
                                   "beforehand",
                                   "LESS section 4; ours if they are fitted on a prompt"),
                     integer_param("fit_steps", "", 40, 0, 100000, "an integer >= 0",
                                   "Adam steps on the prompt; 0 keeps the initial maps", "ours"),
                     number_param("fit_rate", "", 0.01, 1e-9, 1, "a number in (0, 1]",
                                  "learning rate of these steps", "ours; 0.001 in LESS")},
          .make = &resolve_low_rank};
}

}  // namespace kvsim
