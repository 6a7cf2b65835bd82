#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/quality/quality_saving.hpp"

namespace kvsim {

/// A method as a plan runs it.
struct PlannedMethod {
  std::string method;                    // "full" loses nothing
  std::optional<double> kept_entries{};  // share; nullopt: the method takes no such budget
  std::string model;                     // the catalogue's name
  double context = 0.0;                  // tokens of a prompt
};

/// Whether a method keeps its score within a bound under one protocol, and what says so.
struct QualityVerdict {
  enum class Answer : std::uint8_t { kUnknown, kHolds, kMayHold, kFails };
  Answer answer = Answer::kUnknown;
  std::string protocol;  // empty where nothing is known
  std::string basis;     // a sentence: rows, models, sources, nearest context
};
[[nodiscard]] std::string_view word_of(QualityVerdict::Answer answer);

/// A verdict per protocol with evidence, else one that says that nothing is known. A budget holds
/// if it is at least the one of the largest certain saving, and may hold if at least that of the
/// largest possible one: more entries are taken to keep no less of the score. Models match without
/// "meta-" in front and "-instruct", "-chat", "-it" or "-hf" behind; a model without rows is
/// predicted from others.
[[nodiscard]] std::vector<QualityVerdict> judge_quality(std::span<const QualityRow> rows,
                                                        const QualityModel& model,
                                                        const PlannedMethod& planned,
                                                        double max_loss);

}  // namespace kvsim
