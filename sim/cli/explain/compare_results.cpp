#include "sim/cli/explain/compare_results.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Keys of texts about metrics, which are not compared.
constexpr std::array<std::string_view, 8> kNoFigures{
    "notes", "label", "interval_basis", "memory_basis", "time_basis", "basis", "text", "what"};

/// Adds the numbers, booleans and strings of `value`, with nested names joined by dots; skips
/// lists.
void flatten(const ordered_json& value, const std::string& name, ordered_json& out) {
  if (value.is_array()) return;
  if (!value.is_object()) {
    out[name] = value;
    return;
  }
  for (const auto& [key, inner] : value.items()) {
    if (std::find(kNoFigures.begin(), kNoFigures.end(), key) != kNoFigures.end()) continue;
    flatten(inner, name.empty() ? key : fmt::format("{}.{}", name, key), out);
  }
}

/// Splits `object` into the keys in `names` and the other members, flattened.
ResultItem item_of(const ordered_json& object, const std::set<std::string>& names,
                   ordered_json keys = ordered_json::object()) {
  ResultItem item{std::move(keys), ordered_json::object()};
  ordered_json rest = ordered_json::object();
  for (const auto& [key, value] : object.items()) {
    if (names.contains(key)) {
      item.keys[key] = value;
    } else {
      rest[key] = value;
    }
  }
  flatten(rest, "", item.figures);
  return item;
}

/// Adds the points of a run; the keys before the label are scenario keys.
void add_run(const ordered_json& run, bool named, std::vector<ResultItem>& items) {
  const ordered_json name =
      named ? ordered_json{{"scenario", run.at("scenario").at("name")}} : ordered_json::object();
  for (const ordered_json& point : run.at("points")) {
    std::set<std::string> keys;
    for (const auto& [key, value] : point.items()) {
      if (key == "label") break;
      keys.insert(key);
    }
    items.push_back(item_of(point, keys, name));
  }
}

const std::set<std::string> kMethodKeys{"name", "budget", "params", "trace"};

void add_replay(const ordered_json& replay, std::vector<ResultItem>& items) {
  for (const ordered_json& method : replay.at("methods")) {
    items.push_back(item_of(method, kMethodKeys));
  }
}

std::vector<ResultItem> items_of(const ordered_json& document, const std::string& schema) {
  std::vector<ResultItem> items;
  if (schema == "kvsim.run/1") {
    add_run(document, false, items);
    if (document.contains("replay") && document.at("replay").is_object()) {
      add_replay(document.at("replay"), items);
    }
  } else if (schema == "kvsim.runs/1") {
    for (const ordered_json& run : document.at("runs")) add_run(run, true, items);
  } else if (schema == "kvsim.replay/1") {
    add_replay(document, items);
  } else if (schema == "kvsim.aggregate/1") {
    for (const ordered_json& row : document.at("aggregate")) {
      items.push_back(item_of(row, {"method", "name", "budget", "params"}));
    }
  } else if (schema == "kvsim.sweep/1") {
    for (const ordered_json& point : document.at("points")) {
      items.push_back(item_of(point.at("method"), kMethodKeys, {{"values", point.at("values")}}));
    }
  } else if (schema == "kvsim.scenario-sweep/1") {
    for (const ordered_json& point : document.at("points")) {
      ResultItem item{point.at("values"), ordered_json::object()};
      if (point.contains("results") && point.at("results").is_object()) {
        flatten(point.at("results"), "", item.figures);
      } else {
        item.figures["skipped"] = true;
      }
      items.push_back(std::move(item));
    }
  } else {
    for (const ordered_json& answer : document.at("answers")) {
      for (const ordered_json& one : answer.at("candidates")) {
        items.push_back(item_of(one, {"method", "budget", "method_params", "gpu", "gpu_count"},
                                {{"question", answer.at("question")}, {"of", answer.at("of")}}));
        if (one.at("points").empty()) continue;
        flatten(one.at("points").back(), "run", items.back().figures);
      }
    }
  }
  return items;
}

/// The value of a key that is equal in all items of a result; nullopt if it differs.
std::optional<ordered_json> constant(const ResultItems& result, const std::string& key) {
  std::optional<ordered_json> value;
  for (const ResultItem& item : result.items) {
    const ordered_json here = item.keys.contains(key) ? item.keys.at(key) : ordered_json(nullptr);
    if (value && *value != here) return std::nullopt;
    value = here;
  }
  if (!value) value = ordered_json(nullptr);
  return value;
}

