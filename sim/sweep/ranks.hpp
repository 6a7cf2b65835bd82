#pragma once

// The processes that mpirun or srun started together. They communicate by MPI, which only
// mpi_ranks.cpp uses (join_ranks.hpp); without MPI there is one process.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvsim {

/// What one task came to: a text, or how it failed.
struct TaskOutcome {
  enum Kind : int { kDone, kBadInput, kBrokenPromise, kOther };
  std::size_t task = 0;
  int kind = kDone;
  std::string text{};  // the result, or the message of the exception
};

/// Throws the exception that `outcome` describes: InputError, ContractError or std::runtime_error.
[[noreturn]] void rethrow(const TaskOutcome& outcome);

/// `text` of `task`, or what it threw.
[[nodiscard]] TaskOutcome outcome_of(std::size_t task,
                                     const std::function<std::string(std::size_t)>& run);

class Ranks {
 public:
  virtual ~Ranks() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Everyone's text, by rank, on every process. All call it together.
  [[nodiscard]] virtual std::vector<std::string> all_texts(const std::string& mine) = 0;
  /// Shares `tasks` out: rank 0 hands them out in order, a few at a time but `at_least` so many,
  /// and works too. `run` does some of them on any process; `keep` gets outcomes on rank 0. After
  /// the first failure no more are handed out; those under way still come in. What `keep` throws is
  /// thrown on rank 0 once all others have stopped. All call it together.
  virtual void share(
      std::span<const std::size_t> tasks, std::size_t at_least,
      const std::function<std::vector<TaskOutcome>(std::span<const std::size_t>)>& run,
      const std::function<void(TaskOutcome&&)>& keep) = 0;
};

/// How many processes were started together, as the environment says (Open MPI, MPICH, Slurm with
/// PMI or PMIx); 1 where none says so.
[[nodiscard]] int processes_started();

}  // namespace kvsim
