#include "sim/batch/point/resolved_points.hpp"

#include <algorithm>
#include <utility>

#include "models/cost/compiled/compiled.hpp"
#include "models/methods/settle/masked.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

// Limit of sets of decode steps that methods may share: most methods need one or two.
constexpr std::size_t kMostSteps = 16;

}  // namespace

ResolvedPoint* ResolvedPoints::known(std::int64_t prompt) const {
  for (ResolvedPoint* law : serving_many_) {
    if (law->prompts.contains(prompt)) return law;
  }
  const auto known = law_of_prompt_.find(prompt);
  return known != law_of_prompt_.end() ? known->second : nullptr;
}

void ResolvedPoints::clear() {
  law_of_prompt_.clear();
  serving_many_.clear();
  laws_.clear();
}

ResolvedPoint& ResolvedPoints::add(std::int64_t prompt) {
  auto [method, prompts] = settle_(prompt);
  KVSIM_CHECK(method != nullptr, "no method for a prompt of {} tokens", prompt);
  if (base_.stack->masks_evicted) method = masked(std::move(method));
  const auto before = laws_.find(method.get());
  ResolvedPoint* law = before != laws_.end() ? before->second.get() : nullptr;
  if (law == nullptr) {
    auto made = std::make_unique<ResolvedPoint>();  // stored only after every step below succeeded
    made->groups = layer_groups(*base_.llm, *method);
    made->columns = layer_columns(made->groups, method->layers_alike());
    for (const LayerClass& c : made->columns) made->laws = std::max(made->laws, c.law + 1);
    made->method = std::move(method);
    made->prompts = prompts;
    made->steps = steps_of(*made);
    law = made.get();
    laws_[law->method.get()] = std::move(made);
    if (law->serves_many()) serving_many_.push_back(law);
  }
  if (!law->prompts.contains(prompt) || !law->serves_many()) law_of_prompt_[prompt] = law;
  return *law;
}

/// The decode steps of a method settled earlier for another prompt if they would be equal, else new
/// ones.
std::shared_ptr<DecodeSteps> ResolvedPoints::steps_of(const ResolvedPoint& law) {
  auto own = std::make_shared<DecodeSteps>();
  own->method = law.method;
  if (!law.method->plain_rows()) return own;  // these treat each prompt separately
  CostInput in = base_;
  in.method = law.method.get();
  try {
    own->answers = step_signature(in, law.groups);
  } catch (const InputError&) {  // the method refuses that many entries: do not share its steps
    return own;
  }
  for (const std::shared_ptr<DecodeSteps>& known : steps_) {
    if (known->answers == own->answers) return known;
  }
  if (steps_.size() >= kMostSteps) steps_.clear();
  return steps_.emplace_back(std::move(own));
}

}  // namespace kvsim
