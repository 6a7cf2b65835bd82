#include "sim/plan/layout_search.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/plan/layout_bound.hpp"
#include "sim/plan/layout_candidate.hpp"
#include "sim/scenario/points/point_notes.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kRound = 32;  // candidates that are evaluated without results of each other

/// A candidate with its bounds.
struct Bounded {
  std::size_t candidate = 0;
  LayoutBound bound;
  std::int64_t max_copies = 1;
  bool is_possible = false;

  [[nodiscard]] double gpus(std::int64_t copies) const {
    return bound.gpus / bound.copies * static_cast<double>(copies);
  }
};

class CandidateSearch {
 public:
  CandidateSearch(PlanCandidates& all, const PlanOptions& options) : all_{all}, options_{options} {}

  void bound(std::span<const std::size_t> candidates) {
    bounded_.resize(candidates.size());
    run(candidates.size(), [&](std::size_t i) {
      Bounded& one = bounded_[i];
      one.candidate = candidates[i];
      search_candidate(all_.inputs[one.candidate], candidate(one), [&] {
        LayoutCandidate layout{all_.inputs[one.candidate]};
        one.max_copies = layout.max_copies();
        one.bound = layout.bound();
        one.is_possible = true;
        if (!std::isfinite(one.bound.copies)) refuse(one);
      });
    });
    std::erase_if(bounded_, [](const Bounded& one) { return !one.is_possible; });
    const auto promise = [](const Bounded& one) {
      return one.bound.copy_cost * one.bound.copies * one.bound.latency_s;
    };
    std::stable_sort(bounded_.begin(), bounded_.end(),
                     [&](const Bounded& a, const Bounded& b) { return promise(a) < promise(b); });
  }

  void evaluate() {
    std::size_t next = 0;
    while (next < bounded_.size() && !stops()) {
      std::vector<std::size_t> round;
      std::vector<std::int64_t> max;
      for (; next < bounded_.size() && round.size() < kRound; ++next) {
        if (const auto copies = copies_that_may_win(bounded_[next])) {
          round.push_back(next);
          max.push_back(*copies);
        }
      }
      run(round.size(), [&](std::size_t i) {
        const Bounded& one = bounded_[round[i]];
        const auto min = static_cast<std::int64_t>(one.bound.copies);
        search_candidate(all_.inputs[one.candidate], candidate(one), [&] {
          LayoutCandidate{all_.inputs[one.candidate]}.min_gpus(candidate(one), min, max[i]);
        });
      });
      for (std::size_t i = 0; i < round.size(); ++i) {
        const Bounded& one = bounded_[round[i]];
        if (candidate(one).answer) {
          known_.push_back(one.candidate);
        } else if (!candidate(one).impossible) {
          prune(one, max[i] + 1);
        }
      }
    }
    for (; next < bounded_.size(); ++next) {
      candidate(bounded_[next]).pruned = "not searched: interrupted";
    }
  }

 private:
  PlanCandidate& candidate(const Bounded& one) { return all_.result.candidates[one.candidate]; }
  [[nodiscard]] bool stops() const { return options_.stop && options_.stop(); }
  template <class Body>
  void run(std::size_t count, const Body& body) {
    parallel_for(count, options_.threads, body);
  }

  void refuse(Bounded& one) {
    const ServeSpec& spec = *all_.inputs[one.candidate].point->serve;
    candidate(one).impossible =
        Impossible{.constraint = spec.slo.tpot ? "tpot" : "e2e",
                   .text = "even a sequence that decodes alone exceeds the bound",
                   .need = std::nextafter(1.0, 2.0),
                   .knobs = {}};
    one.is_possible = false;
  }

