#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace kvsim {

/// A pattern for the wording of a log line, matched in linear time and constant stack, without
/// backtracking, for any line. The pattern is lower-case text in which
///   N  is a number ("-0.45", "31,232"), which is captured; D the same, not captured;
///   ~  is any number of blanks, E of blanks, "=" and ":";
///   x? is the character x or nothing.
/// It begins with text.
class LogWording {
 public:
  explicit LogWording(std::string_view pattern);

  /// Returns whether `line`, in lower case, contains the wording; `numbers` are the captured texts
  /// of its first occurrence. A number is cut after kLongestNumber characters.
  bool find_in(std::string_view line, std::vector<std::string_view>& numbers) const;

  static constexpr std::size_t kLongestNumber = 40;

 private:
  bool match(std::string_view line, std::vector<std::string_view>& numbers) const;

  std::string_view anchor_;  // the text that the pattern begins with
  std::string_view rest_;
};

}  // namespace kvsim
