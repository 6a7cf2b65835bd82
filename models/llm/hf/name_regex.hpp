#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kvsim::hf {

/// A regular expression in Python's syntax over module names, without lookbehind and
/// backreferences. Matching tracks the set of positions that each part reaches: it takes polynomial
/// time at most, regardless of overlapping repetitions, and recurses at most to the depth of the
/// groups.
class NameRegex {
 public:
  /// Throws std::invalid_argument if the expression is malformed or unsupported, or nests groups
  /// more than eight deep.
  explicit NameRegex(std::string_view pattern);

  /// Whether it matches at the start of `name`, like Python's re.match: any text may follow.
  [[nodiscard]] bool matches_start(std::string_view name) const;

  struct Node;

 private:
  std::shared_ptr<const Node> root_;
  std::string literal_;  // a substring of every matching name
};

}  // namespace kvsim::hf
