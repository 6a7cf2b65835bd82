#pragma once

// Internal to sim/serve: run_serve with parts that tests replace or observe.

#include "sim/serve/engine/serve_hooks.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {

[[nodiscard]] ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options,
                                    const ServeHooks& hooks);

}  // namespace kvsim
