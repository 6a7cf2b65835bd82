#pragma once

// Comparison of the outcomes of two services.

#include <algorithm>
#include <tuple>
#include <vector>

#include "sim/serve/serve_result.hpp"

namespace kvsim::test {

inline auto key(const RequestOutcome& r) {
  return std::tuple{r.arrival,       r.scheduled,     r.first_token, r.finish,  r.prompt_tokens,
                    r.output_tokens, r.cached_tokens, r.preemptions, r.replica, r.status};
}
inline auto key(const TokenSpan& s) {
  return std::tuple{s.request, s.replica, s.first, s.count, s.stride};
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return key(x) == key(y); });
}

inline bool same(const ServeResult& a, const ServeResult& b) {
  return same(a.outcomes, b.outcomes) && same(a.spans, b.spans) &&
         a.iteration_ends == b.iteration_ends;
}

}  // namespace kvsim::test
