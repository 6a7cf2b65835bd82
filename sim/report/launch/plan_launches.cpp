#include <fmt/format.h>

#include "sim/report/launch/launch_report.hpp"
#include "sim/report/plan/plan_report.hpp"

namespace kvsim {

std::vector<NamedLaunch> plan_launches(const Scenario& scenario, const PlanResult& plan) {
  std::vector<NamedLaunch> out;
  for (const PlanGroup& group : plan.groups) {
    if (!group.best) continue;
    const PlanCandidate& best = plan.candidates[*group.best];
    LaunchChoice choice{.method = best.method, .copies = best.replicas, .sequence_tokens = {}};
    if (best.max_model_len > 0) choice.sequence_tokens = best.max_model_len;
    if (best.at_answer) {
      choice.sequence_tokens =
          best.at_answer->sizes.prompt_tokens + best.at_answer->sizes.output_tokens;
    }
    out.push_back({fmt::format("{} of {}, {}", plan_words(group.question), group.of, best.label),
                   scenario.name, launch_of(scenario.points[best.point], choice)});
  }
  return out;
}

}  // namespace kvsim
