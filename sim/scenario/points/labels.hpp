#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Numbers repeated names in near-linear time: "a", "a (2)", "a (3)".
class DistinctNames {
 public:
  /// Numbers are written between `before` and `after`.
  explicit DistinctNames(std::string before = " (", std::string after = ")")
      : before_{std::move(before)}, after_{std::move(after)} {}
  /// Returns `name`, numbered from 2 if an earlier call returned it.
  [[nodiscard]] std::string add(const std::string& name);

 private:
  std::string before_, after_;
  std::set<std::string> taken_;
  std::map<std::string, int> last_;  // last number used for a name
};

/// Returns a few of `keys` that distinguish `objects` as well as all keys do. These are model, GPU,
/// stack, dtype and the method's keys (if they differ), then, one by one, the key that
/// distinguishes most objects; the earlier key wins ties. In the order of `keys`. Points that
/// always differ in both format and length need only one of the two.
[[nodiscard]] std::vector<std::string> distinguishing_keys(
    const std::vector<nlohmann::ordered_json>& objects, const std::vector<std::string>& keys);

/// Sets the label of every point: its method if methods differ, and the keys that distinguish it.
/// Labels are unique: equal points are numbered from 2.
void set_labels(std::vector<ScenarioPoint>& points);

}  // namespace kvsim
