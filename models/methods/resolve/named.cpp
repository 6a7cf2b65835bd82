// Resolves a method's name to the choices of its axes and their declared parameters.

#include "models/methods/resolve/named.hpp"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/methods/params.hpp"
#include "models/methods/resolve/choices.hpp"
#include "models/methods/resolve/own_methods.hpp"
#include "models/methods/resolve/presets.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"

namespace kvsim {
namespace {

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.info.name == name) return &preset;
  }
  return find_own_preset(name);
}

std::vector<std::string> split(std::string_view name) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (true) {
    const std::size_t plus = name.find('+', at);
    parts.emplace_back(name.substr(at, plus == std::string_view::npos ? plus : plus - at));
    if (plus == std::string_view::npos) return parts;
    at = plus + 1;
  }
}

void choose(Parsed& parsed, const std::string& axis, const std::string& choice,
            const std::string& by) {
  if (const auto [at, fresh] = parsed.chosen_by.emplace(axis, by); !fresh) {
    throw InputError{fmt::format("method \"{}\": two choices on the axis {}: \"{}\" and \"{}\"",
                                 parsed.name, axis, at->second, by)};
  }
  parsed.axes[axis] = choice;
}

void choose_axis(Parsed& parsed, const std::string& part, std::size_t equals) {
  const std::string axis = part.substr(0, equals);
  const std::string choice = part.substr(equals + 1);
  std::vector<std::string> known;
  bool axis_known = false;
  for (const AxisChoice& each : axis_choices()) {
    if (each.axis != axis) continue;
    axis_known = true;
    known.emplace_back(each.name);
  }
  if (!axis_known) {
    std::vector<std::string> axes;
    for (const auto& [name, neutral] : neutral_axes()) axes.push_back(name);
    throw InputError{
        fmt::format("method \"{}\": {}", parsed.name, unknown_name("axis", axis, axes))};
  }
  if (std::find(known.begin(), known.end(), choice) == known.end()) {
    throw InputError{fmt::format("method \"{}\": {}", parsed.name,
                                 unknown_name(axis + " choice", choice, known))};
  }
  choose(parsed, axis, choice, part);
}

Parsed parse_name(const std::string& name) {
  Parsed parsed;
  parsed.name = name;
  parsed.axes = neutral_axes();
  for (const std::string& part : split(name)) {
    if (const Preset* preset = find_preset(part)) {
      for (const auto& [axis, choice] : preset->info.axes) {
        // A preset's uniform or first_full budget is a default, not a choice: it applies to
        // selectors without a chosen budget.
        const bool gives_way = axis == "budget" && (choice == "uniform" || choice == "first_full");
        if (gives_way && choice != "uniform") parsed.usual_budget = choice;
        if (choice != neutral_axes().at(axis) && !gives_way) choose(parsed, axis, choice, part);
      }
      parsed.defaults.insert(preset->defaults.begin(), preset->defaults.end());
      parsed.default_budget = std::max(parsed.default_budget, preset->default_budget);
    } else if (const std::size_t equals = part.find('='); equals != std::string::npos) {
      choose_axis(parsed, part, equals);
    } else {
      KnownNames known{.kind = "method", .list_command = "kvsim list methods"};
      for (const Preset& each : presets()) known.names.push_back(each.info.name);
      throw InputError{unknown_entry(known, part)};
    }
  }
  return parsed;
}

const AxisChoice& choice_of(std::string_view axis, std::string_view name) {
  for (const AxisChoice& each : axis_choices()) {
    if (each.axis == axis && each.name == name) return each;
  }
  if (const AxisChoice* own = find_own_choice(name); own != nullptr && own->axis == axis) {
    return *own;
  }
  KVSIM_CHECK(false, "axis {} has no choice {}", axis, name);
  return axis_choices().front();
}

/// Refuses meaningless combinations and states the reason.
void check_legality(Parsed& parsed) {
  const auto refuse = [&](std::string_view reason) {
    throw InputError{fmt::format("method \"{}\": {}", parsed.name, reason)};
  };
  if (parsed.axes["select"] == "all") {
    if (parsed.axes["merge"] != "drop")
      refuse("select=all evicts nothing, so there is nothing to merge");
    if (parsed.axes["budget"] != "none")
      refuse("select=all evicts nothing, so a budget has no meaning");
    return;
  }
  if (parsed.axes["budget"] == "none" && choice_of("select", parsed.axes["select"]).takes_budget) {
    if (parsed.chosen_by.contains("budget")) {
      refuse(fmt::format("select={} drops entries, so it needs a budget", parsed.axes["select"]));
    }
    parsed.axes["budget"] = parsed.usual_budget;
  }
}

