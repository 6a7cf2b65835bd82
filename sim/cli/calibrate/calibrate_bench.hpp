#pragma once

namespace kvsim {

class Arguments;

/// `kvsim calibrate --from-bench FILE... SCENARIO`: what a benchmark's results say of a service's
/// times. Errors: InputError.
int calibrate_from_bench(const Arguments& arguments);

}  // namespace kvsim
