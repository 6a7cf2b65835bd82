// The catalogue: published methods as rows of axis choices. A new composition of existing choices
// needs only one row in catalogue/.

#include "models/methods/resolve/presets.hpp"

#include <algorithm>

#include "models/methods/params.hpp"
#include "models/methods/resolve/choices.hpp"
#include "models/methods/resolve/named.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

Preset make_preset(PresetRow row) {
  Preset made;
  made.info.name = std::move(row.name);
  made.info.summary = std::move(row.summary);
  made.info.paper = std::move(row.paper);
  made.info.axes = neutral_axes();
  for (auto& [axis, choice] : row.axes) made.info.axes[axis] = std::move(choice);
  made.info.size_law = std::move(row.size_law);
  made.info.cost_class = std::move(row.cost_class);
  made.defaults = std::move(row.defaults);
  made.default_budget = row.default_budget;
  made.available = std::move(row.available);
  return made;
}

/// Returns the row with the parameters of its choices, with the values that it sets.
Preset with_params(Preset row) {
  for (const AxisChoice& choice : axis_choices()) {
    if (row.info.axes.at(std::string{choice.axis}) != choice.name) continue;
    for (ParamInfo info : choice.params) {
      if (find_param(row.info.params, info.name) != nullptr) continue;  // shared by two axes
      if (const auto found = row.defaults.find(info.name); found != row.defaults.end()) {
        info.default_value = found->second;
      }
      row.info.params.push_back(std::move(info));
    }
  }
  row.info.params.push_back(
      word_param("granularity", {"kv_head", "query_head"},
                 "one kept set per KV head, or one per query head with K and V stored for each",
                 "released H2O and SnapKV store per query head"));
  return row;
}

struct Catalogue {
  std::vector<Preset> presets;
  std::vector<MethodInfo> infos;

  Catalogue() {
    for (const auto rows :
         {&basic_presets, &window_presets, &content_presets, &learned_presets, &merging_presets,
          &stored_presets, &tier_presets, &prefill_presets, &reading_presets}) {
      for (PresetRow& row : rows()) add(std::move(row));
    }
  }
  void add(PresetRow row) {
    presets.push_back(with_params(make_preset(std::move(row))));
    infos.push_back(presets.back().info);
  }
};

Catalogue& catalogue() {
  static Catalogue all;
  return all;
}

}  // namespace

const std::vector<Preset>& presets() { return catalogue().presets; }

const std::vector<MethodInfo>& builtin_methods() { return catalogue().infos; }

void register_preset(PresetRow row) {
  for (const Preset& preset : presets()) {
    KVSIM_CHECK(preset.info.name != row.name, "method {} exists already", row.name);
  }
  for (const auto& [axis, name] : row.axes) {
    const auto& choices = axis_choices();
    KVSIM_CHECK(std::any_of(choices.begin(), choices.end(),
                            [&on = axis, &wanted = name](const AxisChoice& each) {
                              return each.axis == on && each.name == wanted;
                            }),
                "axis {} has no choice {}", axis, name);
  }
  catalogue().add(std::move(row));
}

}  // namespace kvsim
