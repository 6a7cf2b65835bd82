#include "models/cost/iteration/layer_split.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {

Llm stage_llm(const Llm& llm, const LayerRange& range) {
  if (range.embedding && range.head && range.last - range.first == llm.n_layers()) return llm;
  Llm stage = llm;
  stage.layers.assign(llm.layers.begin() + range.first, llm.layers.begin() + range.last);
  const auto share = [&](std::int64_t all) {
    const auto before = [&](std::int64_t layers) { return all * layers / llm.n_layers(); };
    return before(range.last) - before(range.first);
  };
  stage.extra_parameters = share(llm.extra_parameters);
  stage.extra_bytes = share(llm.extra_bytes);
  stage.tied_embeddings = true;
  if (!range.embedding) stage.learned_positions = 0;
  if (!range.embedding && !range.head) {
    stage.vocab_size = 1;
    stage.extra_parameters -= llm.d_model;
  }
  return stage;
}

std::vector<LayerRange> device_map(const Llm& llm, const WeightStore& store, std::int32_t gpus) {
  const std::int32_t n = llm.n_layers();
  KVSIM_CHECK(gpus >= 1, "layers over {} GPUs", gpus);
  // The embedding, every layer, and the head unless it is tied.
  std::vector<double> sizes{0};
  const auto add_to = [&](double& sum) {
    return [&](const MatrixPlace& place, std::int64_t in, std::int64_t out, std::int64_t count) {
      sum += static_cast<double>(matrix_bytes(llm, store, place, in, out, count).count());
    };
  };
  double head = 0;
  visit_outer_matrices(
      llm, [&](const MatrixPlace& place, std::int64_t in, std::int64_t out, std::int64_t count) {
        add_to(place.part == WeightPart::kHead ? head : sizes.front())(place, in, out, count);
      });
  for (const LayerSpec& layer : llm.layers) {
    sizes.push_back(0);
    visit_layer_matrices(llm, layer, add_to(sizes.back()));
  }
  const double layer = *std::max_element(sizes.begin() + 1, sizes.end());
  const bool has_head = head > 0;
  if (has_head) sizes.push_back(head);

  double all = 0;
  for (const double size : sizes) all += size;
  constexpr double kBuffer = 1.25;  // layers that a GPU holds in excess of its share
  const double max = all / gpus + kBuffer * layer;
  std::vector<std::int32_t> gpu_of(sizes.size());
  std::int32_t gpu = 0;
  double used = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto next = sizes.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const double kept = next == sizes.end() ? 0 : *std::max_element(next, sizes.end());
    while (gpu + 1 < gpus && used + sizes[i] > max - (gpu == 0 ? kept : 0)) {
      ++gpu;
      used = 0;
    }
    used += sizes[i];
    gpu_of[i] = gpu;
  }

  std::vector<LayerRange> out;
  for (std::int32_t g = 0; g < gpus; ++g) {
    const auto first_layer = gpu_of.begin() + 1;
    const auto [begin, end] = std::equal_range(first_layer, first_layer + n, g);
    if (begin == end) continue;
    out.push_back({.first = static_cast<std::int32_t>(begin - first_layer),
                   .last = static_cast<std::int32_t>(end - first_layer),
                   .embedding = false,
                   .head = false});
  }
  out.front().embedding = true;
  (has_head ? out.back() : out.front()).head = true;
  return out;
}

void check_gpus(const Llm& llm, const Stack& stack, std::int32_t gpus) {
  if (!stack.splits_layers) (void)tensor_shard(llm, gpus, stack.context_parallel);
}

}  // namespace kvsim
