#pragma once

// A method's session over synthetic vectors of one head that can be stepped and inspected.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "models/methods/session/session.hpp"
#include "models/units/check.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim::test {

/// Positions that a session holds, ascending.
inline std::vector<std::int32_t> held_by(const CacheSession& session) {
  std::vector<std::int32_t> ids{session.entries().ids().begin(), session.entries().ids().end()};
  std::sort(ids.begin(), ids.end());
  return ids;
}

struct SessionRun {
  /// `layer`: for methods that read more than the head's vectors; outlives this object.
  SessionRun(std::shared_ptr<const Method> resolved, const HeadVectors& vectors,
             const LayerVectors* layer = nullptr)
      : head{vectors},
        method{std::move(resolved)},
        session{as_composed(*method),
                {.layer = 0,
                 .group = vectors.group,
                 .head_dim = vectors.head_dim,
                 .tokens = static_cast<std::int32_t>(vectors.tokens),
                 .scale = vectors.scale},
                {vectors}},
        scores{layer != nullptr ? PromptScores{{vectors}, 0, *layer} : PromptScores{vectors}} {
    session.learn(scores);
    session.prefill(scores, {.entries = *as_composed(*method).parts().budget->entries(0)});
  }
  /// Runs the step at position t, which must be the next one.
  const GroupAttention& step(std::int64_t t) {
    KVSIM_CHECK(t == head.prompt + steps, "step {} is not next", t);
    ++steps;
    session.step();
    return session.attention();
  }
  void to_the_end() {
    for (std::int64_t t = head.prompt; t < head.tokens; ++t) step(t);
  }

  HeadVectors head;
  std::shared_ptr<const Method> method;
  CacheSession session;
  PromptScores scores;
  std::int64_t steps = 0;
};

}  // namespace kvsim::test
