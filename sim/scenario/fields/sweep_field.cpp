#include "sim/scenario/fields/sweep_field.hpp"

#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/fields/key_value.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

AxisRange read_range(const KeyReader& axis) {
  AxisRange range;
  const Field low = axis.at("low");
  const Field high = axis.at("high");
  range.low = read_number(low, "axis", "low");
  range.high = read_number(high, "axis", "high");
  if (!(range.low < range.high)) {
    high.expected(fmt::format("a number above low, which is {}", range.low));
  }
  range.log = axis.name("scale") == "log";
  if (range.log && range.low <= 0) low.expected("a number above 0 for a log scale");
  range.integer = axis.boolean("integer").value_or(false);
  if (range.integer) {
    for (const Field& end : {low, high}) {
      (void)end.integer(-kLargestSeed, kLargestSeed);  // exact as a double
    }
  }
  range.steps = axis.integer("steps");
  if (const auto unit = axis.find("unit")) range.unit = unit->string();
  return range;
}

ScenarioAxis read_axis(const Field& field) {
  const KeyReader keys{field, "axis"};
  ScenarioAxis axis{.pointer = field.at("key").string(), .place = field.place()};
  const auto values = field.find("values");
  const bool ranged = field.has("low") || field.has("high");
  if (values && ranged) field.fail("has both \"values\" and a range; give one of them");
  if (!values && !ranged) field.fail("has neither \"values\" nor \"low\" and \"high\"");
  if (values) {
    for (const char* key : {"scale", "integer", "steps", "unit"}) {
      if (const auto extra = field.find(key))
        extra->fail("applies to a range, and this axis is a list");
    }
    for (const Field& item : values->items()) axis.values.push_back(item.raw());
  } else {
    axis.range = read_range(keys);
  }
  check_axis(axis);
  return axis;
}

}  // namespace

void check_axis(const ScenarioAxis& axis) {
  (void)pointer_tokens(axis.pointer, axis.place);
  if (axis.range) return;
  if (axis.values.empty()) throw InputError{axis.place, "at least one value", "none"};
  if (axis.values.size() > static_cast<std::size_t>(kMaxAxisValues)) {
    throw InputError{axis.place, fmt::format("at most {} values", kMaxAxisValues),
                     fmt::format("{}", axis.values.size())};
  }
  // 1 and 1.0 are equal, and so are "1 GiB" and "1024 MiB".
  std::map<json, json> seen;
  for (const json& value : axis.values) {
    const auto [first, is_new] = seen.try_emplace(canonical_value(value), value);
    if (is_new) continue;
    throw InputError{fmt::format(
        "{}: {} is given twice{}", axis.place, text_of(value),
        first->second == value ? "" : fmt::format("; {} means the same", text_of(first->second)))};
  }
}

SweepSection read_sweep(const Field& sweep) {
  const KeyReader keys{sweep, "sweep"};
  SweepSection section;
  section.random = keys.name("mode") == "random";
  if (const auto samples = sweep.find("samples")) {
    if (!section.random) samples->fail("applies only to \"mode\": \"random\"");
    section.samples = *keys.integer("samples");
  } else if (section.random) {
    sweep.fail("\"samples\" is missing");
  }
  if (const auto seed = keys.integer("seed")) section.seed = static_cast<std::uint64_t>(*seed);
  section.skip_impossible = keys.boolean("skip_impossible").value_or(false);
  if (const auto axes = sweep.find("axes")) {
    std::set<std::string> taken;
    for (const Field& item : axes->items()) {
      section.axes.push_back(read_axis(item));
      const ScenarioAxis& axis = section.axes.back();
      if (!taken.insert(axis.pointer).second) {
        item.at("key").fail(fmt::format("{} is varied twice", axis.pointer));
      }
      if (axis.range && !section.random && !axis.range->steps) {
        item.fail("a range of a grid needs \"steps\"");
      }
      if (axis.range && section.random && axis.range->steps) {
        item.at("steps").fail(
            "applies only to a grid: random samples may be anywhere in the range");
      }
    }
    if (section.axes.size() > kMaxAxes) {
      axes->fail(fmt::format("{} axes, more than {}", section.axes.size(), kMaxAxes));
    }
  }
  return section;
}

}  // namespace kvsim
