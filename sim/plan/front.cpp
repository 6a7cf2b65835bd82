#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/plan/plan_result.hpp"

namespace kvsim {
namespace {

using Objectives = std::array<double, 7>;  // all to be minimised

Objectives objectives_of(const OperatingPoint& point, bool is_service) {
  // A service's output tokens per second also depend on the end of its last request.
  const double throughput = is_service ? point.load : point.tokens_s;
  return {point.cost,      point.ttft_s, point.tpot_s,
          point.latency_s, -throughput,  point.error.value_or(0),
          -point.size};
}

bool beats(const Objectives& x, const Objectives& y) {
  bool better = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > y[i]) return false;
    better = better || x[i] < y[i];
  }
  return better;
}

constexpr std::size_t kMaxLayouts = 10;

}  // namespace

bool is_on_front(const PlanCandidate& one) {
  return std::any_of(one.points.begin(), one.points.end(),
                     [](const OperatingPoint& point) { return point.on_front; });
}

std::vector<std::size_t> listed_candidates(const PlanResult& plan, const PlanGroup& group) {
  const std::string& first = plan.candidates[group.candidates.front()].layout;
  const bool has_layouts =
      std::any_of(group.candidates.begin(), group.candidates.end(),
                  [&](std::size_t c) { return plan.candidates[c].layout != first; });
  if (!has_layouts || group.candidates.size() <= kMaxLayouts) return group.candidates;
  std::vector<std::size_t> out;
  for (const std::size_t c : group.candidates) {
    if (plan.candidates[c].answer) out.push_back(c);
  }
  const auto rank = [&](std::size_t c) {
    const PlanCandidate& one = plan.candidates[c];
    const bool min = group.question == PlanQuestion::kMinGpus;
    return std::tuple{group.best != c, !is_on_front(one), min ? *one.answer : -*one.answer, c};
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  if (out.size() > kMaxLayouts) out.resize(kMaxLayouts);
  return out;
}

bool PlanResult::impossible() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const PlanGroup& group) { return !group.best; });
}

void mark_pareto(PlanResult& result) {
  for (const PlanGroup& group : result.groups) {
    // Without any measured errors, errors do not count; if some are known, only those candidates
    // compete.
    bool known = false;
    for (const std::size_t c : group.candidates) {
      for (const OperatingPoint& point : result.candidates[c].points) {
        known = known || point.error.has_value();
      }
    }
    const bool is_service = is_of_services(group.question);
    std::vector<std::pair<Objectives, OperatingPoint*>> all;
    for (const std::size_t c : group.candidates) {
      for (OperatingPoint& point : result.candidates[c].points) {
        point.on_front = false;
        if (point.error.has_value() == known) {
          all.emplace_back(objectives_of(point, is_service), &point);
        }
      }
    }
    for (const auto& [values, point] : all) {
      point->on_front = std::none_of(all.begin(), all.end(), [&values = values](const auto& other) {
        return beats(other.first, values);
      });
    }
  }
}

}  // namespace kvsim
