#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "sim/scenario/fields/plan_field.hpp"

namespace kvsim {

/// One budget of a method, on the floor's trace.
struct QualityTry {
  std::optional<Budget> budget;                    // absent: the method has no budget, or a fixed
                                                   // one
  std::optional<double> rel_error, retained_mass;  // means; absent if the method could not be
                                                   // replayed
  bool meets = false;
  std::string why;  // reason, if it could not be replayed
};

/// A method with its parameters, at the requested budgets.
struct MethodQuality {
  std::string name;
  Params params;
  std::vector<QualityTry> tries;      // by budget, ascending
  std::optional<std::size_t> chosen;  // the smallest budget that meets the floor
  bool monotone = true;               // false if some budget fails above one that meets the floor
  std::string reason;                 // why none is chosen
};

struct QualityReport {
  std::string trace;
  std::int64_t prompt_tokens = 0, tokens = 0;
  std::string source;                  // "2.6M-parameter model, 384 + 128 tokens"
  std::optional<double> parameters;    // of the model from which the trace was recorded
  std::vector<MethodQuality> methods;  // in the order of their first occurrence

  /// Returns the method of `spec`; its budget is ignored. Errors: ContractError.
  [[nodiscard]] const MethodQuality& of(const MethodSpec& spec) const;
};

/// Finds the smallest budget of every method among `specs` that meets the floor when its trace is
/// replayed. Methods for which the trace has no data, and budgets in entries, which apply to one
/// prompt length only, are listed with the reason. Errors: InputError if the trace cannot be read.
[[nodiscard]] QualityReport measure_quality(const QualityFloor& floor,
                                            const std::vector<MethodSpec>& specs,
                                            std::uint64_t seed, int threads);

}  // namespace kvsim
