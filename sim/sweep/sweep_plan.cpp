#include "sim/sweep/sweep_plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/math/counter_random.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/fingerprint.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/fields/key_value.hpp"
#include "sim/scenario/fields/list_keys.hpp"
#include "sim/scenario/read/read_scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Keys of the file that do not affect a run.
constexpr std::array<std::string_view, 8> kNotVaried{"schema", "title",  "description", "extends",
                                                     "sweep",  "replay", "published",   "figures"};

/// Rounds to six digits, within the range; more digits are of no use to readers.
double rounded(double value, const AxisRange& range) {
  const double near = std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
  return std::clamp(near, range.low, range.high);
}

json number_of(double value, const AxisRange& range) {
  const bool whole = range.integer;
  if (!range.unit.empty()) return fmt::format("{} {}", value, range.unit);
  return whole ? json(static_cast<std::int64_t>(value)) : json(value);
}

/// Returns the value at `share` of the range, from 0 to 1 including both ends.
json step_of(const AxisRange& range, double share) {
  double value = range.low + (range.high - range.low) * share;
  if (range.log) value = range.low * std::exp(std::log(range.high / range.low) * share);
  if (share == 0) value = range.low;
  if (share == 1) value = range.high;
  value = range.integer ? std::round(value) : rounded(value, range);
  return number_of(std::clamp(value, range.low, range.high), range);
}

/// `uniform` in (0, 1). On a linear scale whole numbers are equally likely.
json draw_of(const AxisRange& range, double uniform) {
  const double high = range.integer ? range.high + 1 : range.high;
  double value = range.low + (high - range.low) * uniform;
  if (range.log) value = range.low * std::exp(std::log(high / range.low) * uniform);
  value = range.integer ? std::floor(value) : rounded(value, range);
  return number_of(std::clamp(value, range.low, range.high), range);
}

std::vector<json> grid_values(const ScenarioAxis& axis) {
  if (!axis.range) return axis.values;
  const AxisRange& range = *axis.range;
  const auto last = static_cast<double>(range.steps.value() - 1);
  std::vector<json> out;
  for (std::int64_t i = 0; i < *range.steps; ++i) {
    out.push_back(step_of(range, static_cast<double>(i) / last));
  }
  check_axis({.pointer = axis.pointer, .place = axis.place, .values = out});  // after rounding
  return out;
}

json axis_json(const ScenarioAxis& axis) {
  json out = {{"key", axis.pointer}};
  if (!axis.range) {
    out["values"] = axis.values;
    return out;
  }
  out["low"] = axis.range->low;
  out["high"] = axis.range->high;
  out["scale"] = axis.range->log ? "log" : "linear";
  out["integer"] = axis.range->integer;
  if (!axis.range->unit.empty()) out["unit"] = axis.range->unit;
  return out;
}

std::string first_token(const std::string& pointer) {
  return pointer.substr(1, pointer.find('/', 1) - 1);
}

void refuse_unvaried(const ScenarioAxis& axis) {
  const std::string key = first_token(axis.pointer);
  if (std::find(kNotVaried.begin(), kNotVaried.end(), key) != kNotVaried.end()) {
    throw InputError{fmt::format("{}: /{} cannot be varied", axis.place, key)};
  }
}

/// Rejects two spellings of one value, as a run does in a list: "h100" and "H100-80GB-SXM".
void refuse_other_spellings(const ScenarioAxis& axis, const fs::path& file) {
  const bool can_be_list =
      std::none_of(axis.values.begin(), axis.values.end(),
                   [](const json& value) { return value.is_array() || value.is_null(); });
  std::vector<std::string> keys = pointer_tokens(axis.pointer, axis.place);
  if (keys.front() == "points") keys.erase(keys.begin());
  std::erase_if(keys, [](const std::string& key) {  // the only item of a list
    return key.find_first_not_of("0123456789-") == std::string::npos;
  });
  // A name in place of an object is equivalent.
  const bool is_name = keys.size() == 2 && keys[1] == "name";
  if (is_name && (keys[0] == "method" || keys[0] == "stack")) keys.pop_back();
  const auto lists = list_keys();
  if (!can_be_list || keys.empty() || keys.size() > 2 ||
      std::find(lists.begin(), lists.end(), keys.front()) == lists.end()) {
    return;
  }
  json document;
  if (keys.size() == 1) {
    document[keys[0]] = axis.values;
  } else {
    // Members of `requests` are numbers and paths, which have a single spelling.
    const std::vector<std::string> members = list_members(keys[0]);
    if (keys[0] == "requests" ||
        std::find(members.begin(), members.end(), "/" + keys[1]) == members.end())
      return;
    document[keys[0]][keys[1]] = axis.values;
    if (keys[0] == "method") document["method"]["name"] = "full";  // only its budgets are read
  }
  check_scenario_form(document, file, axis.place);
}

}  // namespace

