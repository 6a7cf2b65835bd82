#pragma once

#include <memory>

#include "sim/sweep/ranks.hpp"

namespace kvsim {

// Part of the library kvsim::ranks, separate from kvsim::sweep, so that only the program links MPI.

/// Whether the program was built with MPI.
[[nodiscard]] bool built_with_mpi();

/// Joins the processes that were started together: initialises MPI, which ends with the returned
/// object. Errors: InputError if the program was built without MPI.
[[nodiscard]] std::unique_ptr<Ranks> join_ranks();

}  // namespace kvsim