std::string text_of(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Labels of items from `keys`; repeated labels are numbered.
std::vector<std::string> labels_of(const ResultItems& result,
                                   const std::vector<std::string>& keys) {
  std::vector<std::string> labels;
  std::map<std::string, int> seen;
  for (const ResultItem& item : result.items) {
    std::string label;
    for (const std::string& key : keys) {
      if (!item.keys.contains(key) || item.keys.at(key).is_null()) continue;
      const ordered_json& value = item.keys.at(key);
      if ((value.is_object() || value.is_array()) && value.empty()) continue;
      label += fmt::format("{}{}{}", label.empty() ? "" : " ",
                           value.is_string() ? "" : fmt::format("{} ", key), text_of(value));
    }
    if (label.empty()) label = "the point";
    const int times = ++seen[label];
    labels.push_back(times == 1 ? label : fmt::format("{} #{}", label, times));
  }
  return labels;
}

bool same(const ordered_json& a, const ordered_json& b, double tolerance) {
  if (a == b) return true;
  if (!a.is_number() || !b.is_number()) return false;
  const double x = a.get<double>();
  const double y = b.get<double>();
  return std::abs(y - x) <= tolerance * std::max(std::abs(x), std::abs(y));
}

std::vector<FigureChange> changes(const ordered_json& a, const ordered_json& b, double tolerance,
                                  std::size_t& compared) {
  std::vector<FigureChange> out;
  const auto compare = [&](const std::string& name, const ordered_json& x, const ordered_json& y) {
    ++compared;
    if (same(x, y, tolerance)) return;
    FigureChange change{.figure = name, .before = x, .after = y};
    if (x.is_number() && y.is_number()) {
      const double from = x.get<double>();
      change.relative = (y.get<double>() - from) / std::abs(from);
    }
    out.push_back(std::move(change));
  };
  const ordered_json none = nullptr;
  for (const auto& [name, value] : a.items())
    compare(name, value, b.contains(name) ? b[name] : none);
  for (const auto& [name, value] : b.items()) {
    if (!a.contains(name)) compare(name, none, value);
  }
  return out;
}

/// A point that is in both results.
struct Pair {
  std::size_t before = 0, after = 0;  // indices into ResultItems::items
  std::string label{};
};

/// Indices of unpaired items, by their values of `keys`. Values of several items of the result,
/// paired or not, are omitted because they do not identify one point.
std::map<std::string, std::size_t> unique_leftovers(const ResultItems& result,
                                                    const std::vector<std::string>& keys,
                                                    const std::vector<bool>& paired) {
  std::map<std::string, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < result.items.size(); ++i) {
    ordered_json values = ordered_json::array();
    for (const std::string& key : keys) {
      const ordered_json& all = result.items[i].keys;
      values.push_back(all.contains(key) ? all.at(key) : ordered_json(nullptr));
    }
    places[values.dump()].push_back(i);
  }
  std::map<std::string, std::size_t> out;
  for (const auto& [values, items] : places) {
    if (items.size() == 1 && !paired[items.front()]) out[values] = items.front();
  }
  return out;
}

/// "params.budget 165 and 166, split …": the different keys of two paired items, including nested
/// keys.
std::string different_keys(const ResultItem& a, const ResultItem& b,
                           const std::vector<std::string>& keys) {
  ordered_json flat[2] = {ordered_json::object(), ordered_json::object()};
  for (const std::string& key : keys) {
    if (a.keys.contains(key)) flatten(a.keys.at(key), key, flat[0]);
    if (b.keys.contains(key)) flatten(b.keys.at(key), key, flat[1]);
  }
  const auto at = [](const ordered_json& object, const std::string& name) {
    return object.contains(name) ? text_of(object.at(name)) : std::string{"none"};
  };
  std::vector<std::string> out;
  for (int side = 0; side < 2; ++side) {
    for (const auto& [name, value] : flat[side].items()) {
      if (side == 1 && flat[0].contains(name)) continue;
      const std::string x = at(flat[0], name);
      const std::string y = at(flat[1], name);
      if (x != y) out.push_back(fmt::format("{} {} and {}", name, x, y));
    }
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

/// Pairs points by all `keys`. The remaining points are paired without method parameters, then
/// without budget and trace, because the resolved parameters of a replay change with the prompt and
/// the budget. Adds a note on each such difference, and the points without a pair.
std::vector<Pair> pairs_of(const ResultItems& before, const ResultItems& after,
                           const std::vector<std::string>& keys, Comparison& out) {
  const std::vector<std::string> names_before = labels_of(before, keys);
  const std::vector<std::string> names_after = labels_of(after, keys);
  std::vector<bool> paired_before(before.items.size()), paired_after(after.items.size());
  std::vector<Pair> pairs;
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < names_after.size(); ++i) places[names_after[i]] = i;
  const auto add = [&](std::size_t a, std::size_t b, const std::string& label) {
    paired_before[a] = paired_after[b] = true;
    pairs.push_back({a, b, label});
  };
  for (std::size_t i = 0; i < names_before.size(); ++i) {
    const auto found = places.find(names_before[i]);
    if (found != places.end()) add(i, found->second, names_before[i]);
  }
  std::vector<std::string> fewer = keys;
  std::map<std::string, std::vector<std::string>> notes;  // points, by difference
  std::vector<std::string> order;
  for (const std::set<std::string>& dropped : {std::set<std::string>{"params", "method_params"},
                                               std::set<std::string>{"budget", "trace"}}) {
    if (std::erase_if(fewer, [&](const auto& key) { return dropped.contains(key); }) == 0) continue;
    const std::vector<std::string> labels = labels_of(before, fewer);
    const auto left_after = unique_leftovers(after, fewer, paired_after);
    for (const auto& [values, i] : unique_leftovers(before, fewer, paired_before)) {
      const auto found = left_after.find(values);
      if (found == left_after.end()) continue;
      const std::string text = different_keys(before.items[i], after.items[found->second], keys);
      if (!notes.contains(text)) order.push_back(text);
      notes[text].push_back(labels[i]);
      add(i, found->second, labels[i]);
    }
  }
  for (const std::string& text : order) {
    out.notes.push_back(fmt::format("{}: {}", fmt::join(notes.at(text), ", "), text));
  }
  for (std::size_t i = 0; i < names_before.size(); ++i) {
    if (!paired_before[i]) out.only_before.push_back(names_before[i]);
  }
  for (std::size_t i = 0; i < names_after.size(); ++i) {
    if (!paired_after[i]) out.only_after.push_back(names_after[i]);
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const Pair& a, const Pair& b) { return a.before < b.before; });
  return pairs;
}

}  // namespace