ScenarioAxis axis_of_text(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || !text.starts_with('/')) {
    throw InputError{"--vary", "/json/pointer=value,value,…", fmt::format("\"{}\"", text)};
  }
  ScenarioAxis axis{.pointer = text.substr(0, equals), .place = "--vary " + text.substr(0, equals)};
  const std::string list = text.substr(equals + 1);
  std::string part;
  int depth = 0;
  bool quoted = false;
  const auto close = [&] {
    const std::size_t first = part.find_first_not_of(" \t");
    if (first == std::string::npos) {
      throw InputError{axis.place, "values separated by single commas",
                       fmt::format("\"{}\"", list)};
    }
    const std::size_t last = part.find_last_not_of(" \t");
    axis.values.push_back(json_or_word(part.substr(first, last + 1 - first), axis.place));
    part.clear();
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (quoted && c == '\\' && i + 1 < list.size()) {
      part += c;
      part += list[++i];
      continue;
    }
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && !quoted && depth <= 0) {
      close();
    } else {
      part += c;
    }
  }
  close();
  check_axis(axis);
  return axis;
}

SweepPlan::SweepPlan(json document, fs::path file, const SweepChanges& changes)
    : file_{std::move(file)}, base_(std::move(document)) {  // braces would make it an array of one
  if (base_.contains("replay") && !base_.at("replay").is_null()) {
    throw InputError{fmt::format(
        "{}: /replay: a sweep runs no trace; `kvsim sweep --trace` varies a replay's parameters",
        file_.lexically_normal().string())};
  }
  take_section(changes);
  take_lists();
  if (axes_.empty()) {
    throw InputError{
        fmt::format("{}: nothing is varied: no key is a list, \"sweep\" has no axes, and there is "
                    "no --vary /key=value,value",
                    file_.lexically_normal().string())};
  }
  if (axes_.size() > kMaxAxes) {
    throw InputError{fmt::format("{}: {} axes, more than {}", file_.lexically_normal().string(),
                                 axes_.size(), kMaxAxes)};
  }
  std::vector<std::size_t> depth;
  for (const ScenarioAxis& axis : axes_) {
    refuse_unvaried(axis);
    depth.push_back(pointer_tokens(axis.pointer, axis.place).size());
    order_.push_back(order_.size());
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return depth[a] < depth[b]; });
  refuse_too_many();
  echo_ = base_;
  json sweep = {{"mode", random_ ? "random" : "grid"}};
  if (random_) {
    sweep["samples"] = size_;
    sweep["seed"] = seed_;
  }
  sweep["skip_impossible"] = skip_impossible_;
  sweep["axes"] = json::array();
  for (const ScenarioAxis& axis : axes_) sweep["axes"].push_back(axis_json(axis));
  echo_["sweep"] = std::move(sweep);
  hash_ = fingerprint(echo_.dump());
  check_values();
}

void SweepPlan::take_section(const SweepChanges& changes) {
  SweepSection section;
  const std::string name = file_.lexically_normal().string();
  if (base_.contains("sweep") && !base_.at("sweep").is_null()) {
    section = read_sweep(Field::wrap(base_, name).at("sweep"));
  }
  base_.erase("sweep");
  base_.erase("plan");  // points are run, so lengths that a plan would find are required
  random_ = section.random || changes.samples;
  size_ = static_cast<std::size_t>(changes.samples.value_or(section.samples));
  skip_impossible_ = section.skip_impossible || changes.skip_impossible;
  std::uint64_t of_scenario = 0;
  if (const auto seed = Field::wrap(base_, name).find("seed")) {
    of_scenario = static_cast<std::uint64_t>(read_integer(*seed, "scenario", "seed"));
  }
  seed_ = changes.seed.value_or(section.seed.value_or(of_scenario));
  axes_ = std::move(section.axes);
  std::set<std::string> given;
  for (const ScenarioAxis& axis : changes.vary) {
    if (!given.insert(axis.pointer).second) {
      throw InputError{fmt::format("{}: the key is varied twice", axis.place)};
    }
    const auto same = std::find_if(axes_.begin(), axes_.end(), [&](const ScenarioAxis& each) {
      return each.pointer == axis.pointer;
    });
    if (same == axes_.end()) {
      axes_.push_back(axis);
    } else {
      *same = axis;
    }
  }
}

bool SweepPlan::stays_list(const std::string& pointer, const json& list) const {
  bool stays = false;
  for (const ScenarioAxis& axis : axes_) {
    if (!axis.pointer.starts_with(pointer + "/")) continue;
    const std::string inside = axis.pointer.substr(pointer.size());
    const std::string index = first_token(inside);
    if (index != "-" && index.find_first_not_of("0123456789") != std::string::npos) continue;
    if (list.size() != 1 || index != "0") {
      const std::string rest = inside.substr(index.size() + 1);
      throw InputError{
          fmt::format("{}: {} is a list of {}, and each makes separate points: vary {}{}{}, or "
                      "write the values into the list",
                      axis.place, pointer, list.size(), pointer, rest,
                      rest.empty() ? "" : ", which sets it in every one")};
    }
    stays = true;
  }
  return stays;
}

