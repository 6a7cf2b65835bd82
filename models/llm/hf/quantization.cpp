#include "models/llm/hf/quantization.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/module_names.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"

namespace kvsim::hf {
namespace {

constexpr std::int64_t kLargestGroup = 1 << 16;

const WeightFormat* builtin(std::string_view name) { return &find_weight_format(name); }

/// Returns `like` with groups of `group` inputs. Without groups (`group` -1), scales and zeros are
/// per output column. `like` must outlive the program's models.
const WeightFormat* with_group(const WeightFormat& like, std::int64_t group) {
  if (group == like.group) return &like;
  WeightFormat format = like;
  format.group = static_cast<std::int32_t>(std::max<std::int64_t>(group, 0));
  if (group < 0) format.column_bits += std::exchange(format.group_bits, 0);
  return &keep_weight_format(group < 0 ? fmt::format("{} by column", like.name)
                                       : fmt::format("{} in groups of {}", like.name, group),
                             format);
}
const WeightFormat* with_group(std::string_view like, std::int64_t group) {
  return with_group(find_weight_format(like), group);
}

/// Returns the inputs per scale: an integer of at least 1, or -1 for all of an output column.
std::int64_t group_size(const Field& config, std::int64_t otherwise,
                        std::string_view key = "group_size") {
  const auto size = config.find(key);
  if (!size) return otherwise;
  const std::int64_t value = size->integer(-1, kLargestGroup);
  if (value == 0) size->expected("an integer >= 1, or -1");
  return value;
}

/// fp8 with one scale per square of `weight_block_size`, or for the whole matrix. `is_e8m0`: the
/// scale of a square is an 8-bit exponent.
const WeightFormat* fp8_of(const Field& config, bool is_e8m0 = false) {
  const auto size = config.find("weight_block_size");
  if (!size) return builtin("fp8-tensor");
  const std::vector<Field> sides = size->items();
  if (sides.size() != 2) size->expected("two sides of a block");
  WeightFormat format = find_weight_format("fp8-block");
  const std::int64_t side = sides[0].integer(1, 4096);
  if (sides[1].integer(1, 4096) != side) size->fail("blocks that are not square are not modelled");
  if (is_e8m0) {
    format.group = static_cast<std::int32_t>(side * side);
    format.group_bits = 8;
    return &keep_weight_format(fmt::format("fp8-block of {0} x {0}, e8m0", side), format);
  }
  if (side * side == format.group) return builtin("fp8-block");
  format.group = static_cast<std::int32_t>(side * side);
  return &keep_weight_format(fmt::format("fp8-block of {0} x {0}", side), format);
}

/// Returns the format with a ModelOpt name. null: not quantised.
const WeightFormat* modelopt_format(const Field& algo, std::int64_t group) {
  const std::string word = algo.string();
  struct Known {
    std::string_view word, format;
  };
  constexpr std::array kKnown{Known{"FP8", "fp8-tensor"},
                              Known{"FP8_PER_CHANNEL_PER_TOKEN", "fp8-channel"},
                              Known{"FP8_PB_WO", "fp8-block"},
                              Known{"NVFP4", "nvfp4"},
                              Known{"NVFP4_AWQ", "nvfp4"},
                              Known{"W4A16_NVFP4", "nvfp4-w4a16"},
                              Known{"MXFP8", "mxfp8"},
                              Known{"MXFP4", "mxfp4"},
                              Known{"W4A16_AWQ", "w4a16"},
                              Known{"INT4_AWQ", "w4a16"},
                              Known{"W8A8_SQ_PER_CHANNEL", "w8a8-int8"},
                              Known{"W8A16", "int8-channel"}};
  std::vector<std::string> words;
  for (const Known& each : kKnown) {
    if (each.word == word) {
      return group > 0 && each.format != "fp8-block" ? with_group(each.format, group)
                                                     : builtin(each.format);
    }
    words.emplace_back(each.word);
  }
  algo.fail(unknown_name("quantisation", word, words));
}

/// The same with the shape that compressed-tensors stores with packed values: two int32.
const WeightFormat* with_shape(WeightFormat format) {
  format.matrix_bits += 64;
  return &keep_weight_format(fmt::format("{} with shapes", format.name), format);
}

/// The format of `weights` of a group of compressed-tensors.
const WeightFormat* compressed_format(const Field& group) {
  const Field weights = group.at("weights");
  const std::int64_t bits = weights.at("num_bits").integer(1, 16);
  const auto type_field = weights.find("type");
  const std::string type = type_field ? type_field->string() : "int";
  const std::int64_t size = group_size(weights, 0);
  const auto strategy_field = weights.find("strategy");
  const std::string strategy = strategy_field ? strategy_field->string()
                               : size > 0     ? "group"
                                              : "tensor";
  const bool weight_only = !group.has("input_activations");
  const bool grouped = strategy == "group" || strategy == "tensor_group";
  if (type == "float" && bits == 8) {
    if (strategy == "tensor") return builtin("fp8-tensor");
    if (strategy == "channel") return builtin("fp8-channel");
    if (grouped && size == 32) return builtin("mxfp8");
    if (strategy == "block") {
      const auto sides = weights.find("block_structure");
      if (!sides) return builtin("fp8-block");
      return fp8_of(Field::wrap({{"weight_block_size", sides->raw()}}, weights.place()));
    }
  } else if (type == "float" && bits == 4 && grouped) {
    if (size == 16) return builtin(weight_only ? "nvfp4-w4a16" : "nvfp4");
    if (size == 32) return builtin("mxfp4");
  } else if (type == "int" && bits == 8) {
    if (!grouped) return builtin(weight_only ? "int8-channel" : "w8a8-int8");
    if (weight_only && size > 0) return with_shape(*with_group("w8a16", size));
  } else if (type == "int" && bits == 4 && weight_only) {
    const bool zeros = !flag(weights, "symmetric", true);
    const char* format = zeros ? "w4a16-zeros" : "w4a16";
    if (strategy == "channel") return with_shape(*with_group(format, -1));
    if (grouped && size > 0) return with_shape(*with_group(format, size));
  }
  weights.fail(fmt::format("{} {}-bit weights with a scale by {}{}{} are not modelled", type, bits,
                           strategy, size > 0 ? fmt::format(" of {}", size) : "",
                           weight_only ? ", activations unchanged" : ""));
}

/// A configuration's rules for modules by name.
class Quantization {
 public:
  /// Returns the format of a matrix in layer `layer` (-1: outside of layers); null if it is not
  /// quantised. `by_name`: only if the configuration names it.
  [[nodiscard]] const WeightFormat* of(const ModuleNames& names, std::int32_t layer,
                                       bool by_name = false) const {
    for (const ModulePattern& pattern : excluded) {
      if (const auto only = pattern.only_layer(); only && *only != layer) continue;
      for (const std::string& name : names) {
        if (pattern.matches(name)) return nullptr;
      }
    }
    for (const std::string& name : names) {
      for (const std::string_view each : with_ancestors(name)) {
        if (const auto found = layers.find(each); found != layers.end()) return found->second;
      }
    }
    for (const auto& [pattern, format] : targets) {
      if (const auto only = pattern.only_layer(); only && *only != layer) continue;
      for (const std::string& name : names) {
        if (pattern.matches(name)) return format;
      }
    }
    return by_name ? nullptr : rest;
  }
  /// The format of a layer's matrix. Rules that do not name layers are applied once per module.
  [[nodiscard]] const WeightFormat* of_layer(std::string_view module, std::int32_t layer,
                                             std::span<const Rename> renames) {
    if (!by_layer) {
      const auto depends = [](const ModulePattern& pattern) { return pattern.depends_on_layer(); };
      by_layer = !layers.empty() || std::any_of(excluded.begin(), excluded.end(), depends) ||
                 std::any_of(targets.begin(), targets.end(),
                             [&](const auto& target) { return depends(target.first); });
    }
    if (*by_layer) return of(names_of(module, layer, renames), layer);
    const auto known = of_module.find(module);
    if (known != of_module.end()) return known->second;
    const WeightFormat* format = of(names_of(module, layer, renames), layer);
    of_module.emplace(module, format);
    return format;
  }

