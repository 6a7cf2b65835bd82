#include "validation/e2e/plan.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

using kernels::LoopMethod;

struct Known {
  std::string word;
  LoopMethod method;
  Params params;
};

const std::vector<Known>& known() {
  static const std::vector<Known> all{
      {"full", LoopMethod::kFull, {}},
      {"streaming-llm", LoopMethod::kStreaming, {}},
      {"h2o", LoopMethod::kHeavy, {}},
      // The new entry takes the slot freed by the merge; the ring of the released code moves one
      // more entry.
      {"zeromerge", LoopMethod::kResidual, {{"layout", std::string{"indirect"}}}}};
  return all;
}

double number(const Method& method, const char* name) {
  const ParamValue& value = method.params().at(name);
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return std::get<double>(value);
}
std::int64_t count(const Method& method, const char* name) {
  return static_cast<std::int64_t>(number(method, name));
}

}  // namespace

const std::vector<std::string>& e2e_methods() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> all;
    for (const Known& one : known()) all.push_back(one.word);
    return all;
  }();
  return words;
}

E2ePlan plan_e2e(Llm llm, Dtype dtype, const E2eRequest& request) {
  const auto found = std::find_if(known().begin(), known().end(),
                                  [&](const Known& one) { return one.word == request.method; });
  if (found == known().end()) {
    throw InputError{"--method", fmt::format("one of {}", fmt::join(e2e_methods(), ", ")),
                     fmt::format("\"{}\"", request.method)};
  }
  const LayerSpec& layer = llm.layers.front();
  KVSIM_CHECK(
      layer.mlp.gated && layer.mlp.n_experts == 0 && !caches_latents(layer) && llm.rope_theta > 0,
      "{} is not a dense, gated, rotary model", llm.name);
  const bool bounded = found->method != LoopMethod::kFull;
  if (bounded && request.budget >= request.prompt) {
    throw InputError{"--prompt",
                     fmt::format("more tokens than the budget of {} entries", request.budget),
                     fmt::format("{}", request.prompt)};
  }
  E2ePlan plan;
  plan.dtype = dtype;
  MethodSpec spec{.name = request.method, .params = found->params, .budget = {}};
  if (bounded) spec.budget = Budget{.entries = request.budget};
  const AttentionSpec& a = layer.attention;
  plan.method = make_method(
      spec, request.prompt,
      {.recorded = dtype,
       .shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
       .n_layers = llm.n_layers(),
       .d_model = llm.d_model});
  kernels::LoopSpec& loop = plan.loop;
  loop.model = {.n_layers = llm.n_layers(),
                .d_model = llm.d_model,
                .n_heads = a.n_heads,
                .n_kv_heads = a.n_kv_heads,
                .head_dim = a.head_dim,
                .d_ff = layer.mlp.d_ff,
                .vocab = llm.vocab_size,
                .rope_theta = llm.rope_theta};
  loop.method = found->method;
  loop.batch = request.batch;
  loop.prompt = request.prompt;
  loop.steps = request.output;
  loop.budget = bounded ? request.budget : 0;
  loop.seed = request.seed;
  if (found->method == LoopMethod::kStreaming) loop.sinks = count(*plan.method, "n_sink");
  if (loop.scores()) {
    loop.recent = count(*plan.method, "recent");
    loop.decay = static_cast<float>(number(*plan.method, "decay"));
  }
  if (found->method == LoopMethod::kResidual) {
    loop.slots = count(*plan.method, "residual_slots");
    loop.alpha = static_cast<float>(number(*plan.method, "alpha"));
  }
  plan.llm = std::move(llm);
  return plan;
}

Llm with_layers(Llm llm, std::int64_t n_layers) {
  KVSIM_CHECK(n_layers >= 1 && n_layers <= llm.n_layers(), "{} has {} layers, not {}", llm.name,
              llm.n_layers(), n_layers);
  llm.layers.resize(static_cast<std::size_t>(n_layers));
  llm.extra_parameters = (2 * n_layers + 1) * llm.d_model;  // norms
  return llm;
}

Llm toy_llm(std::int64_t n_layers) {
  Llm llm;
  llm.name = "toy";
  llm.d_model = 64;
  llm.vocab_size = 64;
  llm.rope_theta = 10'000;
  const LayerSpec layer{
      .attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .v_head_dim = 64},
      .mlp = {.d_ff = 128}};
  llm.layers.assign(static_cast<std::size_t>(n_layers), layer);
  return with_layers(std::move(llm), n_layers);
}

}  // namespace kvsim
