#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validation/e2e/plan.hpp"

namespace kvsim {

/// Bytes that a kernel moves in addition to the operator graph's count (negative: fewer), and the
/// reason.
struct NamedDifference {
  std::string what;
  std::int64_t loaded = 0, stored = 0;
};

/// An operator of the loop, summed over its runs.
struct CheckedOp {
  std::string name;
  std::int64_t runs = 0;
  std::int64_t loaded = 0, stored = 0;                  // counted by the simulator
  std::int64_t formula_loaded = 0, formula_stored = 0;  // from the kernels' formulas
  double graph_read = 0, graph_written = 0;             // of the operator graph; 0 if not in the
                                                        // graph
  std::vector<NamedDifference> differences;

  /// Whether the counted bytes equal the formula's, and the graph's plus the named differences.
  [[nodiscard]] bool agrees() const;
};

/// Errors are the largest differences relative to the largest expected value.
struct LoopCheck {
  std::int64_t steps = 0;
  double projection_error = 0;  // queries, fresh keys and values
  double attention_error = 0;   // output of attention
  double cache_error = 0;       // keys, values, scores of all entries
  double logits_error = 0;
  double allowed = 0;
  std::int64_t entries_compared = 0;
  std::vector<CheckedOp> ops;
  std::vector<std::string> problems;  // the first difference of each kind; empty if there is none

  [[nodiscard]] bool pass() const { return problems.empty(); }
};

/// Runs the loop of `plan` in fp32 on the simulator, and a plain reference on the CPU in double
/// precision with the same random weights and prompt. The method's replay (models/methods)
/// determines the cache of the prompt and of every step. Compares each layer of each step, and all
/// bytes with the kernels' formulas and the operator graph's. Errors: ContractError if plan.dtype
/// is not fp32; KernelFault if a kernel breaks the simulator's rules.
[[nodiscard]] LoopCheck check_loop(const E2ePlan& plan);

}  // namespace kvsim
