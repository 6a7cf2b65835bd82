// The catalogue: published methods as rows over the axes' choices. A new method that composes
// existing choices is one more row here.

#include "models/methods/presets.hpp"

#include "models/methods/choices.hpp"
#include "models/methods/params.hpp"

namespace kvsim {
namespace {

Preset make_preset(PresetRow row) {
  Preset made;
  made.info.name = std::move(row.name);
  made.info.summary = std::move(row.summary);
  made.info.paper = std::move(row.paper);
  made.info.axes = {{"select", "all"}, {"budget", "none"}, {"merge", "drop"},
                    {"share", "none"}, {"read", "all"},    {"store", "recorded"}};
  for (auto& [axis, choice] : row.axes) made.info.axes[axis] = std::move(choice);
  made.info.size_law = std::move(row.size_law);
  made.info.cost_class = std::move(row.cost_class);
  made.defaults = std::move(row.defaults);
  made.default_budget = row.default_budget;
  return made;
}

std::vector<Preset> make_presets() {
  std::vector<Preset> all;
  for (const auto rows : {&basic_presets, &window_presets, &content_presets, &learned_presets,
                          &merging_presets, &stored_presets, &reading_presets}) {
    for (PresetRow& row : rows()) all.push_back(make_preset(std::move(row)));
  }
  const ParamInfo granularity =
      word_param("granularity", {"kv_head", "query_head"},
                 "one kept set per KV head, or one per query head with K and V stored for each",
                 "released H2O and SnapKV store per query head");
  for (Preset& row : all) {
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
    row.info.params.push_back(granularity);
  }
  return all;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = make_presets();
  return table;
}

const std::vector<MethodInfo>& builtin_methods() {
  static const std::vector<MethodInfo> infos = [] {
    std::vector<MethodInfo> all;
    for (const Preset& preset : presets()) all.push_back(preset.info);
    return all;
  }();
  return infos;
}

}  // namespace kvsim
