#include "sim/sweep/ranks.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {

void rethrow(const TaskOutcome& outcome) {
  if (outcome.kind == TaskOutcome::kBadInput) throw InputError{outcome.text};
  if (outcome.kind == TaskOutcome::kBrokenPromise) throw ContractError{outcome.text};
  throw std::runtime_error{outcome.text};
}

TaskOutcome outcome_of(std::size_t task, const std::function<std::string(std::size_t)>& run) {
  try {
    return {task, TaskOutcome::kDone, run(task)};
  } catch (const InputError& error) {
    return {task, TaskOutcome::kBadInput, error.what()};
  } catch (const ContractError& error) {
    return {task, TaskOutcome::kBrokenPromise, error.what()};
  } catch (const std::exception& error) {
    return {task, TaskOutcome::kOther, error.what()};
  }
}

int processes_started() {
  // Slurm's count is not used: batch scripts also have it, and are a single process.
  constexpr std::array kNames{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
  for (const char* name : kNames) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    int value = 0;
    const char* end = text + std::strlen(text);
    if (std::from_chars(text, end, value).ptr == end && value > 0) return value;
  }
  // A step of srun with PMIx, which provides the rank but not the number of processes.
  const char* pmix = std::getenv("PMIX_RANK");
  const char* steps = std::getenv("SLURM_STEP_NUM_TASKS");
  if (pmix != nullptr && steps != nullptr) {
    int value = 0;
    const char* end = steps + std::strlen(steps);
    if (std::from_chars(steps, end, value).ptr == end && value > 0) return value;
  }
  return 1;
}

}  // namespace kvsim
