#include "sim/batch/assumptions.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/cost/cache_rows.hpp"
#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/units/units_format.hpp"
#include "sim/network/expert_network.hpp"

namespace kvsim {

namespace {

/// Layers whose caches the method does not change, by kind; nullopt if it applies to all.
std::optional<std::string> layers_without_method(const StaticSpec& spec) {
  if (spec.method->name() == "full") return std::nullopt;
  std::map<std::string, std::int32_t> kinds;
  for (const LayerSpec& layer : spec.llm->layers) {
    if (!caches_rows(layer) && !mixer_kinds(layer).empty()) ++kinds[kind_name(layer)];
  }
  if (kinds.empty()) return std::nullopt;
  std::vector<std::string> words;
  for (const auto& [kind, layers] : kinds) words.push_back(fmt::format("{} {}", layers, kind));
  return fmt::format(
      "method {} applies to layers that cache keys and values of every token: {} layers are not "
      "compressed",
      spec.method->name(), fmt::join(words, " and "));
}

}  // namespace

std::vector<std::string> assumptions(const StaticSpec& spec, const CostInput& in) {
  std::vector<std::string> notes;
  const auto& layers = spec.llm->layers;
  const bool latent = std::any_of(layers.begin(), layers.end(),
                                  [](const LayerSpec& l) { return caches_latents(l); });
  const bool windowed = std::any_of(layers.begin(), layers.end(),
                                    [](const LayerSpec& l) { return is_bounded(l.attention); });
  const std::string& stack = spec.stack->name;
  if (stack.starts_with("hf-") && latent) {
    notes.push_back(fmt::format(
        "{}: latent attention is assumed to cache its latents; transformers' DynamicCache stores "
        "the expanded keys and values of all heads, which need many times as much memory",
        stack));
  }
  if (stack.starts_with("hf-") && windowed) {
    notes.push_back(
        fmt::format("{}: layers with a sliding window are assumed to hold no more than the window; "
                    "transformers' DynamicCache does not trim them and holds every token",
                    stack));
  }
  if (activation_dtype(spec.weight_dtype) == Dtype::kBf16 &&
      !spec.gpu->peak.contains(Dtype::kBf16)) {
    notes.push_back(
        fmt::format("{} has no bf16 tensor-core rate: its fp16 rate is assumed", spec.gpu->name));
  }
  if (auto note = exceeded_num_seqs(*in.stack, spec.batch)) notes.push_back(std::move(*note));
  if (const auto full = layers_without_method(spec)) notes.push_back(*full);
  if (const PromptPart last = spec.method->prompt_part(spec.llm->n_layers() - 1); last.reused) {
    notes.push_back(fmt::format(
        "method {}: every prompt consists of chunks whose rows are in host memory; {} % "
        "of its tokens are computed in the last layer",
        spec.method->name(), 100 * last.computed));
  }
  const bool grows_by_copy = spec.stack->growth == CacheGrowth::kConcatLayer ||
                             spec.stack->growth == CacheGrowth::kConcatAll;
  if (spec.tensor_parallel > 1 && !spec.stack->splits_layers) {
    notes.push_back(
        fmt::format("tensor parallelism over {} GPUs: memory, work and traffic are per GPU, tokens "
                    "per second are of all GPUs",
                    spec.tensor_parallel));
  }
  if (const auto exchange = describe_exchange(*in.stack, *spec.gpu)) notes.push_back(*exchange);
  if (const auto dealt = describe_dealt(*in.stack)) notes.push_back(*dealt);
  if (const auto split = describe_split_prompts(*in.stack)) notes.push_back(*split);
  if (spec.stack->masks_evicted) {
    notes.push_back(
        fmt::format("{}: entries dropped by method {} stay in the cache, masked out of attention",
                    stack, spec.method->name()));
  }
  const auto first = std::find_if(layers.begin(), layers.end(), caches_rows);
  const auto first_rows = static_cast<std::int32_t>(first - layers.begin());
  if (!spec.method->plain_rows() && grows_by_copy && first != layers.end()) {
    const StepTraffic step =
        spec.method->decode_traffic(first_rows, CacheRows{in, first_rows}.shape(), spec.kv_dtype,
                                    static_cast<double>(spec.prompt_tokens), false);
    notes.push_back(
        step.repacked + step.recopied > 0
            ? fmt::format(
                  "method {} does not keep plain rows: a step concatenates the same tensors as its "
                  "released code, without the stack's copy of the whole cache",
                  spec.method->name())
            : fmt::format("method {} does not keep plain rows: they are assumed to be "
                          "written in place, without the stack's copy of the whole cache at each "
                          "step",
                          spec.method->name()));
  }
  Bytes host;
  bool estimated = false;
  const std::int64_t tokens = spec.prompt_tokens + spec.output_tokens;
  for (std::int32_t layer = 0; layer < spec.llm->n_layers(); ++layer) {
    if (!caches_rows(layers[static_cast<std::size_t>(layer)])) continue;
    const CacheRows rows{in, layer};
    const auto bytes =
        spec.method->layer_bytes(layer, rows.shape(), spec.kv_dtype, spec.prompt_tokens, tokens);
    if (bytes) host += bytes->host;
    estimated = estimated || !bytes;
  }
  if (estimated) {
    notes.push_back(
        fmt::format("method {}: the size of its entries depends on the data; it is estimated from "
                    "the method's parameters, and a replay measures it",
                    spec.method->name()));
  }
  StepTraffic step;
  const auto with_rows = std::find_if(layers.rbegin(), layers.rend(), caches_rows);
  if (with_rows != layers.rend()) {
    const auto layer = static_cast<std::int32_t>(layers.rend() - with_rows) - 1;
    step = spec.method->decode_traffic(layer, CacheRows{in, layer}.shape(), spec.kv_dtype,
                                       static_cast<double>(tokens), /*evicts=*/false);
  }
  if (host > Bytes{} && step.link_read > 0) {
    notes.push_back(
        fmt::format("method {}: a step is charged for fetching all it reads from host memory; "
                    "entries that are still on the GPU from the previous step are not fetched "
                    "again, but only a replay counts this",
                    spec.method->name()));
  }
  if (host > Bytes{} && spec.batch > 0) {
    notes.push_back(
        fmt::format("{} of cache are kept in host memory at full length", host * spec.batch));
  }
  return notes;
}

std::optional<std::string> exceeded_num_seqs(const Stack& stack, std::int64_t batch) {
  const std::int64_t most = stack.max_num_seqs;
  if (most <= 0 || batch <= most) return std::nullopt;
  return fmt::format("{} runs {} sequences at once unless max_num_seqs is at least the batch, {}",
                     stack.name, with_commas(most), with_commas(batch));
}

}  // namespace kvsim
