#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/quality/quality_saving.hpp"

namespace kvsim {

/// A method as configured by a plan.
struct PlannedMethod {
  std::string method;                    // "full" is lossless
  std::optional<double> kept_entries{};  // fraction; nullopt: the method has no such budget
  std::string model;                     // catalogue name
  double context = 0.0;                  // prompt tokens
};

/// Whether a method keeps its score within a bound under one protocol, and the evidence.
struct QualityVerdict {
  enum class Answer : std::uint8_t { kUnknown, kHolds, kMayHold, kFails };
  Answer answer = Answer::kUnknown;
  std::string protocol;  // empty if there is no evidence
  std::string basis;     // a sentence: rows, models, sources, nearest context
};
[[nodiscard]] std::string_view word_of(QualityVerdict::Answer answer);

/// Returns a verdict per protocol with evidence, or else one verdict without evidence. A budget
/// holds if it is at least that of the largest certain saving, and may hold if it is at least that
/// of the largest possible one: more entries are assumed never to retain a lower score. Models
/// match without the prefix "meta-" and the suffixes "-instruct", "-chat", "-it" or "-hf"; a model
/// without rows is predicted from others.
[[nodiscard]] std::vector<QualityVerdict> judge_quality(std::span<const QualityRow> rows,
                                                        const QualityModel& model,
                                                        const PlannedMethod& planned,
                                                        double max_loss);

}  // namespace kvsim
