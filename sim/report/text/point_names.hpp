#pragma once

// Names of points in legends, titles and tables: the keys in which they differ.

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Keys of a point except those of the method: model, gpu, stack, dtypes, batch, lengths.
[[nodiscard]] const std::vector<std::string>& surrounding_keys();
[[nodiscard]] const std::vector<std::string>& surrounding_keys_but_lengths();

/// Keys with different values among `objects` (an absent key counts as a value), in order of first
/// appearance.
[[nodiscard]] std::vector<std::string> differing_keys(
    const std::vector<nlohmann::ordered_json>& objects);

/// "zeromerge budget 18,000": names (method, model, …) without their key, numbers with it.
[[nodiscard]] std::string label_of(const nlohmann::ordered_json& keys,
                                   const std::vector<std::string>& which);

/// "Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 1, prompt 20,000": all keys.
[[nodiscard]] std::string describe(const nlohmann::ordered_json& keys);

/// Labels for `points` from the keys in which they differ; all labels are different.
[[nodiscard]] std::vector<std::string> labels_within(const Scenario& scenario,
                                                     const std::vector<std::size_t>& points);

/// Points that differ only in the method: one figure, or one block of a table.
struct PointGroup {
  std::string description;  // shared values: "Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 1"
  std::string heading;      // the part that differs between groups; empty if there is one group
  std::string suffix;       // for file names: "_fp32-batch-1"; empty if there is one group
  std::vector<std::size_t> points;
  std::vector<std::string> labels;  // one per point, distinct within the group
};
/// The points grouped by their values of `shared_keys`, in order of first appearance.
[[nodiscard]] std::vector<PointGroup> point_groups(const Scenario& scenario,
                                                   const std::vector<std::string>& shared_keys);

/// Numbers the headings ("1: fp32, batch 1"), so that other tables can refer to groups by number. A
/// single group gets no number.
void number_headings(std::vector<PointGroup>& groups);

/// A description of the settings that all points share; the scenario's title or name if there are
/// none.
[[nodiscard]] std::string common_description(const Scenario& scenario);

}  // namespace kvsim
