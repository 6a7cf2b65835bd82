#include "sim/report/plan/plan_finding.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "sim/report/plan/plan_report.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
std::string limited_by(const PlanCandidate& one) {
  if (one.impossible) return one.impossible->constraint;
  return one.runs_out ? one.runs_out->why.constraint : std::string{};
}

namespace {

/// "the model's 131,072 positions", "memory for the cache".
std::string limit_words(const PlanCandidate& one) {
  const std::string limit = limited_by(one);
  if (limit == "kv_capacity") return "memory for the cache";
  if (limit == "activations") return "memory for the prefill";
  if (limit == "weights") return "memory for the weights";
  if (limit == "positions") return "the positions of the model";
  if (limit == "quality") return "the quality floor";
  if (limit == "overflow") return "the range of 64-bit numbers";
  if (limit == "max_model_len") return "the engine's max_model_len";
  if (limit == "ttft" || limit == "tpot" || limit == "e2e") {
    std::string upper = limit;
    for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
    return limit == "e2e" ? "the bound on E2E" : fmt::format("the bound on {}", upper);
  }
  return limit;
}

std::string amount_words(const PlanGroup& group, double value) {
  return fmt::format("{} {}", plan_amount(group.question, value), plan_unit(group.question, value));
}

}  // namespace

const PlanCandidate* full_cache_of(const PlanResult& plan, const PlanGroup& group,
                                   const PlanCandidate& best) {
  if (best.method.name == "full") return nullptr;
  const bool fewest = group.question == PlanQuestion::kMinGpus;
  const PlanCandidate* out = nullptr;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    if (one.method.name != "full") continue;
    const bool same = one.gpu == best.gpu && one.gpus_each == best.gpus_each;
    if (!fewest && !same) continue;
    const bool better =
        out == nullptr || (one.answer && (!out->answer || *one.answer < *out->answer));
    if (better) out = &one;
  }
  return out;
}

std::string plan_finding(const PlanResult& plan, const PlanGroup& group) {
  std::vector<const PlanCandidate*> full, methods;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    (one.method.name == "full" ? full : methods).push_back(&one);
  }
  if (!group.best) return "No candidate works.";
  const PlanCandidate& best = plan.candidates[*group.best];
  if (full.empty()) {
    return "The full cache is not in this plan, so it does not show the effect of compression.";
  }
  if (best.method.name == "full") {
    const std::string limit = limit_words(best);
    if (methods.empty()) {
      return limit.empty() ? "Only the full cache is planned."
                           : fmt::format("The full cache is limited by {}.", limit);
    }
    const bool all_as_good = std::all_of(methods.begin(), methods.end(), [&](auto* one) {
      return one->answer && *one->answer == *best.answer;
    });
    if (limited_by(best) == "positions") {
      return "Compression changes nothing here: the full cache reaches the positions of the model.";
    }
    if (all_as_good) {
      return fmt::format(
          "Compression changes nothing here: the full cache has the same answer, {}.",
          amount_words(group, *best.answer));
    }
    const bool within_step = std::any_of(methods.begin(), methods.end(), [&](auto* one) {
      return one->answer && *one->answer > *best.answer;
    });
    if (group.question == PlanQuestion::kHighestRate && within_step) {
      return fmt::format(
          "Compression does not help here: no method is more than one rate_step above the full "
          "cache, {}.",
          amount_words(group, *best.answer));
    }
    return fmt::format(
        "Compression does not help here: no method does better than the full cache, {}.",
        amount_words(group, *best.answer));
  }
  const PlanCandidate* same = full_cache_of(plan, group, best);
  const std::string label = method_label(best.method);
  if (same == nullptr || (!same->answer && !same->impossible)) {
    return fmt::format("The full cache was not searched on the GPUs of the best answer, {}.",
                       label);
  }
  if (!same->answer) {
    return fmt::format("Only compression makes this possible: the full cache is limited by {}.",
                       limit_words(*same));
  }
  if (group.question == PlanQuestion::kMinGpus) {
    return fmt::format("{} needs {}; the full cache needs {}.", label,
                       amount_words(group, *best.answer), amount_words(group, *same->answer));
  }
  return fmt::format("{} reaches {:.3g} times the answer of the full cache ({} instead of {}).",
                     label, *best.answer / *same->answer, plan_amount(group.question, *best.answer),
                     amount_words(group, *same->answer));
}

}  // namespace kvsim
