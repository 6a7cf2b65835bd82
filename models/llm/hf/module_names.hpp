#pragma once

// Names of a checkpoint's modules, and the patterns that quantisation configurations name them by.
// Private to models/llm.

#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

/// The names that one matrix has in checkpoints of different families, first the usual one:
/// "model.layers.3.self_attn.q_proj".
using ModuleNames = std::vector<std::string>;

/// Matrices of a layer that kvsim stores in one format.
struct ModuleGroup {
  std::string what;  // "attention projections of layer 3"
  std::vector<ModuleNames> modules;
};
[[nodiscard]] ModuleGroup attention_inputs(const AttentionSpec& attention, std::int32_t layer);
[[nodiscard]] ModuleGroup attention_output(std::int32_t layer);
/// The dense block, or the routed experts, of which the first represents all.
[[nodiscard]] ModuleGroup feed_forward(const MlpSpec& mlp, std::int32_t layer);
[[nodiscard]] ModuleGroup shared_experts(const MlpSpec& mlp, std::int32_t layer);
[[nodiscard]] ModuleNames output_head();

/// A module's name followed by those of the modules that hold it:
/// "a.b.c", "a.b", "a".
[[nodiscard]] std::vector<std::string_view> with_ancestors(std::string_view name);

/// One pattern of a list of modules.
class ModulePattern {
 public:
  /// Errors: InputError where `field` is no string, or no regular expression after `re:`.
  explicit ModulePattern(const Field& field);
  /// Whether it means the module `name`, or a module that holds it. A plain pattern means names
  /// that have it as whole dotted parts: "lm_head", "model.layers.0", "self_attn".
  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  enum class Kind : std::uint8_t { kParts, kGlob, kRegex };
  Kind kind_ = Kind::kParts;
  std::string text_, place_;
  std::regex regex_;
};

}  // namespace kvsim::hf
