#include "sim/scenario/points/layouts.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "models/cost/iteration/layer_split.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/units/error.hpp"
#include "sim/network/expert_network.hpp"

namespace kvsim {
namespace {

template <class Check>
bool is_allowed(Check check) {
  try {
    check();
    return true;
  } catch (const InputError&) {
    return false;
  }
}

std::int32_t max_experts(const Llm& llm) {
  std::int32_t experts = 0;
  for (const LayerSpec& layer : llm.layers) experts = std::max(experts, layer.mlp.n_experts);
  return experts;
}

/// Numbers of GPUs of `tensor` over which entries can be distributed, 1 first.
std::vector<std::int32_t> context_sizes(const Llm& llm, const Stack& stack, std::int32_t tensor) {
  std::vector<std::int32_t> out{1};
  for (std::int32_t n = 2; n <= tensor && has_context_parallel(stack); n *= 2) {
    Stack dealt = stack;
    dealt.context_parallel = n;
    if (is_allowed([&] { check_gpus(llm, dealt, tensor); })) out.push_back(n);
  }
  return out;
}

std::int32_t gpus_of(const Layout& layout) {
  return layout.tensor_parallel * layout.pipeline_parallel * layout.prefill_context *
         (layout.replicas + layout.prefill_replicas);
}

}  // namespace

Layout layout_of(const ServeSpec& spec) {
  return {.tensor_parallel = spec.tensor_parallel,
          .pipeline_parallel = spec.pipeline_parallel,
          .context_parallel = spec.options.context_parallel.value_or(1),
          .prefill_context = spec.options.prefill_context.value_or(1),
          .expert_parallel = spec.options.expert_parallel.value_or(spec.stack->expert_parallel),
          .replicas = spec.cluster.replicas,
          .prefill_replicas = spec.cluster.prefill_replicas};
}

std::string layout_words(const Layout& layout) {
  std::string out = fmt::format("TP {}", layout.tensor_parallel);
  if (layout.context_parallel > 1) out += fmt::format(", DCP {}", layout.context_parallel);
  if (layout.prefill_context > 1) out += fmt::format(", PCP {}", layout.prefill_context);
  if (layout.pipeline_parallel > 1) out += fmt::format(", PP {}", layout.pipeline_parallel);
  if (layout.prefill_replicas == 0 && layout.replicas > 1) {
    out += fmt::format(", DP {}", layout.replicas);
  }
  if (layout.expert_parallel > 1) out += fmt::format(", EP {}", layout.expert_parallel);
  if (layout.prefill_replicas > 0) {
    out += fmt::format(", {}P{}D", layout.prefill_replicas, layout.replicas);
  }
  return out;
}

std::vector<Layout> layouts_of(const Llm& llm, const Gpu& gpu, const Stack& stack,
                               const LayoutSearch& search, bool has_pipelines) {
  std::vector<Layout> out;
  const std::int32_t experts = max_experts(llm);
  std::vector<std::int32_t> contexts;  // of engines with this number of GPUs
  const auto add = [&](Layout layout) {
    Stack shared = stack;
    shared.expert_parallel = layout.expert_parallel;
    shared.prefill_context = layout.prefill_context;
    if (!is_allowed([&] {
          check_split_prompts(shared, llm);
          check_expert_parallel(llm, gpu, shared, layout.tensor_parallel);
        })) {
      return;
    }
    for (const std::int32_t context : contexts) {
      if (context > 1 && layout.prefill_context > 1) continue;
      layout.context_parallel = context;
      out.push_back(layout);
    }
  };
  for (std::int32_t tensor = 1; tensor <= std::min(search.gpus, node_gpus(gpu)); ++tensor) {
    if (!is_allowed([&] { check_gpus(llm, stack, tensor); })) continue;
    contexts = context_sizes(llm, stack, tensor);
    std::vector<std::int32_t> shares{1};
    if (experts > 0 && tensor > 1) shares.push_back(tensor);
    const std::int32_t engines = search.gpus / tensor;
    for (const std::int32_t share : shares) {
      const Layout one{.tensor_parallel = tensor, .expert_parallel = share};
      add(one);
      for (std::int32_t stages = 2; has_pipelines && stages <= std::min(engines, llm.n_layers());
           ++stages) {
        Layout pipeline = one;
        pipeline.pipeline_parallel = stages;
        add(pipeline);
      }
      for (std::int32_t prefill = 1; search.disaggregated && prefill < engines; ++prefill) {
        for (std::int32_t decode = 1; prefill + decode <= engines; ++decode) {
          if (std::gcd(prefill, decode) > 1) continue;
          Layout split = one;
          split.prefill_replicas = prefill;
          split.replicas = decode;
          add(split);
        }
      }
    }
    for (std::int32_t parts = 2; parts <= engines && has_prefill_context(stack); parts *= 2) {
      add({.tensor_parallel = tensor, .prefill_context = parts});
      if (experts == 0) continue;
      add({.tensor_parallel = tensor, .prefill_context = parts, .expert_parallel = tensor * parts});
    }
    for (std::int32_t replicas = 2; experts > 0 && replicas <= engines; ++replicas) {
      add({.tensor_parallel = tensor, .expert_parallel = tensor * replicas, .replicas = replicas});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Layout& a, const Layout& b) { return gpus_of(a) < gpus_of(b); });
  return out;
}

}  // namespace kvsim
