#include "models/llm/hf/module_names.hpp"

#include <array>
#include <charconv>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim::hf {
namespace {

// Prefixes of a language model's layers: alone, and inside a wrapper with a vision tower.
constexpr std::array<std::string_view, 6> kRoots{
    "model.", "model.language_model.", "language_model.model.", "", "backbone.", "language_model."};

// Other names of the same weights: fused projections, experts in one tensor, and the names of older
// families.
constexpr std::array kOtherNames{Rename{".q_proj", ".qkv_proj"},
                                 Rename{".k_proj", ".qkv_proj"},
                                 Rename{".v_proj", ".qkv_proj"},
                                 Rename{".in_proj_qkv", ".in_proj_qkvz"},
                                 Rename{".in_proj_z", ".in_proj_qkvz"},
                                 Rename{".in_proj_a", ".in_proj_ba"},
                                 Rename{".in_proj_b", ".in_proj_ba"},
                                 Rename{"experts.0.gate_proj", "experts.0.w1"},
                                 Rename{"experts.0.up_proj", "experts.0.w3"},
                                 Rename{"experts.0.down_proj", "experts.0.w2"},
                                 Rename{"experts.0.down_proj", "experts.down_proj"},
                                 Rename{"experts.0.gate_proj", "experts.gate_up_proj"},
                                 Rename{"experts.0.up_proj", "experts.gate_up_proj"},
                                 Rename{"mlp.gate_proj", "mlp.gate_up_proj"},
                                 Rename{"mlp.up_proj", "mlp.gate_up_proj"},
                                 Rename{"mlp.up_proj", "mlp.fc1"},
                                 Rename{"mlp.down_proj", "mlp.fc2"},
                                 Rename{".shared_experts.", ".shared_expert."}};

/// Replaces the first `from` in `name`; empty if there is none.
std::string renamed(std::string_view name, const Rename& rename) {
  const std::size_t at = name.find(rename.from);
  if (at == std::string_view::npos) return "";
  return fmt::format("{}{}{}", name.substr(0, at), rename.to, name.substr(at + rename.from.size()));
}

/// Matches `pattern`, in which `*` matches any characters. Iterative: backtracking retries the last
/// star one character later.
bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Whether `parts` occurs in `name` from one dot (or the start) to another (or the end).
bool has_parts(std::string_view name, std::string_view parts) {
  for (std::size_t at = name.find(parts); at != std::string_view::npos;
       at = name.find(parts, at + 1)) {
    const std::size_t end = at + parts.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

}  // namespace

ModuleNames names_of(std::string_view module, std::int32_t layer, std::span<const Rename> renames) {
  std::string own{module};
  for (const Rename& rename : renames) {
    if (std::string other = renamed(own, rename); !other.empty()) {
      own = std::move(other);
      break;
    }
  }
  ModuleNames modules{own};
  for (const Rename& rename : kOtherNames) {
    if (std::string other = renamed(own, rename); !other.empty()) modules.push_back(other);
  }
  ModuleNames names;
  for (const std::string_view root : kRoots) {
    for (const std::string& one : modules) {
      names.push_back(fmt::format("{}layers.{}.{}", root, layer, one));
    }
  }
  return names;
}

ModuleNames output_head() { return {"lm_head", "language_model.lm_head", "model.lm_head", "head"}; }

std::vector<std::string_view> with_ancestors(std::string_view name) {
  std::vector<std::string_view> all{name};
  for (std::size_t end = name.rfind('.'); end != std::string_view::npos;
       end = name.rfind('.', end - 1)) {
    all.push_back(name.substr(0, end));
    if (end == 0) break;
  }
  return all;
}

ModulePattern::ModulePattern(const Field& field) : text_{field.string()} {
  constexpr std::size_t kLongest = 512;
  if (text_.size() > kLongest) field.expected("a pattern of at most 512 characters");
  constexpr std::string_view kRegexMark = "re:";
  if (text_.starts_with(kRegexMark)) {
    kind_ = Kind::kRegex;
    try {
      regex_.emplace(std::string_view{text_}.substr(kRegexMark.size()));
    } catch (const std::invalid_argument&) {
      field.expected("a regular expression after \"re:\", without lookbehind and backreferences");
    }
  } else if (text_.find('*') != std::string::npos) {
    kind_ = Kind::kGlob;
  }
}

std::optional<std::int32_t> ModulePattern::only_layer() const {
  constexpr std::string_view kLayers = "layers.";
  if (kind_ == Kind::kRegex) return std::nullopt;
  const std::size_t at = text_.find(kLayers);
  if (at == std::string::npos || (at > 0 && text_[at - 1] != '.')) return std::nullopt;
  const char* first = text_.data() + at + kLayers.size();
  const char* end = text_.data() + text_.size();
  std::int32_t layer = 0;
  const auto [rest, error] = std::from_chars(first, end, layer);
  if (error != std::errc{} || (rest != end && *rest != '.')) return std::nullopt;
  return layer;
}

bool ModulePattern::depends_on_layer() const {
  // A layer number, or a character class that may match one.
  return text_.find_first_of("0123456789[?") != std::string::npos ||
         text_.find("\\d") != std::string::npos;
}

bool ModulePattern::matches(std::string_view name) const {
  if (text_.empty()) return false;
  if (kind_ == Kind::kParts) return has_parts(name, text_);
  if (kind_ == Kind::kRegex) return regex_->matches_start(name);
  for (const std::string_view each : with_ancestors(name)) {
    if (glob_matches(text_, each)) return true;
  }
  return false;
}

}  // namespace kvsim::hf
