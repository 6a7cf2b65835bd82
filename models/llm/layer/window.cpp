#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"
#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

/// Full attention over the last `window` tokens; the layer holds only these.
class WindowKind final : public FullKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "window"; }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    return FullKind::describe(layer) +
           fmt::format(", window of {} tokens", with_commas(layer.attention.window));
  }
};

}  // namespace

const LayerKind& window_kind() {
  static const WindowKind kind;
  return kind;
}

}  // namespace kvsim
