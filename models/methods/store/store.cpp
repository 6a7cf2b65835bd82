// Shared by several stores.

#include "models/methods/store/store.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

#include <fmt/format.h>

#include "models/math/quantise.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kByModel = -1;  // default of keep_first and keep_last

/// Parses "0,5,10-12" into flags. Errors: refuses other text and layers that do not exist.
void keep_list(MethodResolver& resolver, const std::string& list, std::vector<bool>& kept) {
  const char* at = list.data();
  const char* const end = at + list.size();
  const auto number = [&] {
    std::size_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value >= kept.size()) {
      resolver.refuse(
          fmt::format("keep_layers: expected layers 0 to {}, such as \"0,5,10-12\", got \"{}\"",
                      kept.size() - 1, list.substr(0, 80)));
    }
    at = next;
    return value;
  };
  if (list.empty()) return;
  while (true) {
    const std::size_t first = number();
    std::size_t last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    if (last < first || (at != end && *at != ',')) {
      resolver.refuse(fmt::format("keep_layers: expected a list such as \"0,5,10-12\", got \"{}\"",
                                  list.substr(0, 80)));
    }
    for (std::size_t layer = first; layer <= last; ++layer) kept[layer] = true;
    if (at == end) return;
    ++at;
  }
}

}  // namespace

void check_rotation(MethodResolver& resolver) {
  const std::int32_t d = resolver.site().shape.head_dim;
  if (d > 0 && std::has_single_bit(static_cast<std::uint32_t>(d))) return;
  resolver.refuse(
      fmt::format("store={}: expected a head size that is a power of two (a Hadamard rotation), "
                  "got {}",
                  resolver.choice("store"), d));
}

double rotation_flops(std::int32_t head_dim) { return 2.0 * head_dim * head_dim; }

PromptMaxima prompt_maxima(PromptScores& scores) {
  const std::span<const HeadVectors> heads =
      scores.knows_layer() ? std::span<const HeadVectors>{scores.layer().heads} : scores.heads();
  PromptMaxima max;
  for (const HeadVectors& each : heads) {
    const auto rows = static_cast<std::size_t>(each.prompt * each.head_dim);
    max.key = std::max(max.key, abs_max(each.keys.first(rows)));
    max.value = std::max(max.value, abs_max(each.values.first(rows)));
  }
  return max;
}

ParamInfo static_scale_param(std::string name, const std::string& side) {
  return number_param(std::move(name), "s", 1, 1e-12, 1e12, "> 0",
                      fmt::format("fp32 scale of a layer's {}", side), "the checkpoint");
}

std::vector<ParamInfo> with_kept_layers(std::vector<ParamInfo> params, KeptEnds ends) {
  const std::int64_t by_default = ends == KeptEnds::kDense ? kByModel : 0;
  const std::string source = ends == KeptEnds::kDense
                                 ? "vLLM: the first and last 2 of a dense model (-1), at most half"
                                 : "vLLM: --kv-cache-dtype-skip-layers";
  params.push_back(integer_param("keep_first", "", by_default, kByModel, 65536, ">= -1",
                                 "first layers that keep the recorded format", source));
  params.push_back(integer_param("keep_last", "", by_default, kByModel, 65536, ">= -1",
                                 "last layers that keep the recorded format", source));
  params.push_back(text_param("keep_layers", "a list such as 0,5,10-12",
                              "layers that keep the recorded format",
                              "vLLM: --kv-cache-dtype-skip-layers"));
  params.push_back(flag_param("keep_windows", false,
                              "layers with a sliding window keep the recorded format",
                              "vLLM: --kv-cache-dtype-skip-layers sliding_window"));
  return params;
}

std::vector<bool> kept_layers(MethodResolver& resolver) {
  const MethodContext& site = resolver.site();
  const bool hybrid = !site.ordinals.empty();
  const std::int64_t by_model = hybrid ? 0 : 2;
  std::int64_t first = resolver.integer("keep_first");
  std::int64_t last = resolver.integer("keep_last");
  const std::string& list = resolver.word("keep_layers");
  const bool windows = resolver.flag("keep_windows");
  if (first == 0 && last == 0 && list.empty() && !windows) return {};
  const std::int64_t layers = resolver.n_layers();
  std::vector<bool> kept(static_cast<std::size_t>(layers));
  if (first == kByModel) first = std::min(by_model, layers / 2);
  if (last == kByModel) last = std::min(by_model, layers / 2);
  if (std::max(first, last) > layers) {
    resolver.refuse(
        fmt::format("keep_first, keep_last: expected at most the {} layers, got {} and {}", layers,
                    first, last));
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    kept[static_cast<std::size_t>(layer)] = layer < first || layer >= layers - last ||
                                            (windows && layer < std::ssize(site.windows) &&
                                             site.windows[static_cast<std::size_t>(layer)] > 0);
  }
  keep_list(resolver, list, kept);
  return kept;
}

ParamInfo dequant_param() {
  return word_param("dequant", {"fused", "copy"},
                    "codes become numbers inside the attention kernel, or in a copy of the cache",
                    "KIVI's kernels are fused; plain PyTorch copies");
}

void add_dequant(StepTraffic& traffic, const StepEvents& events, const HeadShape& shape,
                 bool copy) {
  const double entries = events.read >= 0 ? events.read : events.attended;
  traffic.extra_flops += 2.0 * 2.0 * entries * shape.head_dim;
  if (!copy) return;
  const double bytes = 2.0 * entries * shape.head_dim * bits_of(shape.recorded) / 8.0;
  traffic.move_read += bytes;
  traffic.move_write += bytes;
}

ParamInfo code_bits_param(std::int64_t bits, std::string source) {
  return integer_param("bits", "", bits, 1, 8, "2, 4 or 8", "bits of a code", std::move(source));
}

std::int32_t resolved_code_bits(MethodResolver& resolver) {
  const std::int64_t bits = resolver.integer("bits");
  if (bits != 2 && bits != 4 && bits != 8) {
    resolver.refuse(fmt::format("bits: expected 2, 4 or 8 (whole codes per byte), got {}", bits));
  }
  return static_cast<std::int32_t>(bits);
}

}  // namespace kvsim
