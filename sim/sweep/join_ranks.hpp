#pragma once

#include <memory>

#include "sim/sweep/ranks.hpp"

namespace kvsim {

// Of the library kvsim::ranks, beside kvsim::sweep, so that MPI is linked by the program alone.

/// Whether it was built with MPI.
[[nodiscard]] bool built_with_mpi();

/// Joins the processes that were started together: initialises MPI, which ends with the object.
/// Errors: InputError where it was built without MPI.
[[nodiscard]] std::unique_ptr<Ranks> join_ranks();

}  // namespace kvsim