std::vector<ParamInfo> declared_params(const Parsed& parsed) {
  std::vector<ParamInfo> declared;
  for (const std::string_view axis : kAxes) {
    const AxisChoice& choice = choice_of(axis, parsed.axes.at(std::string{axis}));
    for (ParamInfo info : choice.params) {
      if (const ParamInfo* other = find_param(declared, info.name)) {  // shared with another axis
        if (!means_the_same(*other, info)) {
          throw InputError{fmt::format(
              "method \"{}\": {}={} has a parameter {} ({}), and another of its choices has a "
              "different one of this name ({}), so a value would be ambiguous",
              parsed.name, choice.axis, choice.name, info.name, info.help, other->help)};
        }
        continue;
      }
      if (const auto found = parsed.defaults.find(info.name); found != parsed.defaults.end()) {
        info.default_value = found->second;
      }
      declared.push_back(std::move(info));
    }
  }
  declared.push_back(*find_param(presets().front().info.params, "granularity"));
  return declared;
}

}  // namespace

const std::map<std::string, std::string>& neutral_axes() {
  static const std::map<std::string, std::string> axes{
      {"select", "all"}, {"budget", "none"},    {"merge", "drop"}, {"share", "none"},
      {"read", "all"},   {"store", "recorded"}, {"tier", "none"},  {"prefill", "full"}};
  return axes;
}

Named::Named(const std::string& name) : parsed{parse_name(name)} {
  check_legality(parsed);
  declared = declared_params(parsed);
  defaults = resolve_params(name, declared, {});
  for (const auto& [axis, choice] : parsed.axes)
    choices.emplace_back(axis, &choice_of(axis, choice));
}

const AxisChoice& Named::chosen(std::string_view axis) const {
  for (const auto& [name, choice] : choices) {
    if (name == axis) return *choice;
  }
  KVSIM_CHECK(false, "no axis {}", axis);
  return *choices.front().second;
}

std::shared_ptr<const Named> named(const std::string& name) {
  constexpr std::size_t kMaxKept = 1024;
  static std::mutex guard;
  static std::map<std::string, std::shared_ptr<const Named>> known;
  const std::lock_guard lock{guard};
  if (const auto found = known.find(name); found != known.end()) return found->second;
  auto fresh = std::make_shared<const Named>(name);
  if (known.size() >= kMaxKept) known.clear();
  known.emplace(name, fresh);
  return fresh;
}

std::string canonical_method(const std::string& name) {
  // By normalised name: presets, axes, and choices as "axis=choice".
  static const std::map<std::string, std::string> spelled = [] {
    std::map<std::string, std::string> out;
    for (const Preset& preset : presets()) {
      out.emplace(squeezed_name(preset.info.name), preset.info.name);
    }
    for (const AxisChoice& choice : axis_choices()) {
      const std::string text = fmt::format("{}={}", choice.axis, choice.name);
      out.emplace(squeezed_name(text), text);
    }
    return out;
  }();
  std::string out;
  for (const std::string& part : split(name)) {
    const auto found = spelled.find(squeezed_name(part));
    out +=
        fmt::format("{}{}", out.empty() ? "" : "+", found == spelled.end() ? part : found->second);
  }
  return name.starts_with('+') ? name : out;
}

MethodInfo describe_method(const std::string& name) {
  if (const Preset* preset = find_preset(name)) return preset->info;
  Parsed parsed = parse_name(name);
  check_legality(parsed);
  MethodInfo info;
  info.name = name;
  info.axes = parsed.axes;
  info.params = declared_params(parsed);
  std::string parts;
  for (const std::string& part : split(name)) {
    parts += fmt::format("{}{}", parts.empty() ? "" : ", ", part);
    const Preset* preset = find_preset(part);
    if (preset == nullptr || preset->info.paper.empty()) continue;
    info.paper += fmt::format("{}{}", info.paper.empty() ? "" : "; ", preset->info.paper);
  }
  info.summary = "composed of " + parts;
  if (const Preset* own = find_own_preset(parsed.axes["select"])) {
    info.size_law = own->info.size_law;
    info.cost_class = own->info.cost_class;
    return info;
  }
  for (const Preset& preset : presets()) {
    const auto& axes = preset.info.axes;
    if (axes.at("select") != parsed.axes["select"] || axes.at("merge") != parsed.axes["merge"]) {
      continue;
    }
    info.size_law = preset.info.size_law;
    info.cost_class = preset.info.cost_class;
    break;
  }
  return info;
}

std::string canonical_text(const MethodSpec& spec) {
  const std::string name = canonical_method(spec.name);
  const std::shared_ptr<const Named> known = named(name);
  std::vector<std::string> parts = split(name);
  std::sort(parts.begin(), parts.end());
  std::string text = fmt::format("{}", fmt::join(parts, "+"));
  if (spec.budget) text += fmt::format(" {} {}", spec.budget->fraction, spec.budget->entries);
  std::map<std::string, std::string> params;
  for (const auto& [word, value] : spec.params) {
    const ParamInfo* info = find_param(known->declared, word);
    params[info != nullptr ? info->name : word] = to_text(value);
  }
  for (const auto& [param, value] : params) text += fmt::format(" {}={}", param, value);
  return text;
}

bool takes_budget(std::string_view name) {
  const Parsed parsed = parse_name(std::string{name});
  return choice_of("select", parsed.axes.at("select")).takes_budget ||
         choice_of("read", parsed.axes.at("read")).takes_budget;
}

}  // namespace kvsim
