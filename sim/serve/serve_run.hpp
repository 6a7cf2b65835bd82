#pragma once

#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

struct ServeOptions {
  std::size_t max_samples = 2048;  // of a replica's timeline
  bool keep_gaps = true;           // iteration ends and token spans
  double time_scale = 1;           // of every iteration's time: what if all were so much slower?
};

/// Serves the whole workload, event by event. Pure: same spec, same result, byte for byte. A
/// request that does not fit, a model that does not, are results. Errors: InputError where the
/// parts do not go together (a scheduler that the stack cannot run, a method whose size nobody
/// knows).
[[nodiscard]] ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options = {});

}  // namespace kvsim