  std::optional<bool> by_layer;  // whether some rule names layers; absent: not determined yet
  std::map<std::string, const WeightFormat*, std::less<>> of_module;
  std::optional<Field> place;
  std::vector<ModulePattern> excluded;
  std::map<std::string, const WeightFormat*, std::less<>> layers;  // by module name
  std::vector<std::pair<ModulePattern, const WeightFormat*>> targets;
  const WeightFormat* rest = nullptr;     // of all other linear layers
  const WeightFormat* experts = nullptr;  // of routed experts not matched by name; null: `rest`
  bool packs_head = false;
  std::optional<Dtype> kv_dtype;
};

void add_excluded(const Field& config, bool is_fp8, Quantization& out) {
  for (const std::string_view key : {"ignore", "ignored_layers", "exclude_modules",
                                     "modules_to_not_convert", "llm_int8_skip_modules"}) {
    // In a checkpoint with fp8 blocks, `ignore` belongs to the narrower format of the named
    // modules.
    if (is_fp8 && key == "ignore" && config.has("quantized_layers")) continue;
    const auto list = config.find(key);
    if (!list) continue;
    for (const Field& item : list->items()) out.excluded.emplace_back(item);
  }
}

std::optional<Dtype> kv_dtype_of(const Field& config) {
  for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"}) {
    const auto scheme = config.find(key);
    if (!scheme) continue;
    if (scheme->is_object()) {
      const auto type = scheme->find("type");
      const bool is_float = !type || type->string() == "float";
      if (scheme->at("num_bits").integer(1, 16) == 8) {
        return is_float ? Dtype::kFp8E4m3 : Dtype::kInt8;
      }
      scheme->fail("a cache of other than 8 bits is not modelled");
    }
    std::string word = scheme->string();
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    if (word == "FP8") return Dtype::kFp8E4m3;
    if (word == "INT8") return Dtype::kInt8;
    if (word != "NONE") scheme->expected("FP8, INT8 or null");
  }
  return std::nullopt;
}

void read_groups(const Field& groups, Quantization& out) {
  for (const auto& [name, group] : groups.members()) {
    const WeightFormat* format = compressed_format(group);
    const auto targets = group.find("targets");
    for (const Field& target : targets ? targets->items() : std::vector<Field>{}) {
      // A class of modules, else names.
      if (target.string() == "Linear") {
        out.rest = format;
      } else {
        out.targets.emplace_back(ModulePattern{target}, format);
      }
    }
    if (!targets) out.rest = format;
  }
}

/// Reads ModelOpt's keys, in either file.
void read_modelopt(const Field& config, Quantization& out) {
  out.kv_dtype = kv_dtype_of(config);
  const auto algo = config.find("quant_algo");
  if (!algo) return;
  if (algo->string() != "MIXED_PRECISION") {
    out.rest = modelopt_format(*algo, group_size(config, 0));
    return;
  }
  const Field layers = config.at("quantized_layers");
  for (const auto& [name, layer] : layers.members()) {
    out.layers[name] = modelopt_format(layer.at("quant_algo"), group_size(layer, 0));
  }
}

void read_gptq_or_awq(const Field& config, bool is_gptq, Quantization& out) {
  // AutoAWQ's own file has different names for both keys.
  const Field bits_field = config.at(!is_gptq && config.has("w_bit") ? "w_bit" : "bits");
  const char* group_key = !is_gptq && config.has("q_group_size") ? "q_group_size" : "group_size";
  const std::int64_t bits = bits_field.integer(1, 16);
  if (bits != 2 && bits != 4 && bits != 8) bits_field.expected("2, 4 or 8");
  // 16 bits of scale and a zero with the width of a value.
  WeightFormat format = find_weight_format(is_gptq ? "gptq-int4" : "awq-int4");
  format.packed = bits == 8 ? Dtype::kInt8 : bits == 4 ? Dtype::kInt4 : Dtype::kInt2;
  format.group_bits = static_cast<std::int32_t>(16 + bits);
  const std::string name = fmt::format("{}-int{}", is_gptq ? "gptq" : "awq", bits);
  const auto known = builtin_weight_formats();
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& f) { return f.name == name; });
  const WeightFormat& like = found != known.end() ? *found : keep_weight_format(name, format);
  out.rest = with_group(like, group_size(config, like.group, group_key));
  out.packs_head = flag(config, "lm_head", false);
  // GPTQModel excludes modules by "-:" and a regular expression.
  if (const auto rules = config.find("dynamic"); rules && rules->is_object()) {
    for (const auto& [module, rule] : rules->members()) {
      if (!module.starts_with("-:")) rule.fail("rules for single modules are not modelled");
      out.excluded.emplace_back(Field::wrap("re:" + module.substr(2), rule.place()));
    }
  }
}

