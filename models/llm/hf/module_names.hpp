#pragma once

// Names of a checkpoint's modules, and the patterns that quantisation configurations name them by.
// Private to models/llm.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/hf/name_regex.hpp"

namespace kvsim::hf {

/// The names that one matrix may have in a checkpoint, first the usual one:
/// "model.layers.3.self_attn.q_proj".
using ModuleNames = std::vector<std::string>;

/// How a family's checkpoints call a part of a layer's matrix names: "mlp.experts." and
/// "block_sparse_moe.experts.".
struct Rename {
  std::string_view from, to;
};

/// Names of a matrix that LayerMatrix::module calls `module`: with the family's renames (the first
/// that applies), in checkpoints of a language model and inside a wrapper with a vision tower,
/// fused with its neighbours or not.
[[nodiscard]] ModuleNames names_of(std::string_view module, std::int32_t layer,
                                   std::span<const Rename> renames);
[[nodiscard]] ModuleNames output_head();

/// A module's name followed by those of the modules that hold it:
/// "a.b.c", "a.b", "a".
[[nodiscard]] std::vector<std::string_view> with_ancestors(std::string_view name);

/// One pattern of a list of modules.
class ModulePattern {
 public:
  /// Errors: InputError where `field` is no string, or no regular expression after `re:`.
  explicit ModulePattern(const Field& field);
  /// The one layer whose modules it can mean; none: any.
  [[nodiscard]] std::optional<std::int32_t> only_layer() const;
  /// Whether it may mean a module of one layer and not that of another.
  [[nodiscard]] bool depends_on_layer() const;
  /// Whether it means the module `name`, or a module that holds it. A plain pattern means names
  /// that have it as whole dotted parts: "lm_head", "model.layers.0", "self_attn".
  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  enum class Kind : std::uint8_t { kParts, kGlob, kRegex };
  Kind kind_ = Kind::kParts;
  std::string text_;
  std::optional<NameRegex> regex_;
};

}  // namespace kvsim::hf
