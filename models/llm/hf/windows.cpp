#include "models/llm/hf/windows.hpp"

#include <iterator>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {

std::vector<std::int32_t> read_windows(const Field& config, Window policy, std::int32_t n_layers) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(n_layers), 0);
  const auto given = config.find("sliding_window");
  std::int32_t window = given ? count(*given, 1, kMaxPositions) : 0;
  const bool upper_off = policy == Window::kUpper && !flag(config, "use_sliding_window", false);
  if (upper_off) window = 0;

  if (const auto types = config.find("layer_types")) {
    const std::vector<Field> items = types->items();
    if (std::ssize(items) != n_layers)
      types->fail(fmt::format("{} entries for {} layers", items.size(), n_layers));
    for (std::size_t layer = 0; layer < items.size(); ++layer) {
      const std::string word = items[layer].string();
      if (word == "full_attention") continue;
      if (word != "sliding_attention") {
        items[layer].fail(fmt::format(
            "layers of type \"{}\" are not modelled (full_attention, sliding_attention)",
            word.substr(0, 60)));
      }
      if (window == 0) {
        items[layer].fail(upper_off ? "a sliding layer although use_sliding_window is not true"
                                    : "a sliding layer, but sliding_window is not given");
      }
      out[layer] = window;
    }
    return out;
  }

  const auto fill = [&](auto&& slides) {
    for (std::int32_t layer = 0; layer < n_layers; ++layer) {
      if (slides(layer)) out[static_cast<std::size_t>(layer)] = window;
    }
  };
  switch (policy) {
    case Window::kNone:
      if (window > 0) given->fail("the published code of this family has no sliding window");
      break;
    case Window::kEvery4096:
      // null disables the window; without the key the class default applies.
      if (!config.raw().contains("sliding_window")) window = 4096;
      [[fallthrough]];
    case Window::kEvery:
      fill([](std::int32_t) { return true; });
      break;
    case Window::kUpper: {
      if (upper_off) break;
      if (window == 0) config.at("sliding_window").expected("a window: use_sliding_window is true");
      const std::int32_t first = count(config.at("max_window_layers"), 0, kMaxLayers);
      fill([&](std::int32_t layer) { return layer >= first; });
      break;
    }
    case Window::kAlternate:
      if (window == 0) config.at("sliding_window").expected("a window: every other layer slides");
      fill([](std::int32_t layer) { return layer % 2 == 0; });
      break;
    case Window::kFourOfFive:
      if (window == 0) config.at("sliding_window").expected("a window: four of five layers slide");
      fill([](std::int32_t layer) { return (layer + 1) % 5 != 0; });
      break;
    case Window::kFiveOfSix: {
      if (window == 0) config.at("sliding_window").expected("a window: five of six layers slide");
      const std::int32_t pattern =
          count_or(config, "sliding_window_pattern",
                   count_or(config, "_sliding_window_pattern", 6, 1, kMaxLayers), 1, kMaxLayers);
      fill([&](std::int32_t layer) { return (layer + 1) % pattern != 0; });
      break;
    }
  }
  return out;
}

}  // namespace kvsim::hf
