#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/fields/sweep_field.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Additions of the command line to a scenario's `sweep`.
struct SweepChanges {
  std::vector<ScenarioAxis> vary{};       // replace the file's axis of the same key, or follow all
                                          // others
  std::optional<std::int64_t> samples{};  // makes the sweep random
  std::optional<std::uint64_t> seed{};
  bool skip_impossible = false;
};

/// Parses an axis of the command line: "/batch=1,2,4". Values are separated by commas outside
/// brackets and quotes; each is JSON or a word. Errors: InputError "--vary …".
[[nodiscard]] ScenarioAxis axis_of_text(const std::string& text);

/// Many scenarios from one: the keys that vary and their values at each point.
///
/// A grid is the product of its axes' values, the last axis changing fastest. Keys that are lists
/// in the scenario (sim/scenario/fields/list_keys.hpp) are also axes, before those of `sweep`.
/// Random sample i of an axis is a function of only (seed, the axis's key, i): neither the order or
/// number of axes nor the number of samples changes it. Numbers are drawn to six digits.
class SweepPlan {
 public:
  /// `document`: a result of scenario_document; `file`: its source. Checks the form of every value
  /// of each axis, with the other axes at their first value. Errors: InputError.
  SweepPlan(nlohmann::json document, std::filesystem::path file, const SweepChanges& changes);

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const std::vector<ScenarioAxis>& axes() const { return axes_; }
  [[nodiscard]] bool is_random() const { return random_; }
  [[nodiscard]] bool skips_impossible() const { return skip_impossible_; }
  /// Returns the value of each axis at the point. Errors: ContractError unless point < size().
  [[nodiscard]] std::vector<nlohmann::json> values(std::size_t point) const;
  /// Returns the prefix of the point's error messages; without a path if impossible points are
  /// skipped.
  [[nodiscard]] std::string place(std::size_t point) const;
  /// Returns the point's scenario, before and after reading. It has one point. Errors: InputError,
  /// beginning with its place, if the values are incompatible.
  [[nodiscard]] nlohmann::json document(std::size_t point) const;
  [[nodiscard]] Scenario scenario(std::size_t point) const;

  [[nodiscard]] std::string name() const { return file_.stem().string(); }
  [[nodiscard]] std::string kind() const;
  /// The requested sweep: the keys that do not vary, and `sweep` with every axis. Its hash is the
  /// hash of the sweep.
  [[nodiscard]] const nlohmann::json& echo() const { return echo_; }
  [[nodiscard]] const std::string& hash() const { return hash_; }

 private:
  void take_lists();
  /// Whether an axis sets a value within the only item of the list at `pointer`, which then stays a
  /// list. Errors: InputError if there are several items, which are points, not places.
  [[nodiscard]] bool stays_list(const std::string& pointer, const nlohmann::json& list) const;
  void take_section(const SweepChanges& changes);
  void refuse_too_many();
  void check_values() const;
  [[nodiscard]] nlohmann::json with(const std::vector<nlohmann::json>& values) const;

  std::filesystem::path file_;
  nlohmann::json base_;  // without `sweep` and without the keys of axes
  std::vector<ScenarioAxis> axes_;
  std::vector<std::size_t> order_;  // order in which axes are set: keys before their members
  std::size_t size_ = 0;
  bool random_ = false;
  bool skip_impossible_ = false;
  std::uint64_t seed_ = 0;
  nlohmann::json echo_;
  std::string hash_;
};

}  // namespace kvsim