/// `otherwise`: the method of a configuration that does not name one.
Quantization read_config(const Field& config, std::string_view otherwise,
                         const CheckpointTraits& traits) {
  if (const auto inner = config.find("quantization")) {
    return read_config(*inner, "modelopt", traits);
  }
  Quantization out;
  out.place = config;
  const auto method = config.find("quant_method");
  std::string word{otherwise};
  if (method) {
    word = method->string();
  } else if (config.has("quant_algo")) {
    word = "modelopt";
  } else if (config.has("weight_block_size")) {
    word = "fp8";
  }
  const bool is_modelopt = word.starts_with("modelopt");
  const bool is_mixed_fp8 = word == "fp8" && config.has("quantized_layers");
  if (!is_modelopt && !is_mixed_fp8 && config.has("quant_algo")) {
    config.at("quant_algo").fail(fmt::format("with quant_method {} is not modelled", word));
  }
  add_excluded(config, word == "fp8", out);
  if (word == "fp8") {
    if (is_mixed_fp8) read_modelopt(config, out);
    out.rest = fp8_of(config, traits.has_e8m0_scales);
  } else if (word == "fbgemm_fp8") {
    out.rest = builtin("fp8-channel");
  } else if (is_modelopt) {
    read_modelopt(config, out);
  } else if (word == "compressed-tensors") {
    const auto groups = config.find("config_groups");
    if (!groups) config.fail("compressed-tensors: expected config_groups");
    read_groups(*groups, out);
    out.kv_dtype = kv_dtype_of(config);
  } else if (word == "gptq" || word == "awq" || word == "auto-round") {
    read_gptq_or_awq(config, word != "awq", out);
  } else if (word == "bitsandbytes") {
    const bool four = flag(config, "load_in_4bit", false);
    if (!four && !flag(config, "load_in_8bit", false)) {
      config.fail("neither load_in_4bit nor load_in_8bit is true");
    }
    const bool nested = flag(config, "bnb_4bit_use_double_quant", false);
    out.rest = builtin(!four ? "w8a8-int8" : nested ? "nf4-double" : "nf4");
  } else {
    const Field at = config.at("quant_method");
    at.expected(
        "one of auto-round, awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, "
        "modelopt, "
        "mxfp4");
  }
  return out;
}

