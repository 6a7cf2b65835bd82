#include "models/methods/resolve/own_methods.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/resolve/named.hpp"
#include "models/methods/select/scored.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr const char* kNotCounted =
    "time and memory of its scores are not counted (its kernels are not known)";

struct Entry {
  std::shared_ptr<const OwnMethod> method;
  Preset preset;
  AxisChoice choice;  // its name points into `method`
};

struct Registry {
  std::mutex guard;
  std::map<std::string, Entry, std::less<>> entries;  // never erased: references stay valid
};

Registry& registry() {
  static Registry all;
  return all;
}

const Entry* find(std::string_view name) {
  Registry& all = registry();
  const std::scoped_lock lock{all.guard};
  const auto found = all.entries.find(name);
  return found == all.entries.end() ? nullptr : &found->second;
}

std::shared_ptr<const SelectRule> make_own(MethodResolver& resolver) {
  const Entry& entry = *find(resolver.choice("select"));
  resolve_ratio(resolver);
  Params params{{"ratio", resolver.number("ratio")}};
  for (const ParamInfo& info : entry.method->params) {
    const auto& kind = info.default_value;
    if (std::holds_alternative<bool>(kind)) {
      params[info.name] = resolver.flag(info.name);
    } else if (std::holds_alternative<std::int64_t>(kind)) {
      params[info.name] = resolver.integer(info.name);
    } else if (std::holds_alternative<double>(kind)) {
      params[info.name] = resolver.number(info.name);
    } else {
      params[info.name] = resolver.word(info.name);
    }
  }
  return own_rule(entry.method, std::move(params));
}

std::string cost_words(const OwnMethod& method) {
  if (!method.passes) return kNotCounted;
  return fmt::format("only reads of its scores are counted: {} x keys, {} x values, {} x queries",
                     method.passes->keys, method.passes->values, method.passes->queries);
}

Entry make_entry(std::shared_ptr<const OwnMethod> method) {
  const ParamInfo granularity = *find_param(presets().front().info.params, "granularity");
  Entry entry;
  entry.choice = {
      .axis = "select", .name = method->name, .params = {ratio_param()}, .make = &make_own};
  for (const ParamInfo& info : method->params) {
    const bool taken = find_param(entry.choice.params, info.name) != nullptr ||
                       info.name == granularity.name || info.name == "name" ||
                       info.name == "budget" || info.name == "measured_on";
    if (taken) {
      throw InputError{fmt::format(
          "method \"{}\": parameter {}: expected another name, every method already has this one",
          method->name, info.name)};
    }
    entry.choice.params.push_back(info);
  }
  entry.preset.info = {.name = method->name,
                       .summary = fmt::format("{}; {}", method->summary, method->origin),
                       .paper = {},
                       .axes = neutral_axes(),
                       .params = entry.choice.params,
                       .size_law = "int(s (1 - ratio)) + n",
                       .cost_class = cost_words(*method)};
  entry.preset.info.axes["select"] = method->name;
  entry.preset.info.axes["budget"] = "uniform";
  entry.preset.info.params.push_back(granularity);
  entry.method = std::move(method);
  return entry;
}

}  // namespace

void register_own_method(std::shared_ptr<const OwnMethod> method) {
  const std::string& name = method->name;
  if (name.empty() || name.find_first_of("+=, \t\n") != std::string::npos) {
    throw InputError{fmt::format(
        "own method: expected a name without blanks, \"+\", \"=\" or \",\", got \"{}\"", name)};
  }
  const auto& known = presets();
  if (std::any_of(known.begin(), known.end(),
                  [&](const Preset& each) { return each.info.name == name; })) {
    throw InputError{
        fmt::format("own method \"{}\": kvsim already has a method with this name", name)};
  }
  Entry entry = make_entry(std::move(method));
  Registry& all = registry();
  const std::scoped_lock lock{all.guard};
  std::string key = entry.method->name;
  if (!all.entries.emplace(key, std::move(entry)).second) {
    throw InputError{
        fmt::format("own method \"{}\": another file already has a method with this name", key)};
  }
}

const Preset* find_own_preset(std::string_view name) {
  const Entry* entry = find(name);
  return entry == nullptr ? nullptr : &entry->preset;
}

const AxisChoice* find_own_choice(std::string_view name) {
  const Entry* entry = find(name);
  return entry == nullptr ? nullptr : &entry->choice;
}

std::optional<std::string> own_method_note(const std::string& name) {
  for (std::size_t first = 0; first <= name.size();) {
    const std::size_t end = std::min(name.find('+', first), name.size());
    if (const Entry* entry = find(std::string_view{name}.substr(first, end - first))) {
      return fmt::format("{}; {}", cost_words(*entry->method), entry->method->origin);
    }
    first = end + 1;
  }
  return std::nullopt;
}

}  // namespace kvsim
