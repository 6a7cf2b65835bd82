#pragma once

// The processes started together by mpirun or srun. They communicate by MPI, which only
// mpi_ranks.cpp uses (join_ranks.hpp); without MPI there is one process.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvsim {

/// The outcome of one task: a text or a failure.
struct TaskOutcome {
  enum Kind : int { kDone, kBadInput, kBrokenPromise, kOther };
  std::size_t task = 0;
  int kind = kDone;
  std::string text{};  // the result, or the message of the exception
};

/// Throws the exception that `outcome` describes: InputError, ContractError or std::runtime_error.
[[noreturn]] void rethrow(const TaskOutcome& outcome);

/// Returns the text of `task`, or a description of the exception that it threw.
[[nodiscard]] TaskOutcome outcome_of(std::size_t task,
                                     const std::function<std::string(std::size_t)>& run);

class Ranks {
 public:
  virtual ~Ranks() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Returns the texts of all processes, by rank, on every process. A collective call.
  [[nodiscard]] virtual std::vector<std::string> all_texts(const std::string& mine) = 0;
  /// Distributes `tasks`: rank 0 hands them out in order, a few at a time but at least `at_least`,
  /// and also runs tasks. `run` runs some of them on any process; `keep` receives outcomes on rank
  /// 0. After the first failure no more tasks are handed out; tasks in progress still complete. An
  /// exception of `keep` is thrown on rank 0 after all others have stopped. A collective call.
  virtual void share(
      std::span<const std::size_t> tasks, std::size_t at_least,
      const std::function<std::vector<TaskOutcome>(std::span<const std::size_t>)>& run,
      const std::function<void(TaskOutcome&&)>& keep) = 0;
};

/// Returns the number of processes started together according to the environment (Open MPI, MPICH,
/// Slurm with PMI or PMIx); 1 if no variable is set.
[[nodiscard]] int processes_started();

}  // namespace kvsim
