#pragma once

// Every registered scheduler with every option that changes its decisions, and laws that hold for
// each.

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/serve/schedulers/scheduler.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim::test {

/// Settings of a scheduler, with a name for messages.
struct Variant {
  std::string name;
  SchedulerSpec spec;
  bool evicts = true;  // running sequences may be preempted
};

/// One for each scheduler, order, policy, mode of chunks and kind of preemption, without prefix
/// caching; budgets of 256 tokens if prompts come in chunks.
inline std::vector<Variant> variants(std::int64_t max_num_seqs = 12) {
  std::vector<Variant> out;
  const auto has = [](const SchedulerInfo& info, std::string_view option) {
    return std::find(info.options.begin(), info.options.end(), option) != info.options.end();
  };
  for (const SchedulerInfo& info : builtin_schedulers()) {
    std::vector<std::optional<std::string>> policies{std::nullopt};
    if (!info.policies.empty()) policies.assign(info.policies.begin(), info.policies.end());
    for (const QueueOrder order : kQueueOrders) {
      for (const auto& policy : policies) {
        for (const bool chunked : {true, false}) {
          for (const bool swap : {false, true}) {
            if (swap && !has(info, "swap")) continue;
            // The policy orders the queue itself.
            if (order != QueueOrder::kFcfs && policy == "lpm") continue;
            Variant v{
                .name = fmt::format("{}, {}, {}{}{}", info.name, display_name(order),
                                    chunked ? "chunked" : "whole",
                                    policy ? ", " + *policy : std::string{}, swap ? ", swap" : ""),
                .spec = {.name = std::string{info.name},
                         .order = order,
                         .max_num_seqs = max_num_seqs,
                         .chunked_prefill = chunked,
                         .prefix_caching = false,
                         .policy = policy},
                .evicts = policy != "guaranteed-no-evict"};
            if (chunked) v.spec.max_num_batched_tokens = 256;
            if (swap) v.spec.swap = true;
            out.push_back(v);
            if (!chunked || !has(info, "mixed_chunk")) continue;
            v.name += ", mixed";
            v.spec.mixed_chunk = true;
            out.push_back(std::move(v));
          }
        }
      }
    }
  }
  return out;
}

/// Limits every request's output to its declared length.
inline RequestTrace honest(RequestTrace trace) {
  for (Request& r : trace.requests) {
    if (r.declared_tokens > 0) r.declared_tokens = std::max(r.declared_tokens, r.output_tokens);
  }
  return trace;
}

/// Number of tokens that must be computed for the completed requests, each once; the last generated
/// token is not computed.
inline std::int64_t tokens_once(const ServeResult& r) {
  std::int64_t once = 0;
  for (const RequestOutcome& o : r.outcomes) {
    if (o.status == RequestStatus::kCompleted) {
      once += o.prompt_tokens + std::max(o.output_tokens - 1, 0);
    }
  }
  return once;
}

/// The plans of all iterations: "0:40 1:1" for 40 tokens of request 0 and one of request 1.
class PlanObserver : public CheckingObserver {
 public:
  using CheckingObserver::CheckingObserver;
  void planned(const IterationView& v) override {
    CheckingObserver::planned(v);
    std::string text;
    for (const Planned& p : v.plan) {
      if (!text.empty()) text += ' ';
      text += fmt::format("{}:{}", p.id, p.tokens);
    }
    plans.push_back(std::move(text));
  }
  std::vector<std::string> plans;
};

}  // namespace kvsim::test
