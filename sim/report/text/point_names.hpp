#pragma once

// How points are called in legends, titles and tables: by the keys in which they differ.

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Keys of a point that are not the method's: model, gpu, stack, dtypes, batch, lengths.
[[nodiscard]] const std::vector<std::string>& surrounding_keys();
[[nodiscard]] const std::vector<std::string>& surrounding_keys_but_lengths();

/// Keys whose value is not the same in all `objects` (an absent one counts as a value), in order of
/// first appearance.
[[nodiscard]] std::vector<std::string> differing_keys(
    const std::vector<nlohmann::ordered_json>& objects);

/// "zeromerge budget 18,000": names (method, model, …) bare, numbers with what they are.
[[nodiscard]] std::string label_of(const nlohmann::ordered_json& keys,
                                   const std::vector<std::string>& which);

/// "Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 1, prompt 20,000": all keys.
[[nodiscard]] std::string describe(const nlohmann::ordered_json& keys);

/// A label for each of `points` by what differs among them; no two the same.
[[nodiscard]] std::vector<std::string> labels_within(const Scenario& scenario,
                                                     const std::vector<std::size_t>& points);

/// Points that differ only in the method: a figure, or a block of a table.
struct PointGroup {
  std::string description;  // all they share: "Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 1"
  std::string heading;  // of that, what other groups do not share; empty where there is one group
  std::string suffix;   // for file names, "_fp32-batch-1"; empty where there is one group
  std::vector<std::size_t> points;
  std::vector<std::string> labels;  // of each point, within the group
};
/// The points by their values of `shared_keys`, in order of first appearance.
[[nodiscard]] std::vector<PointGroup> point_groups(const Scenario& scenario,
                                                   const std::vector<std::string>& shared_keys);

/// What all points have in common, described; the scenario's title or name if that is nothing.
[[nodiscard]] std::string common_description(const Scenario& scenario);

}  // namespace kvsim