void SweepPlan::take_lists() {
  std::vector<ScenarioAxis> lists;
  // Whether an axis sets the whole value at `pointer`.
  const auto varied = [&](const std::string& pointer) {
    return std::any_of(axes_.begin(), axes_.end(), [&](const ScenarioAxis& axis) {
      return (pointer + "/").starts_with(axis.pointer + "/");
    });
  };
  const auto add = [&](const std::string& pointer, std::vector<json> values) {
    lists.push_back({.pointer = pointer,
                     .place = fmt::format("{}: {}", file_.lexically_normal().string(), pointer),
                     .values = std::move(values)});
    check_axis(lists.back());
  };
  for (const std::string_view key : list_keys()) {
    const std::string pointer = fmt::format("/{}", key);
    const auto found = base_.find(key);
    if (found == base_.end()) continue;
    if (varied(pointer)) {
      base_.erase(found);
      continue;
    }
    std::vector<std::string> members = list_members(key);
    std::erase_if(members, [&](const std::string& member) { return varied(pointer + member); });
    if (found->is_array()) {
      if (stays_list(pointer, *found)) continue;
      add(pointer, listed_values(*found, members));
      base_.erase(found);
      continue;
    }
    for (const std::string& member : members) {
      const json::json_pointer at{member};
      if (!found->is_object() || !found->contains(at) || !found->at(at).is_array()) continue;
      const json list = found->at(at);
      if (stays_list(pointer + member, list)) continue;
      add(pointer + member, list.get<std::vector<json>>());
      found->at(at.parent_pointer()).erase(at.back());
    }
  }
  axes_.insert(axes_.begin(), std::make_move_iterator(lists.begin()),
               std::make_move_iterator(lists.end()));
}

void SweepPlan::refuse_too_many() {
  if (random_) return;
  double product = 1;
  for (ScenarioAxis& axis : axes_) {
    axis.values = grid_values(axis);
    axis.range.reset();
    product *= static_cast<double>(axis.values.size());
  }
  if (product > static_cast<double>(kMaxSweepPoints)) {
    throw InputError{fmt::format("{}: the axes make {} points, more than {}",
                                 file_.lexically_normal().string(), product, kMaxSweepPoints)};
  }
  size_ = static_cast<std::size_t>(product);
}

void SweepPlan::check_values() const {
  std::vector<json> first;
  for (const ScenarioAxis& axis : axes_) {
    first.push_back(axis.range ? step_of(*axis.range, 0) : axis.values.front());
  }
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    const ScenarioAxis& axis = axes_[a];
    std::vector<json> at = first;
    const auto check = [&](const json& value) {
      at[a] = value;
      check_scenario_form(with(at), file_,
                          fmt::format("{} (with {} = {})", file_.lexically_normal().string(),
                                      axis.pointer, excerpt(text_of(value))));
    };
    if (axis.range) check(step_of(*axis.range, 1));
    if (axis.range) check(step_of(*axis.range, 0));
    for (const json& value : axis.values) check(value);
    if (!axis.range) refuse_other_spellings(axis, file_);
  }
}

std::vector<json> SweepPlan::values(std::size_t point) const {
  KVSIM_CHECK(point < size_, "point {} of {}", point, size_);
  std::vector<json> out(axes_.size());
  if (!random_) {
    for (std::size_t a = axes_.size(); a-- > 0;) {
      out[a] = axes_[a].values[point % axes_[a].values.size()];
      point /= axes_[a].values.size();
    }
    return out;
  }
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    std::uint64_t name = 0;
    for (const char c : axes_[a].pointer) name = mix64(name ^ static_cast<unsigned char>(c));
    const double uniform = counter_uniform(counter_key({seed_, name}), point);
    if (axes_[a].range) {
      out[a] = draw_of(*axes_[a].range, uniform);
    } else {
      const auto n = axes_[a].values.size();
      const auto i = static_cast<std::size_t>(uniform * static_cast<double>(n));
      out[a] = axes_[a].values[std::min(i, n - 1)];
    }
  }
  return out;
}

json SweepPlan::with(const std::vector<json>& values) const {
  json document = base_;
  for (const std::size_t a : order_) {
    const std::string& pointer = axes_[a].pointer;
    // A method given only by name also takes parameters.
    if (pointer.starts_with("/method/") && document.contains("method") &&
        document["method"].is_string()) {
      document["method"] = json::object({{"name", document["method"]}});
    }
    set_value(document, pointer, values[a], axes_[a].place);
  }
  return document;
}

json SweepPlan::document(std::size_t point) const { return with(values(point)); }

std::string SweepPlan::place(std::size_t point) const {
  return skip_impossible_ ? fmt::format("point {}", point)
                          : fmt::format("{} (point {})", file_.lexically_normal().string(), point);
}

Scenario SweepPlan::scenario(std::size_t point) const {
  const std::string place = this->place(point);
  Scenario scenario = scenario_of(document(point), file_, place, true);
  if (scenario.points.size() != 1) {
    throw InputError{
        fmt::format("{}: is {} runs, but a point of a sweep must be one run: write the values that "
                    "differ as axes of the sweep",
                    place, scenario.points.size())};
  }
  return scenario;
}

std::string SweepPlan::kind() const {
  const auto kind = Field::wrap(base_, file_.lexically_normal().string()).find("kind");
  return kind ? kind->string() : "static";
}

}  // namespace kvsim
