#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validation/e2e/plan.hpp"

namespace kvsim {

/// Bytes that a kernel moves beyond what the operator graph counts (below 0: less), and why.
struct NamedDifference {
  std::string what;
  std::int64_t loaded = 0, stored = 0;
};

/// An operator of the loop, all its runs together.
struct CheckedOp {
  std::string name;
  std::int64_t runs = 0;
  std::int64_t loaded = 0, stored = 0;                  // as the simulator counted
  std::int64_t formula_loaded = 0, formula_stored = 0;  // of kernels' formulas
  double graph_read = 0, graph_written = 0;             // of the operator graph; 0: it has no such
  std::vector<NamedDifference> differences;

  /// Counted bytes are the formula's, and the graph's with the named differences.
  [[nodiscard]] bool agrees() const;
};

/// Errors are largest distances, of the largest number expected.
struct LoopCheck {
  std::int64_t steps = 0;
  double projection_error = 0;  // queries, fresh keys and values
  double attention_error = 0;   // its output
  double cache_error = 0;       // keys, values, scores of all entries
  double logits_error = 0;
  double allowed = 0;
  std::int64_t entries_compared = 0;
  std::vector<CheckedOp> ops;
  std::vector<std::string> problems;  // differences, the first of each kind; empty: none

  [[nodiscard]] bool pass() const { return problems.empty(); }
};

/// Runs the loop of `plan` in fp32 on the simulator, and a plain reference on the CPU in double
/// precision: the same random weights and prompt, the prompt's cache as the method's replay
/// (models/methods) leaves it, every step's cache decided by that replay. Compares each layer of
/// each step, and all bytes with the kernels' formulas and the operator graph's. Errors:
/// ContractError if plan.dtype is not fp32; KernelFault if a kernel breaks the simulator's rules.
[[nodiscard]] LoopCheck check_loop(const E2ePlan& plan);

}  // namespace kvsim
