#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kvsim::hf {

/// A regular expression in Python's syntax over names of modules, without lookbehind and
/// backreferences. It follows the sets of positions that each part reaches: no expression takes
/// more than polynomial time, however its repetitions overlap, and none recurses deeper than its
/// groups.
class NameRegex {
 public:
  /// Errors: std::invalid_argument for what is no such expression, or nests groups more than eight
  /// deep.
  explicit NameRegex(std::string_view pattern);

  /// Whether it matches from the start of `name`, as Python's re.match: what follows is free.
  [[nodiscard]] bool matches_start(std::string_view name) const;

  struct Node;

 private:
  std::shared_ptr<const Node> root_;
  std::string literal_;  // part of every name that matches
};

}  // namespace kvsim::hf
