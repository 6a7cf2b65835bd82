// Replaces mpi_ranks.cpp in builds without MPI.

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/sweep/join_ranks.hpp"

namespace kvsim {

bool built_with_mpi() { return false; }

std::unique_ptr<Ranks> join_ranks() {
  throw InputError{fmt::format(
      "sweep: {} processes were started together, and this kvsim was built without MPI, so that "
      "each would do all of it; start one, or build with Boost.MPI (docs/sweeps.md)",
      processes_started())};
}

}  // namespace kvsim
