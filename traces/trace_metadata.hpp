#pragma once

// The metadata of an attention trace: strings that must be numbers, marks and segments.

#include <cstdint>
#include <string>

#include "traces/safetensors.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Values of `__metadata__`. Errors: InputError "PATH: __metadata__.KEY: expected …, got …".
class TraceMetadata {
 public:
  explicit TraceMetadata(const Safetensors& file) : file_{file} {}

  /// Returns nullptr if the key is missing.
  [[nodiscard]] const std::string* find(const std::string& key) const;
  [[nodiscard]] std::string word(const std::string& key) const;
  [[nodiscard]] std::int64_t integer(const std::string& key, std::int64_t low,
                                     std::int64_t high) const;
  /// Returns a number above 0, at most `max`.
  [[nodiscard]] double positive(const std::string& key, double max) const;
  [[nodiscard]] std::string place(const std::string& key) const;
  [[nodiscard]] static std::string quoted(const std::string& text);

 private:
  const Safetensors& file_;
};

/// Reads `separator_ids`, a JSON list of token ids.
void read_separators(const TraceMetadata& meta, TraceInfo& info);

/// Reads marks and segments; `tokens` must be set. `segments` is a JSON list of {"name", "start",
/// "end"}. Without it the marks define context, question and answer; without marks the segments
/// named `question` and `answer` define them. Errors: InputError, also if the two contradict each
/// other.
void read_marks(const TraceMetadata& meta, TraceInfo& info);

}  // namespace kvsim
