// The choices of the explorer's controls.

#include "models/llm/catalogue.hpp"

#include <array>
#include <variant>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/methods/resolve/presets.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units_format.hpp"
#include "sim/explorer/explore.hpp"
#include "sim/report/chart/owner_styles.hpp"
#include "sim/report/text/version.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json param_json(const ParamInfo& param) {
  ordered_json out = {{"name", param.name}, {"symbol", param.symbol}};
  std::visit([&](const auto& value) { out["default"] = value; }, param.default_value);
  out["type"] = std::array{"flag", "integer", "number", "word"}[param.default_value.index()];
  out["low"] = param.low;
  out["high"] = param.high;
  out["words"] = param.words;
  out["range"] = param.range;
  out["help"] = param.help;
  return out;
}

ordered_json methods_json() {
  ordered_json out = ordered_json::array();
  for (const Preset& preset : presets()) {
    const MethodInfo& info = preset.info;
    ordered_json one = {{"name", info.name},
                        {"summary", info.summary},
                        {"paper", info.paper},
                        {"size_law", info.size_law},
                        {"takes_budget", takes_budget(info.name)},
                        {"default_budget", nullptr},
                        {"params", ordered_json::array()}};
    if (preset.default_budget > 0) one["default_budget"] = preset.default_budget;
    for (const ParamInfo& param : info.params) one["params"].push_back(param_json(param));
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json part_json(std::string_view owner, const PartStyle& style) {
  return {{"owner", owner},
          {"label", style.words},
          {"fill", style.fill.colour},
          {"hatch", style.fill.pattern}};
}

}  // namespace

ordered_json explorer_catalogue() {
  ordered_json out = {{"schema", "kvsim.catalogue/1"}, {"version", kvsim_version()}};
  out["models"] = ordered_json::array();
  for (const Llm& llm : builtin_llms()) {
    out["models"].push_back(
        {{"name", llm.name},
         {"text", fmt::format("{:.1f} B parameters, {} layers, published for {} positions",
                              static_cast<double>(parameters(llm)) / 1e9, llm.n_layers(),
                              with_commas(llm.max_positions))},
         {"positions", llm.max_positions},
         {"dtype", name_of(llm.published_dtype)}});
  }
  out["gpus"] = ordered_json::array();
  for (const Gpu& gpu : builtin_gpus()) {
    out["gpus"].push_back({{"name", gpu.name},
                           {"text", fmt::format("{} of HBM, {} usable, {}", gpu.hbm, gpu.hbm_usable,
                                                gpu.hbm_bandwidth)},
                           {"hbm_usable_bytes", gpu.hbm_usable.count()}});
  }
  out["stacks"] = ordered_json::array();
  for (const Stack& stack : builtin_stacks()) {
    out["stacks"].push_back({{"name", stack.name}, {"text", stack.summary}});
  }
  out["methods"] = methods_json();
  out["dtypes"] = ordered_json::array();
  for (const DtypeName& format : kDtypes) out["dtypes"].push_back(format.name);
  out["kv_dtypes"] = out["dtypes"];
  for (const std::string& format : cache_formats()) out["kv_dtypes"].push_back(format);
  for (const WeightFormat& format : builtin_weight_formats()) out["dtypes"].push_back(format.name);
  out["bounds"] = {{"tokens", kMaxPointTokens}, {"batch", kMaxBatch}, {"gpus", kMaxGpus}};
  out["owners"] = ordered_json::array();
  for (const OwnerStyle& style : owner_styles()) {
    out["owners"].push_back(part_json(style.owner, style.style));
  }
  out["owners"].push_back(part_json("other", style_of_owner("other")));
  out["owners"].push_back(part_json("asked_for", style_of_refusal()));
  return out;
}

}  // namespace kvsim
