#pragma once

// Names of a checkpoint's modules, and the patterns of quantisation configurations that match them.
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

/// Possible names of one matrix in a checkpoint, the usual one first:
/// "model.layers.3.self_attn.q_proj".
using ModuleNames = std::vector<std::string>;

/// A family's replacement for a part of a layer's matrix names: "mlp.experts." and
/// "block_sparse_moe.experts.".
struct Rename {
  std::string_view from, to;
};

/// Returns the possible names of the matrix with LayerMatrix::module `module`: with the first
/// applicable rename of the family, in checkpoints of a language model and inside a wrapper with a
/// vision tower, fused with its neighbours or not.
[[nodiscard]] ModuleNames names_of(std::string_view module, std::int32_t layer,
                                   std::span<const Rename> renames);
[[nodiscard]] ModuleNames output_head();

/// Returns a module's name followed by those of its parent modules: "a.b.c", "a.b", "a".
[[nodiscard]] std::vector<std::string_view> with_ancestors(std::string_view name);

/// One pattern of a list of modules.
class ModulePattern {
 public:
  /// Throws InputError if `field` is not a string, or not a regular expression after `re:`.
  explicit ModulePattern(const Field& field);
  /// Returns the only layer whose modules the pattern can match; nullopt: any layer.
  [[nodiscard]] std::optional<std::int32_t> only_layer() const;
  /// Whether it may match a module in one layer but not in another.
  [[nodiscard]] bool depends_on_layer() const;
  /// Whether it matches the module `name` or one of its parents. A plain pattern matches names that
  /// contain it as whole dotted parts: "lm_head", "model.layers.0", "self_attn".
  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  enum class Kind : std::uint8_t { kParts, kGlob, kRegex };
  Kind kind_ = Kind::kParts;
  std::string text_;
  std::optional<NameRegex> regex_;
};

}  // namespace kvsim::hf
