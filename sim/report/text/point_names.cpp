#include "sim/report/text/point_names.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/points/labels.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// Keys whose values are clear without the key's name.
constexpr std::array<std::string_view, 5> kBare{"method", "model", "gpu", "stack", "dtype"};

bool is_bare(std::string_view key) {
  return std::find(kBare.begin(), kBare.end(), key) != kBare.end();
}

std::string word_for(std::string_view key) {
  if (key == "prompt_tokens") return "prompt";
  if (key == "output_tokens") return "output";
  if (key == "weight_dtype") return "weights";
  if (key == "kv_dtype") return "cache";
  std::string word = clean_text(key);
  std::replace(word.begin(), word.end(), '_', ' ');
  return word;
}

std::string value_text(const ordered_json& value) {
  if (value.is_string()) return name_text(value.get_ref<const std::string&>());
  if (value.is_number_integer()) return with_commas(value.get<std::int64_t>());
  if (value.is_number()) return csv_number(value.get<double>());
  if (value.is_object() && value.contains("name") && value.at("name").is_string()) {
    return name_text(value.at("name").get_ref<const std::string&>());
  }
  return name_text(value.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

/// "batch 4", "zeromerge", "window 32 sinks 4" of an object of parameters.
std::string key_text(const std::string& key, const ordered_json& value) {
  if (value.is_object() && !value.contains("name")) {
    std::string out;
    for (const auto& item : value.items()) {
      if (!out.empty()) out += ' ';
      out += key_text(item.key(), item.value());
    }
    return out;
  }
  return is_bare(key) ? value_text(value) : word_for(key) + " " + value_text(value);
}

/// Whether the value is the default: one GPU, the shipped calibrations, a cache in the dtype of the
/// weights.
bool says_nothing(const std::string& key, const ordered_json& value, const ordered_json& keys) {
  if (key == "gpu_count" || key == "pipeline_parallel" || key == "replicas") return value == 1;
  if (key == "calibration") return value == "builtin";
  return key == "kv_dtype" && keys.contains("dtype") && value == keys.at("dtype");
}

std::vector<ordered_json> keys_of(const Scenario& scenario,
                                  const std::vector<std::size_t>& points) {
  std::vector<ordered_json> keys;
  keys.reserve(points.size());
  for (const std::size_t i : points) keys.push_back(scenario.points.at(i).keys);
  return keys;
}

}  // namespace

const std::vector<std::string>& surrounding_keys_but_lengths() {
  static const std::vector<std::string> keys{"model",        "gpu",         "gpu_count",
                                             "stack",        "calibration", "dtype",
                                             "weight_dtype", "kv_dtype",    "batch"};
  return keys;
}

const std::vector<std::string>& surrounding_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = surrounding_keys_but_lengths();
    all.insert(all.end(), {"prompt_tokens", "output_tokens"});
    return all;
  }();
  return keys;
}

std::vector<std::string> differing_keys(const std::vector<ordered_json>& objects) {
  std::vector<std::string> order;
  for (const ordered_json& object : objects) {
    for (const auto& item : object.items()) {
      if (std::find(order.begin(), order.end(), item.key()) == order.end()) {
        order.push_back(item.key());
      }
    }
  }
  const auto same_in_all = [&](const std::string& key) {
    const auto value = [&](const ordered_json& o) { return o.contains(key) ? o.at(key) : nullptr; };
    return std::all_of(objects.begin(), objects.end(),
                       [&](const ordered_json& o) { return value(o) == value(objects.front()); });
  };
  std::erase_if(order, same_in_all);
  return order;
}

std::string label_of(const ordered_json& keys, const std::vector<std::string>& which) {
  std::string out;
  for (const std::string& key : which) {
    if (!keys.contains(key) || keys.at(key).is_null()) continue;
    if (says_nothing(key, keys.at(key), keys)) continue;
    const std::string text = key_text(key, keys.at(key));
    if (!text.empty()) out += (out.empty() ? "" : " ") + text;
  }
  return out;
}

std::string describe(const ordered_json& keys) {
  std::string out;
  for (const auto& item : keys.items()) {
    if (item.value().is_null() || says_nothing(item.key(), item.value(), keys)) continue;
    const std::string text = key_text(item.key(), item.value());
    if (text.empty()) continue;
    if (!out.empty()) out += item.key() == "gpu" && keys.contains("model") ? " on " : ", ";
    out += text;
  }
  return out;
}

std::vector<std::string> labels_within(const Scenario& scenario,
                                       const std::vector<std::size_t>& points) {
  const std::vector<ordered_json> keys = keys_of(scenario, points);
  std::vector<std::string> which = distinguishing_keys(keys, differing_keys(keys));
  // The method's name comes first, regardless of the order in the file.
  const auto method = std::find(which.begin(), which.end(), "method");
  if (method != which.end()) std::rotate(which.begin(), method, method + 1);
  std::vector<std::string> labels;
  DistinctNames names;
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::string label = label_of(keys[i], which);
    if (label.empty()) label = label_of(keys[i], {"method"});
    if (label.empty()) label = clean_text(scenario.points[points[i]].label);
    if (label.empty()) label = fmt::format("point {}", points[i]);
    labels.push_back(names.add(label));
  }
  return labels;
}

std::vector<PointGroup> point_groups(const Scenario& scenario,
                                     const std::vector<std::string>& shared_keys) {
  std::vector<ordered_json> identity;
  std::vector<PointGroup> groups;
  std::unordered_map<std::string, std::size_t> group_of;
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    ordered_json mine = ordered_json::object();
    for (const std::string& key : shared_keys) {
      if (scenario.points[i].keys.contains(key)) mine[key] = scenario.points[i].keys.at(key);
    }
    std::string text = mine.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    const auto [at, is_new] = group_of.try_emplace(std::move(text), groups.size());
    if (is_new) {
      identity.push_back(std::move(mine));
      groups.emplace_back();
    }
    groups[at->second].points.push_back(i);
  }
  const std::vector<std::string> differing =
      distinguishing_keys(identity, differing_keys(identity));
  DistinctNames suffixes{"-", ""};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].description = describe(identity[g]);
    groups[g].labels = labels_within(scenario, groups[g].points);
    if (groups.size() == 1) break;
    ordered_json own = ordered_json::object();
    for (const std::string& key : differing) {
      const bool needed =
          identity[g].contains(key) && !says_nothing(key, identity[g].at(key), identity[g]);
      if (needed) own[key] = identity[g].at(key);
    }
    groups[g].heading = describe(own);
    std::string plain = label_of(identity[g], differing);
    std::erase(plain, ',');
    groups[g].suffix = suffixes.add(fmt::format("_{}", slug(plain)));
  }
  return groups;
}

void number_headings(std::vector<PointGroup>& groups) {
  if (groups.size() < 2) return;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].heading = fmt::format("{}: {}", g + 1, groups[g].heading);
  }
}

std::string common_description(const Scenario& scenario) {
  ordered_json common = ordered_json::object();
  if (!scenario.points.empty()) {
    std::vector<ordered_json> all;
    for (const ScenarioPoint& point : scenario.points) all.push_back(point.keys);
    const std::vector<std::string> differing = differing_keys(all);
    for (const std::string& key : surrounding_keys()) {
      const bool shared = std::find(differing.begin(), differing.end(), key) == differing.end();
      if (shared && all.front().contains(key)) common[key] = all.front().at(key);
    }
  }
  std::string text = describe(common);
  if (!text.empty()) return text;
  return clean_text(scenario.title.empty() ? scenario.name : scenario.title);
}

}  // namespace kvsim
