#include "sim/batch/point/method_by_prompt.hpp"

#include <algorithm>
#include <utility>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/error.hpp"

namespace kvsim {
MethodContext method_site(const Llm& llm, Dtype kv_dtype) {
  // The attention of the first layer whose cache a method can compress.
  const auto found = std::find_if(llm.layers.begin(), llm.layers.end(), caches_rows);
  const AttentionSpec attention = found != llm.layers.end() ? found->attention : AttentionSpec{};
  MethodContext site{.recorded = kv_dtype,
                     .shape = {attention.n_heads, attention.n_kv_heads, attention.head_dim},
                     .windows = {},
                     .n_layers = 0,
                     .d_model = llm.d_model};
  for (const LayerSpec& layer : llm.layers) {
    const bool has_rows = caches_rows(layer);
    site.ordinals.push_back(has_rows ? site.n_layers++ : -1);
    if (has_rows) site.windows.push_back(entry_limit(layer.attention));
  }
  if (site.n_layers == llm.n_layers()) site.ordinals.clear();
  return site;
}

MethodByPrompt::MethodByPrompt(MethodSpec method, const Llm& llm, Dtype kv_dtype,
                               std::shared_ptr<const MeasuredLaw> law)
    : method_{std::move(method)}, site_{method_site(llm, kv_dtype)}, law_{std::move(law)} {}

std::shared_ptr<const Method> MethodByPrompt::at(std::int64_t prompt) const {
  try {
    auto method = make_method(method_, prompt, site_);
    if (law_) method = with_measured_law(std::move(method), *law_, site_.n_layers);
    return method;
  } catch (const InputError&) {
    return make_method({"full", {}, {}}, prompt, site_);
  }
}

bool MethodByPrompt::resolves(std::int64_t prompt) const {
  try {
    (void)make_method(method_, prompt, site_);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace kvsim
