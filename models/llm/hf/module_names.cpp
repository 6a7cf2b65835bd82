#include "models/llm/hf/module_names.hpp"

#include <array>
#include <initializer_list>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim::hf {
namespace {

// Names of a language model's layers, on its own and inside a wrapper with a vision tower.
constexpr std::array<std::string_view, 4> kRoots{"model.", "model.language_model.",
                                                 "language_model.model.", ""};

ModuleNames in_layer(std::int32_t layer, std::initializer_list<std::string_view> modules) {
  ModuleNames names;
  for (const std::string_view root : kRoots) {
    for (const std::string_view module : modules) {
      names.push_back(fmt::format("{}layers.{}.{}", root, layer, module));
    }
  }
  return names;
}

/// `pattern` with `*` for any characters. Iterative: a star tries again one character later.
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

ModuleGroup attention_inputs(const AttentionSpec& attention, std::int32_t layer) {
  ModuleGroup group{.what = fmt::format("attention projections of layer {}", layer), .modules = {}};
  if (attention.is_latent()) {
    if (attention.q_lora_rank > 0) {
      group.modules = {in_layer(layer, {"self_attn.q_a_proj"}),
                       in_layer(layer, {"self_attn.q_b_proj"})};
    } else {
      group.modules = {in_layer(layer, {"self_attn.q_proj"})};
    }
    group.modules.push_back(in_layer(layer, {"self_attn.kv_a_proj_with_mqa"}));
    group.modules.push_back(in_layer(layer, {"self_attn.kv_b_proj"}));
  } else {
    for (const char* one : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
      group.modules.push_back(in_layer(layer, {one, "self_attn.qkv_proj"}));
    }
  }
  return group;
}

ModuleGroup attention_output(std::int32_t layer) {
  return {.what = fmt::format("output projection of layer {}", layer),
          .modules = {in_layer(layer, {"self_attn.o_proj"})}};
}

ModuleGroup feed_forward(const MlpSpec& mlp, std::int32_t layer) {
  if (mlp.n_experts > 0) {
    return {.what = fmt::format("routed experts of layer {}", layer),
            .modules = {in_layer(layer, {"mlp.experts.0.gate_proj", "mlp.experts.gate_up_proj",
                                         "block_sparse_moe.experts.0.w1"}),
                        in_layer(layer, {"mlp.experts.0.up_proj", "mlp.experts.gate_up_proj",
                                         "block_sparse_moe.experts.0.w3"}),
                        in_layer(layer, {"mlp.experts.0.down_proj", "mlp.experts.down_proj",
                                         "block_sparse_moe.experts.0.w2"})}};
  }
  ModuleGroup group{.what = fmt::format("feed-forward block of layer {}", layer),
                    .modules = {in_layer(layer, {"mlp.up_proj", "mlp.gate_up_proj", "mlp.fc1"}),
                                in_layer(layer, {"mlp.down_proj", "mlp.fc2"})}};
  if (mlp.gated) group.modules.push_back(in_layer(layer, {"mlp.gate_proj", "mlp.gate_up_proj"}));
  return group;
}

ModuleGroup shared_experts(const MlpSpec& /*mlp*/, std::int32_t layer) {
  ModuleGroup group{.what = fmt::format("shared experts of layer {}", layer), .modules = {}};
  for (const char* one : {"gate_proj", "up_proj", "down_proj"}) {
    group.modules.push_back(in_layer(layer, {fmt::format("mlp.shared_experts.{}", one),
                                             fmt::format("mlp.shared_expert.{}", one)}));
  }
  return group;
}

ModuleNames output_head() { return {"lm_head", "language_model.lm_head", "model.lm_head"}; }

std::vector<std::string_view> with_ancestors(std::string_view name) {
  std::vector<std::string_view> all{name};
  for (std::size_t end = name.rfind('.'); end != std::string_view::npos;
       end = name.rfind('.', end - 1)) {
    all.push_back(name.substr(0, end));
    if (end == 0) break;
  }
  return all;
}

ModulePattern::ModulePattern(const Field& field) : text_{field.string()}, place_{field.place()} {
  // Bounds the depth of std::regex, which is recursive.
  constexpr std::size_t kLongest = 512;
  if (text_.size() > kLongest) field.expected("a pattern of at most 512 characters");
  constexpr std::string_view kRegexMark = "re:";
  if (text_.starts_with(kRegexMark)) {
    kind_ = Kind::kRegex;
    try {
      regex_ = std::regex{text_.substr(kRegexMark.size())};
    } catch (const std::regex_error&) {
      field.expected("a regular expression after \"re:\"");
    }
  } else if (text_.find('*') != std::string::npos) {
    kind_ = Kind::kGlob;
  }
}

bool ModulePattern::matches(std::string_view name) const {
  if (text_.empty()) return false;
  if (kind_ == Kind::kParts) return has_parts(name, text_);
  if (kind_ == Kind::kRegex) {  // from the start, as Python's re.match
    try {
      return std::regex_search(name.begin(), name.end(), regex_,
                               std::regex_constants::match_continuous);
    } catch (const std::regex_error&) {
      throw InputError{place_, "a simpler regular expression", text_};
    }
  }
  for (const std::string_view each : with_ancestors(name)) {
    if (glob_matches(text_, each)) return true;
  }
  return false;
}

}  // namespace kvsim::hf