fs::path result_document(const fs::path& path) {
  std::error_code status;
  if (!fs::is_directory(path, status)) return path;
  for (const char* name : {"result.json", "plan.json", "sweep.json"}) {
    if (fs::exists(path / name, status)) return path / name;
  }
  throw InputError{
      fmt::format("{}: not a results folder: it contains no result.json, plan.json or sweep.json",
                  path.string())};
}

ResultItems read_result_items(const fs::path& path) {
  const fs::path file = result_document(path);
  constexpr std::size_t kLargest = 64U << 20U;
  const std::string text = read_text_file(file, kLargest);
  const Field root = Field::parse(text, file.string());  // reports line and column of an error
  const Field schema = root.at("schema");
  constexpr std::array<std::string_view, 7> kKnown{
      "kvsim.run/1",   "kvsim.runs/1",           "kvsim.replay/1", "kvsim.aggregate/1",
      "kvsim.sweep/1", "kvsim.scenario-sweep/1", "kvsim.plan/1"};
  ResultItems out{.place = file.string(), .schema = schema.string()};
  if (std::find(kKnown.begin(), kKnown.end(), out.schema) == kKnown.end()) {
    schema.expected(fmt::format("a result that can be compared: {}", fmt::join(kKnown, ", ")));
  }
  const ordered_json document = ordered_json::parse(text);  // again, for the order of keys
  try {
    if (const auto kvsim = root.find("kvsim")) out.version = kvsim->at("version").string();
    if (const auto used = root.find("calibration"); used && used->is_object()) {
      if (const auto name = used->find("name"); name && name->is_string()) {
        out.calibration = name->string();
      }
    }
    if (const auto scenario = root.find("scenario"); scenario && scenario->is_object()) {
      if (const auto hash = scenario->find("hash")) out.scenario = hash->string();
    }
    out.items = items_of(document, out.schema);
  } catch (const ordered_json::exception&) {
    throw InputError{fmt::format(
        "{}: expected a complete {} as kvsim writes it, got one with missing or changed keys",
        out.place, out.schema)};
  }
  return out;
}

Comparison compare_results(const ResultItems& before, const ResultItems& after, double tolerance) {
  if (before.schema != after.schema) {
    throw InputError{
        fmt::format("{} is {} and {} is {}: only results of the same kind can be compared",
                    before.place, before.schema, after.place, after.schema)};
  }
  Comparison out{.before = before.place, .after = after.place};
  const auto note = [&](std::string_view what, const std::string& a, const std::string& b) {
    if (a != b) {
      out.notes.push_back(
          fmt::format("{}: {} and {}", what, a.empty() ? "none" : a, b.empty() ? "none" : b));
    }
  };
  note("kvsim versions differ", before.version, after.version);
  note("calibrations differ", before.calibration, after.calibration);
  // Keys of labels in order of first appearance, except keys with a single value in each result.
  std::vector<std::string> keys;
  for (const ResultItems* result : {&before, &after}) {
    for (const ResultItem& item : result->items) {
      for (const auto& [key, value] : item.keys.items()) {
        if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
      }
    }
  }
  std::erase_if(keys, [&](const std::string& key) {
    const auto a = constant(before, key);
    const auto b = constant(after, key);
    if (!a || !b) return false;
    note(key, text_of(*a), text_of(*b));
    return true;
  });
  for (const Pair& pair : pairs_of(before, after, keys, out)) {
    ++out.points;
    const ResultItem& a = before.items[pair.before];
    const ResultItem& b = after.items[pair.after];
    auto moved = changes(a.figures, b.figures, tolerance, out.figures);
    if (!moved.empty()) out.changed.push_back({pair.label, std::move(moved)});
  }
  return out;
}

}  // namespace kvsim
