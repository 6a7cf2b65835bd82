#pragma once

#include <memory>

#include "sim/sweep/ranks.hpp"

namespace kvsim {

// Part of the library kvsim::ranks, separate from kvsim::sweep, so that only the program links MPI.

/// Whether it was built with MPI.
[[nodiscard]] bool built_with_mpi();

/// Joins the processes that were started together: initialises MPI, which ends with the object.
/// Errors: InputError where it was built without MPI.
[[nodiscard]] std::unique_ptr<Ranks> join_ranks();

}  // namespace kvsim
