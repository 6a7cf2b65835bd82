#pragma once

#include <map>
#include <string>
#include <vector>

#include "validation/e2e/check.hpp"

namespace kvsim {

/// Bytes of the loop's steps in the operator graph of the stack kvsim-kernels, by operator, and the
/// named differences of the kernels.
class GraphBytes {
 public:
  explicit GraphBytes(const E2ePlan& plan) : plan_{plan} {}

  /// Adds decode step `step`, counted from 0.
  void add_step(std::int64_t step);
  /// Returns the loop's operators with the graph's bytes for them.
  [[nodiscard]] std::vector<CheckedOp> compare(const std::vector<kernels::LoopOp>& ops);
  /// Operators of the graph that are missing in the loop.
  [[nodiscard]] const std::vector<std::string>& without_kernel() const { return left_; }

 private:
  struct OfOp {
    double read = 0, written = 0;
    std::map<std::string, NamedDifference> differences;
  };
  void add_layer_differences(std::int64_t entries);
  void add_product(const char* name, std::int64_t n, std::int64_t k);
  void differ(const char* op, const char* what, std::int64_t loaded, std::int64_t stored);
  void differ(const char* op, const char* what, const kernels::KernelTraffic& all);

  const E2ePlan& plan_;
  std::map<std::string, OfOp> ops_;
  std::vector<std::string> left_;
};

}  // namespace kvsim
