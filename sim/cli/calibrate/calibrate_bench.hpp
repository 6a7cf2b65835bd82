#pragma once

namespace kvsim {

class Arguments;

/// `kvsim calibrate --from-bench FILE... SCENARIO`: calibrates a service's times with a benchmark's
/// results. Errors: InputError.
int calibrate_from_bench(const Arguments& arguments);

}  // namespace kvsim
