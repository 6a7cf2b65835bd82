#pragma once

// A method's session over one head's made-up vectors, that can be stepped and looked into.

#include <memory>
#include <utility>

#include "models/methods/session.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim::test {

struct SessionRun {
  SessionRun(std::shared_ptr<const Method> settled, const HeadVectors& vectors)
      : head{vectors},
        method{std::move(settled)},
        session{as_composed(*method),
                {.layer = 0,
                 .group = vectors.group,
                 .head_dim = vectors.head_dim,
                 .tokens = static_cast<std::int32_t>(vectors.tokens),
                 .scale = vectors.scale}},
        scores{vectors} {
    const auto rows = static_cast<std::size_t>(head.prompt * head.head_dim);
    session.prefill(head.keys.first(rows), head.values.first(rows), scores);
  }
  const GroupAttention& step(std::int64_t t) {
    return session.step(queries_at(head, t), row_of(head.keys, t, head.head_dim),
                        row_of(head.values, t, head.head_dim));
  }
  void to_the_end() {
    for (std::int64_t t = head.prompt; t < head.tokens; ++t) step(t);
  }

  HeadVectors head;
  std::shared_ptr<const Method> method;
  HeadSession session;
  RecordedPromptScores scores;
};

}  // namespace kvsim::test
