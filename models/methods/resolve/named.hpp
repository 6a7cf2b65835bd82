#pragma once

// A parsed method name, before numbers are resolved. Only for make_method.cpp.

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/methods/axis_choice.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// In the order of the catalogue's parameters.
inline constexpr std::array<std::string_view, 8> kAxes{"select", "budget", "merge", "share",
                                                       "read",   "store",  "tier",  "prefill"};
/// The neutral choice of each axis.
[[nodiscard]] const std::map<std::string, std::string>& neutral_axes();

/// A name split into its parts.
struct Parsed {
  std::string name;
  std::map<std::string, std::string> axes;
  std::map<std::string, std::string> chosen_by;  // axis -> the part of the name that chose it
  Params defaults;
  double default_budget = 0;
  std::string usual_budget = "uniform";  // for selectors that need a budget, if none was chosen
};

/// The properties of a name that are the same for every prompt.
struct Named {
  /// Errors: InputError if the name is unknown or the combination is meaningless.
  explicit Named(const std::string& name);
  Named(const Named&) = delete;  // `choices` refers to names in `parsed`
  Named& operator=(const Named&) = delete;

  [[nodiscard]] const AxisChoice& chosen(std::string_view axis) const;

  Parsed parsed;
  std::vector<ParamInfo> declared;
  Params defaults;
  std::vector<std::pair<std::string_view, const AxisChoice*>> choices;  // by axis
};

/// Parses each name only once, because a sweep's thousands of methods share a few names. Errors:
/// InputError, on every call.
[[nodiscard]] std::shared_ptr<const Named> named(const std::string& name);

/// Returns `name` in the catalogue's spelling of presets, axes and choices: "snapkv" for "SnapKV".
/// Case, "_", "-" and blanks are ignored. Unknown parts are left unchanged.
[[nodiscard]] std::string canonical_method(const std::string& name);

}  // namespace kvsim
