#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "sim/scenario/fields/plan_field.hpp"

namespace kvsim {

/// One budget of a method, on the trace of the floor.
struct QualityTry {
  std::optional<Budget> budget;                    // absent: the method takes none, or has its own
  std::optional<double> rel_error, retained_mass;  // means; absent where it could not be replayed
  bool meets = false;
  std::string why;  // where not
};

/// A method with its parameters, at the budgets that it was given.
struct MethodQuality {
  std::string name;
  Params params;
  std::vector<QualityTry> tries;      // by budget, ascending
  std::optional<std::size_t> chosen;  // the least budget that meets the floor
  bool monotone = true;               // false: some budget fails above one that meets the floor
  std::string reason;                 // where none is chosen
};

struct QualityReport {
  std::string trace;
  std::int64_t prompt_tokens = 0, tokens = 0;
  std::string source;                  // "2.6M-parameter model, 384 + 128 tokens"
  std::optional<double> parameters;    // of the model that the trace was recorded from
  std::vector<MethodQuality> methods;  // in the order in which they were first met

  /// The method as `spec` names it; its budget does not matter. Errors: ContractError.
  [[nodiscard]] const MethodQuality& of(const MethodSpec& spec) const;
};

/// The least budget of every method among `specs` whose replay of the floor's trace meets it.
/// Methods that the trace has no data for, or whose budgets are entries and so of one prompt
/// length, are in it with the reason. Errors: InputError if the trace cannot be read.
[[nodiscard]] QualityReport measure_quality(const QualityFloor& floor,
                                            const std::vector<MethodSpec>& specs,
                                            std::uint64_t seed, int threads);

}  // namespace kvsim
