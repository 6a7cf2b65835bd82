#include "sim/report/figure/line_names.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "sim/report/text/text.hpp"
#include "sim/scenario/points/labels.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// The method's keys of a point, including parameters, except null values.
ordered_json flat_keys(const ordered_json& keys) {
  const std::vector<std::string>& around = surrounding_keys();
  ordered_json flat = ordered_json::object();
  for (const auto& item : keys.items()) {
    const ordered_json& value = item.value();
    if (value.is_null() || std::find(around.begin(), around.end(), item.key()) != around.end()) {
      continue;
    }
    if (item.key() == "budget" && value.is_number()) {
      flat["budget"] = budget_text(value.get<double>());
    } else if (value.is_object() && !value.contains("name")) {
      for (const auto& part : value.items()) flat[part.key()] = part.value();
    } else {
      flat[item.key()] = value;
    }
  }
  return flat;
}

std::size_t kinds(const std::vector<ordered_json>& objects, const std::vector<std::string>& keys) {
  std::set<std::string> seen;
  for (const ordered_json& object : objects) {
    ordered_json part = ordered_json::object();
    for (const std::string& key : keys) {
      if (object.contains(key)) part[key] = object.at(key);
    }
    seen.insert(part.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
  return seen.size();
}

/// Whether two of `objects` have different values for `key`.
bool differs(const std::vector<ordered_json>& objects, const std::string& key) {
  const ordered_json* first = nullptr;
  for (const ordered_json& object : objects) {
    if (!object.contains(key)) continue;
    if (first != nullptr && *first != object.at(key)) return true;
    first = &object.at(key);
  }
  return false;
}

}  // namespace

std::string budget_text(double budget) {
  if (budget <= 1) return fmt::format("{:g} %", budget * 100);
  return with_commas(std::llround(budget)) + " entries";
}

LineNames line_names(const Scenario& scenario, const std::vector<std::size_t>& points) {
  std::vector<ordered_json> objects;
  std::vector<std::string> keys{"method"};
  for (const std::size_t i : points) {
    objects.push_back(flat_keys(scenario.points.at(i).keys));
    for (const auto& item : objects.back().items()) {
      if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) keys.push_back(item.key());
    }
  }
  std::vector<std::string> distinguishing;
  for (const std::string& key : keys) {
    if (differs(objects, key)) distinguishing.push_back(key);
  }
  // A parameter that only one method has may be the only difference. The method is then named too,
  // because the other would have no name.
  const std::size_t all = kinds(objects, keys);
  const auto distinguishes = [&](const std::string& key) {
    return std::find(distinguishing.begin(), distinguishing.end(), key) != distinguishing.end();
  };
  if (!distinguishes("method") &&
      (distinguishing.empty() || kinds(objects, distinguishing) < all)) {
    distinguishing.insert(distinguishing.begin(), "method");
  }
  for (std::size_t n_kinds = kinds(objects, distinguishing); n_kinds < all;) {
    for (const std::string& key : keys) {
      std::vector<std::string> with = distinguishing;
      with.push_back(key);
      const std::size_t now = kinds(objects, with);
      if (now == n_kinds) continue;
      n_kinds = now;
      distinguishing = std::move(with);
      break;
    }
  }
  LineNames names;
  for (const std::string& key : keys) {
    if (distinguishes(key)) continue;
    const auto one = std::find_if(objects.begin(), objects.end(),
                                  [&](const ordered_json& o) { return o.contains(key); });
    const std::string text = one == objects.end() ? "" : label_of(*one, {key});
    if (!text.empty()) names.shared += (names.shared.empty() ? "" : ", ") + text;
  }
  DistinctNames distinct;
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::string label = label_of(objects[i], distinguishing);
    if (label.empty()) label = label_of(objects[i], {"method"});
    if (label.empty()) label = clean_text(scenario.points[points[i]].label);
    if (label.empty()) label = fmt::format("point {}", points[i]);
    names.labels.push_back(distinct.add(label));
  }
  return names;
}

std::vector<PointGroup> figure_groups(const Scenario& scenario,
                                      const std::vector<std::string>& shared_keys) {
  std::vector<PointGroup> groups = point_groups(scenario, shared_keys);
  for (PointGroup& group : groups) {
    LineNames names = line_names(scenario, group.points);
    group.labels = std::move(names.labels);
    if (names.shared.empty()) continue;
    group.description += (group.description.empty() ? "" : ", ") + names.shared;
    if (!group.heading.empty()) group.heading += ", " + names.shared;
  }
  return groups;
}

}  // namespace kvsim
