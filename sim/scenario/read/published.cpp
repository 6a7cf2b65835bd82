#include "sim/scenario/read/published.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/llm/catalogue.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/fields/key_value.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

constexpr double kMaxPublished = 1e18;

struct Value {
  double number = 0;
  std::string text;
};

Value read_value(const Field& field, const PublishedMetric& metric) {
  const std::string_view unit = metric.unit;
  if (unit == "B") {
    return {static_cast<double>(field.bytes().count()), field.string()};
  }
  if (unit == "s") return {field.duration().count(), field.string()};
  if (unit == "tokens") {
    const std::int64_t tokens = field.integer(1, kMaxPointTokens * 2);
    return {static_cast<double>(tokens), fmt::format("{} tokens", tokens)};
  }
  if (unit.empty()) {
    const bool yes = field.boolean();
    return {yes ? 1.0 : 0.0, yes ? "yes" : "no"};
  }
  const double number = field.number(0, kMaxPublished);
  return {number, fmt::format("{:.6g} {}", number, unit)};
}

const PublishedMetric& read_metric(const Field& field) {
  std::vector<std::string> names;
  for (const PublishedMetric& metric : published_metrics()) names.emplace_back(metric.name);
  return published_metric(field.choice(names));
}

/// Returns the catalogue's spelling of a name, or the name itself if the catalogue does not contain
/// it (a model that the scenario defines).
std::string catalogue_name(std::string_view key, const std::string& name) {
  try {
    if (key == "model") return find_llm(name).name;
    if (key == "gpu") return gpu_of_user(name).gpu->name;
    if (key == "stack") return label_of(find_stack(name));
  } catch (const InputError&) {
    return name;
  }
  return name;
}

bool holds(std::string_view key, const Field& wanted, const nlohmann::ordered_json& value) {
  if (key == "batch" || key == "prompt_tokens" || key == "output_tokens") {
    return read_integer(wanted, "where", key) == value.get<std::int64_t>();
  }
  if (key == "budget") {
    const double number = budget_number(read_budget(wanted, SmallCounts::kAllowed));
    return value.is_number() && value.get<double>() == number;
  }
  if (key == "dtype" || key == "kv_dtype") {
    // The name of a quantization is not an element format.
    if (wanted.is_string() && wanted.string() == value.get<std::string>()) return true;
    return name_of(wanted.dtype()) == value.get<std::string>();
  }
  const std::string name = wanted.string();
  return name == value.get<std::string>() || catalogue_name(key, name) == value.get<std::string>();
}

bool picks(const Field& entry, const ScenarioPoint& point) {
  const auto where = entry.find("where");
  if (!where) return true;
  bool all = true;
  for (const auto& [key, wanted] : where->members()) {
    if (wanted.is_null()) continue;
    // A service has no batch and no length.
    all = all && point.keys.contains(key) && holds(key, wanted, point.keys.at(key));
  }
  return all;
}

}  // namespace

void check_published(const Field& entry) {
  entry.allow_only(scenario_key_names("published"));
  const PublishedMetric& metric = read_metric(entry.at("metric"));
  (void)read_value(entry.at("value"), metric);
  if (entry.at("source").string().empty()) entry.at("source").expected("who published the figure");
  if (const auto note = entry.find("note")) (void)note->string();
  if (const auto where = entry.find("where")) where->allow_only(scenario_key_names("where"));
}

std::optional<PublishedValue> read_published(const Field& entry,
                                             const std::vector<ScenarioPoint>& points) {
  const PublishedMetric& metric = read_metric(entry.at("metric"));
  const Value value = read_value(entry.at("value"), metric);
  PublishedValue published;
  published.metric = metric.name;
  published.value = value.number;
  published.text = value.text;
  published.source = entry.at("source").string();
  if (const auto note = entry.find("note")) published.note = note->string();
  std::vector<std::size_t> picked;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (picks(entry, points[i])) picked.push_back(i);
  }
  if (picked.empty()) return std::nullopt;
  if (picked.size() > 1) {
    const Field place = entry.find("where").value_or(entry);
    place.fail(fmt::format("picks {} points (\"{}\", \"{}\", …): expected keys that pick one",
                           picked.size(), points[picked[0]].label, points[picked[1]].label));
  }
  published.point = picked.front();
  return published;
}

}  // namespace kvsim
