// The catalogue: published methods as rows over the axes' choices. A new method that composes
// existing choices is one more row here.

#include "models/methods/presets.hpp"

#include "models/methods/choices.hpp"

namespace kvsim {
namespace {

/// What a row says; axes it does not name are neutral.
struct Row {
  std::string name, summary, paper;
  std::map<std::string, std::string> axes;
  std::string size_law, cost_class;
  Params defaults{};
  double default_budget = 0;
};

Preset preset(Row row) {
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
  const std::string flash = "S0: flash attention untouched";
  const std::string scores = "SF at prefill, SD in decode";
  std::vector<Preset> all{
      preset({.name = "full",
              .summary = "keeps every token; what all others are measured against",
              .paper = "Vaswani et al. 2017",
              .axes = {},
              .size_law = "T",
              .cost_class = flash}),
      preset({.name = "streaming-llm",
              .summary = "first tokens (attention sinks) and a sliding window",
              .paper = "Xiao et al., Efficient Streaming Language Models with Attention Sinks",
              .axes = {{"select", "recent"}, {"budget", "uniform"}},
              .size_law = "min(T, n_sink + window)",
              .cost_class = flash}),
      preset({.name = "h2o",
              .summary = "heavy hitters by accumulated attention, and recent tokens",
              .paper = "Zhang et al., H2O: Heavy-Hitter Oracle",
              .axes = {{"select", "accumulated"}, {"budget", "uniform"}},
              .size_law = "min(T, heavy + recent)",
              .cost_class = scores,
              .defaults = {},
              .default_budget = 0.2}),
      preset({.name = "zeromerge",
              .summary = "decayed heavy hitters; evicted tokens averaged into residual slots (as "
                         "the released code does it)",
              .paper = "Liu et al., ZeroMerge",
              .axes = {{"select", "accumulated"}, {"budget", "uniform"}, {"merge", "residual"}},
              .size_law = "min(T, B)",
              .cost_class = scores,
              .defaults = {{"decay", 0.98},
                           {"recent", 0.1},
                           {"eviction_candidates", std::string{"code"}},
                           {"tail_ring", std::string{"code"}}},
              .default_budget = 0.2}),
      preset({.name = "zeromerge-paper",
              .summary = "ZeroMerge as its algorithm 1 is printed: prompt fed token by token",
              .paper = "Liu et al., ZeroMerge",
              .axes = {{"select", "accumulated"}, {"budget", "uniform"}, {"merge", "residual"}},
              .size_law = "min(T, B)",
              .cost_class = scores,
              .defaults = {{"decay", 0.98},
                           {"recent", 0.1},
                           {"prefill", std::string{"online"}},
                           {"layout", std::string{"indirect"}}},
              .default_budget = 0.2}),
  };
  const ParamInfo granularity =
      word_param("granularity", {"kv_head", "query_head"},
                 "one kept set per KV head, or one per query head with K and V stored for each",
                 "released H2O and SnapKV store per query head");
  for (Preset& row : all) {
    for (const AxisChoice& choice : axis_choices()) {
      if (row.info.axes.at(std::string{choice.axis}) != choice.name) continue;
      for (ParamInfo info : choice.params) {
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
