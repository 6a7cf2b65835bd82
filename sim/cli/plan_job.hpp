#pragma once

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// `kvsim plan SCENARIO`, and `kvsim run` of a scenario with a `plan`. Returns the exit status:
/// kDoesNotFit if a question has no answer. Errors: InputError.
[[nodiscard]] int run_plan_job(const Arguments& arguments);

}  // namespace kvsim