  /// Returns a candidate known to match `one` on `copies` copies; null if there is none.
  const PlanCandidate* better(const Bounded& one, std::int64_t copies) {
    const PlanCandidate& other = candidate(one);
    const auto error = all_.inputs[one.candidate].error;
    const double cost = one.bound.copy_cost * static_cast<double>(copies);
    for (const std::size_t k : known_) {
      const PlanCandidate& known = all_.result.candidates[k];
      const OperatingPoint& point = known.points.back();
      if (known.group != other.group || *known.answer > one.gpus(copies) || point.cost > cost ||
          point.ttft_s > one.bound.ttft_s || point.tpot_s > one.bound.tpot_s ||
          point.latency_s > one.bound.latency_s || point.error.has_value() != error.has_value() ||
          point.error.value_or(0) > error.value_or(0)) {
        continue;
      }
      // If answers are equal, the full cache and the cheaper machine are preferred.
      const bool fewer = *known.answer < one.gpus(copies);
      if (fewer && (point.cost < cost || point.latency_s < one.bound.latency_s)) return &known;
    }
    return nullptr;
  }

  /// Returns the largest number of copies on which no known candidate is better; nullopt if the
  /// candidate is skipped.
  std::optional<std::int64_t> copies_that_may_win(const Bounded& one) {
    const auto min = static_cast<std::int64_t>(one.bound.copies);
    // Its first run determines the reason.
    if (min > one.max_copies) return refuse_by_bound(one, min);
    if (!options_.prune) return one.max_copies;
    if (better(one, min) != nullptr) {
      prune(one, min);
      return std::nullopt;
    }
    std::int64_t good = min, bad = one.max_copies + 1;
    if (better(one, one.max_copies) == nullptr) return one.max_copies;
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (better(one, middle) == nullptr ? good : bad) = middle;
    }
    return good;
  }

  std::optional<std::int64_t> refuse_by_bound(const Bounded& one, std::int64_t min) {
    candidate(one).impossible = Impossible{
        .constraint = "gpus",
        .text = fmt::format("the workload's tokens need at least {:g} GPUs, and the limit is {:g}",
                            one.gpus(min), one.gpus(one.max_copies)),
        .need = static_cast<double>(min) / static_cast<double>(one.max_copies),
        .knobs = {}};
    return std::nullopt;
  }

  void prune(const Bounded& one, std::int64_t copies) {
    const PlanCandidate* known = better(one, copies);
    candidate(one).pruned = fmt::format(
        "at least {:g} GPUs, {:.3g} per million tokens and {:.3g} s; {} is at least as good",
        one.gpus(copies), one.bound.copy_cost * static_cast<double>(copies), one.bound.latency_s,
        known != nullptr ? known->label : "another layout");
  }

  PlanCandidates& all_;
  const PlanOptions& options_;
  std::vector<Bounded> bounded_;
  std::vector<std::size_t> known_;  // candidates with answers
};

}  // namespace

void search_layouts(PlanCandidates& all, std::span<const std::size_t> candidates,
                    const PlanOptions& options) {
  CandidateSearch search{all, options};
  search.bound(candidates);
  search.evaluate();
}

void refine_layouts(PlanCandidates& all, std::span<const std::size_t> candidates,
                    const PlanOptions& options) {
  parallel_for(candidates.size(), options.threads, [&](std::size_t i) {
    PlanCandidate& one = all.result.candidates[candidates[i]];
    const std::int64_t copies = one.replicas;
    one.answer.reset();
    one.points.clear();
    one.notes.clear();
    add_method_notes(one.method.name, *all.inputs[candidates[i]].point->spec.stack, one.notes);
    std::optional<Impossible> reason = std::exchange(one.impossible, {});
    search_candidate(all.inputs[candidates[i]], one,
                     [&] { ServeCandidate{all.inputs[candidates[i]]}.min_gpus(one, copies); });
    // No other layout has points on more than its fewest GPUs.
    if (one.points.size() > 1) one.points.erase(one.points.begin(), one.points.end() - 1);
    if (reason && !one.answer) one.impossible = std::move(reason);  // the reason from the search
  });
}

}  // namespace kvsim