/// Applies the formats of a feed-forward block. Throws InputError if the matrices of the block, of
/// the experts or of the shared experts have several formats.
void apply_feed_forward(Quantization& q, std::span<const Rename> renames, std::int32_t layer,
                        std::int64_t d_model, MlpSpec& mlp) {
  struct Part {
    std::string_view first;
    const WeightFormat* format;
  };
  std::map<const WeightFormat**, Part> parts;
  for (const LayerMatrix& m : feed_forward_matrices(mlp, d_model)) {
    if (m.part == WeightPart::kPlain) continue;
    const bool is_expert = m.part == WeightPart::kExperts;
    const WeightFormat* format = q.of_layer(m.module, layer, renames);
    if (!is_expert && mlp.n_experts > 0 && format != nullptr && format->experts_only) {
      format = nullptr;
    }
    if (is_expert && q.experts != nullptr && format == q.rest) format = q.experts;
    const WeightFormat** slot = is_expert || mlp.n_experts == 0 ? &mlp.format
                                : m.module.find("latent") != std::string_view::npos
                                    ? &mlp.latent_format
                                    : &mlp.shared_format;
    const auto [part, is_new] = parts.try_emplace(slot, Part{m.module, format});
    if (is_new) {
      *slot = format;
    } else if (part->second.format != format) {
      q.place->fail(fmt::format(
          "{} and {} are stored in different formats; feed-forward blocks in one format are "
          "modelled",
          names_of(part->second.first, layer, renames).front(),
          names_of(m.module, layer, renames).front()));
    }
  }
}

