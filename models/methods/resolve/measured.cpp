#include "models/methods/resolve/measured.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/methods/params.hpp"
#include "models/methods/resolve/forwarding.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class MeasuredMethod final : public ForwardingMethod {
 public:
  MeasuredMethod(std::shared_ptr<const Method> method, MeasuredLaw law, std::int32_t n_layers)
      : ForwardingMethod{std::move(method)}, law_{std::move(law)}, n_layers_{n_layers} {
    KVSIM_CHECK(!law_.kept.empty() && law_.kept.size() == law_.growth.size() &&
                    (law_.bytes.empty() || law_.bytes.size() == law_.kept.size()) && n_layers >= 1,
                "a law of {} and {} layers for {}", law_.kept.size(), law_.growth.size(), n_layers);
    KVSIM_CHECK(law_.head_kept.size() == law_.head_growth.size() &&
                    (law_.head_kept.empty() || law_.head_kept.size() == law_.kept.size()),
                "heads of {} and {} layers of {}", law_.head_kept.size(), law_.head_growth.size(),
                law_.kept.size());
    for (std::size_t l = 0; l < law_.head_kept.size(); ++l) {
      const std::vector<double>& kept = law_.head_kept[l];
      const std::vector<double>& growth = law_.head_growth[l];
      KVSIM_CHECK(!kept.empty() && kept.size() == growth.size(), "a layer of {} and {} heads",
                  kept.size(), growth.size());
      const auto differs = [](const std::vector<double>& of) {
        return std::any_of(of.begin(), of.end(), [&](double x) { return x != of.front(); });
      };
      ragged_ = ragged_ || differs(kept) || differs(growth);
    }
  }

  std::optional<std::int64_t> entries_held(std::int32_t layer, std::int64_t prompt,
                                           std::int64_t tokens) const override {
    if (const auto own = inner().entries_held(layer, prompt, tokens)) return own;
    const std::size_t at = law_layer(layer);
    return within(law_.kept[at] * static_cast<double>(prompt) +
                      law_.growth[at] * static_cast<double>(tokens - prompt),
                  tokens);
  }
  std::optional<std::int64_t> entries_attended(std::int32_t layer, std::int64_t prompt,
                                               std::int64_t tokens) const override {
    if (const auto own = inner().entries_attended(layer, prompt, tokens)) return own;
    return *entries_held(layer, prompt, tokens - 1) + 1;
  }
  bool ragged() const override { return ragged_; }
  void heads_held(std::int32_t layer, std::int64_t prompt, std::int64_t tokens,
                  std::span<std::int64_t> held) const override {
    if (!ragged_ || inner().entries_held(layer, prompt, tokens)) {
      Method::heads_held(layer, prompt, tokens, held);
      return;
    }
    const std::vector<double>& kept = law_.head_kept[law_layer(layer)];
    const std::vector<double>& growth = law_.head_growth[law_layer(layer)];
    const auto entries = [&](std::size_t head) {
      return within(kept[head] * static_cast<double>(prompt) +
                        growth[head] * static_cast<double>(tokens - prompt),
                    tokens);
    };
    if (held.size() == kept.size()) {
      for (std::size_t h = 0; h < held.size(); ++h) held[h] = entries(h);
      std::sort(held.begin(), held.end(), std::greater<>{});
      return;
    }
    std::vector<std::int64_t> all(kept.size());
    for (std::size_t h = 0; h < all.size(); ++h) all[h] = entries(h);
    std::sort(all.begin(), all.end(), std::greater<>{});
    for (std::size_t h = 0; h < held.size(); ++h) held[h] = all[h * all.size() / held.size()];
  }
  CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                        std::int64_t prompt_entries, std::int64_t entries) const override {
    CacheBytes bytes = inner().rows_bytes(layer, shape, recorded, prompt_entries, entries);
    if (!law_.bytes.empty()) {
      const double factor = law_.bytes[law_layer(layer)];
      bytes.kv = rounded<Bytes>(factor * static_cast<double>(bytes.kv.count()));
    }
    return bytes;
  }
  std::optional<CacheBytes> layer_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                        std::int64_t prompt, std::int64_t tokens) const override {
    const auto own = inner().layer_bytes(layer, shape, recorded, prompt, tokens);
    return own ? own : Method::layer_bytes(layer, shape, recorded, prompt, tokens);
  }
  std::int32_t layer_kind(std::int32_t layer) const override {
    const std::int32_t own = inner().layer_kind(layer);
    if (std::all_of(law_.bytes.begin(), law_.bytes.end(), [](double x) { return x == 1.0; })) {
      return own;
    }
    return own * static_cast<std::int32_t>(law_.kept.size()) +
           static_cast<std::int32_t>(law_layer(layer));
  }

 private:
  [[nodiscard]] static std::int64_t within(double entries, std::int64_t tokens) {
    return std::clamp<std::int64_t>(std::llround(entries), 0, tokens);
  }
  [[nodiscard]] std::size_t law_layer(std::int32_t layer) const {
    const auto of_law = static_cast<std::int64_t>(law_.kept.size());
    return static_cast<std::size_t>(std::min(of_law - 1, layer * of_law / n_layers_));
  }

  MeasuredLaw law_;
  std::int32_t n_layers_;
  bool ragged_ = false;
};

}  // namespace

std::shared_ptr<const Method> with_measured_law(std::shared_ptr<const Method> method,
                                                MeasuredLaw law, std::int32_t n_layers) {
  return std::make_shared<MeasuredMethod>(std::move(method), std::move(law), n_layers);
}

std::optional<MeasuredLaw> expected_law(const Method& method, std::int64_t prompt,
                                        std::int32_t n_layers, std::int32_t heads) {
  const Params& params = method.params();
  for (const char* name : {"streaming_fraction", "n_sink", "n_recent"}) {
    if (!params.contains(name)) return std::nullopt;
  }
  const double streaming = param_number(params, "streaming_fraction");
  const auto window =
      static_cast<double>(param_integer(params, "n_sink") + param_integer(params, "n_recent"));
  const double kept =
      std::min(1.0, window / static_cast<double>(std::max<std::int64_t>(1, prompt)));
  const auto layers = static_cast<std::size_t>(n_layers);
  MeasuredLaw law{.trace = "means over retrieval and streaming heads",
                  .kept = std::vector<double>(layers, 1 - streaming + streaming * kept),
                  .growth = std::vector<double>(layers, 1 - streaming)};
  if (heads == 0) return law;
  // Total number of streaming heads, rounded as in the released code.
  const auto all = static_cast<std::int64_t>(
      std::nearbyint(streaming * static_cast<double>(heads) * static_cast<double>(n_layers)));
  const auto of_layer = static_cast<std::size_t>(heads);
  for (std::int64_t l = 0; l < n_layers; ++l) {
    const auto stream = static_cast<std::size_t>((l + 1) * all / n_layers - l * all / n_layers);
    std::vector<double>& head_kept = law.head_kept.emplace_back(of_layer, 1.0);
    std::vector<double>& head_growth = law.head_growth.emplace_back(of_layer, 1.0);
    std::fill_n(head_kept.end() - static_cast<std::ptrdiff_t>(stream), stream, kept);
    std::fill_n(head_growth.end() - static_cast<std::ptrdiff_t>(stream), stream, 0.0);
    const double share = static_cast<double>(stream) / heads;
    law.kept[static_cast<std::size_t>(l)] = 1 - share + share * kept;
    law.growth[static_cast<std::size_t>(l)] = 1 - share;
  }
  return law;
}

}  // namespace kvsim