void apply(Quantization& q, std::span<const Rename> renames, Llm& llm) {
  std::vector<const WeightFormat*> used;
  const auto note = [&used](const WeightFormat* format) {
    if (format != nullptr) used.push_back(format);
  };
  std::int32_t i = 0;
  for (LayerSpec& layer : llm.layers) {
    std::size_t at = 0;
    for (const LayerMatrix& m : mixer_matrices(layer, llm.d_model)) {
      if (m.part != WeightPart::kPlain) {
        layer.formats[at] = q.of_layer(m.module, i, renames);
        note(layer.formats[at]);
      }
      ++at;
    }
    apply_feed_forward(q, renames, i, llm.d_model, layer.mlp);
    for (const WeightFormat* format :
         {layer.mlp.format, layer.mlp.shared_format, layer.mlp.latent_format}) {
      note(format);
    }
    ++i;
  }
  if (!llm.tied_embeddings) {
    llm.head_format = q.of(output_head(), -1, !q.packs_head);
    note(llm.head_format);
  }
  llm.published_kv_dtype = q.kv_dtype;
  if (used.empty()) return;
  llm.unpacked_dtype = llm.published_dtype;
  // The narrowest format names the whole.
  const auto narrowest = std::min_element(
      used.begin(), used.end(),
      [](const auto* a, const auto* b) { return bits_of(a->packed) < bits_of(b->packed); });
  llm.published_dtype = (*narrowest)->packed;
}

/// Whether two readings of one model store it in the same way.
bool agree(const Llm& a, const Llm& b) {
  return a.layers == b.layers && a.head_format == b.head_format &&
         a.published_kv_dtype == b.published_kv_dtype;
}

}  // namespace

namespace {

/// Returns the format of routed experts from the model's `expert_dtype` or its family's convention;
/// null: that of all other matrices.
const WeightFormat* expert_format(const Field& config, const CheckpointTraits& traits) {
  const auto dtype = config.find("expert_dtype");
  if (!dtype) return traits.expert_format.empty() ? nullptr : builtin(traits.expert_format);
  const std::string word = dtype->string();
  if (word == "fp4") return builtin("mxfp4");
  if (word != "fp8") dtype->expected("fp4 or fp8");
  return nullptr;
}

/// Returns the method of a quantiser's file that does not state one. AWQ's older checkpoints have
/// AutoAWQ's keys in quantize_config.json.
std::string_view method_of_file(const Field& file) {
  const std::string name = std::filesystem::path{file.file()}.filename().string();
  if (file.is_object() && file.has("w_bit")) return "awq";
  if (name == "quant_config.json") return "awq";
  return name == "quantize_config.json" ? "gptq" : "modelopt";
}

}  // namespace

void read_quantization(const Field& config, const std::optional<Field>& quant_config,
                       const CheckpointTraits& traits, Llm& llm) {
  const auto own = config.find("quantization_config");
  if (own && own->is_object() && own->has("quant_method") &&
      own->at("quant_method").string() == "mxfp4") {
    llm.outside_experts_dtype = llm.published_dtype;
    llm.published_dtype = Dtype::kFp4;
    if (quant_config) llm.notes.push_back(fmt::format("{}: not used", quant_config->place()));
    return;
  }
  const auto read = [&](const Field& from, std::string_view otherwise, Llm into) {
    Quantization q = read_config(from, otherwise, traits);
    if (q.rest != nullptr && q.rest->blocks) q.experts = expert_format(config, traits);
    apply(q, traits.renames, into);
    return into;
  };
  const Llm plain = llm;
  if (own) llm = read(*own, "", plain);
  if (!quant_config) return;
  Llm other = read(*quant_config, method_of_file(*quant_config), plain);
  if (!own) {
    if (agree(plain, other)) {
      other.notes.push_back(fmt::format("{}: names no quantised weights: all count as {}",
                                        quant_config->place(), name_of(plain.published_dtype)));
    }
    llm = std::move(other);
  } else if (!agree(llm, other)) {
    llm.notes.push_back(fmt::format("{} does not agree with {}, which counts",
                                    quant_config->place(), own->place()));
  }
}

}  // namespace kvsim::hf
