// Reads Hugging Face `config.json` files. Keys that determine the size of a cache or of the weights
// are read per family (models/llm/hf), as in the family's modelling code; all other keys of these
// files are ignored. docs/models.md lists the families.

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/llm/catalogue.hpp"
#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"
#include "models/llm/hf/quantization.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"

namespace kvsim {
namespace {

// Reads a file as a family other than that of its model_type.
constexpr std::string_view kFamilyKey = "kvsim_family";

/// Whether a key's value means that the feature is absent.
bool says_nothing(const nlohmann::json& value) {
  return value.is_null() || value == false || value == 0 ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// Rejects keys that change caches or weights but are not read by the family's reader.
void refuse_what_is_not_modelled(const Field& config, const hf::Family* family) {
  for (const hf::MemoryKey& key : hf::memory_keys()) {
    const auto found = config.find(key.key);
    if (!found || says_nothing(found->raw())) continue;
    if (family == nullptr) found->fail(fmt::format("{} is not modelled", key.meaning));
    const auto& reads = family->reads;
    if (std::find(reads.begin(), reads.end(), key.key) == reads.end()) {
      found->fail(
          fmt::format("{} is not modelled for models of type {}", key.meaning, family->model_type));
    }
  }
}

/// Tokens of the longest sequence that engines accept: the declared positions times the factor of
/// RoPE scaling, as vLLM derives max_model_len (vllm/config/model.py, _get_and_verify_max_len).
/// With llama3, longrope and Gemma 3 the declared positions include the factor; with yarn the
/// factor applies to original_max_position_embeddings.
std::int32_t positions_with_rope_scaling(const Field& config, const Llm& llm) {
  constexpr double kLargestFactor = 1e6;
  constexpr std::array<std::string_view, 5> kIncluded{"default", "mrope", "su", "longrope",
                                                      "llama3"};
  auto rope = config.find("rope_scaling");
  if (!rope) rope = config.find("rope_parameters");
  if (rope) {
    if (const auto full = rope->find("full_attention")) rope = full;
  }
  if (!rope || llm.model_type == "gemma3_text") return llm.max_positions;
  auto type = rope->find("rope_type");
  if (!type) type = rope->find("type");
  const auto factor = rope->find("factor");
  if (!type || !factor) return llm.max_positions;
  const std::string word = type->string();
  if (std::find(kIncluded.begin(), kIncluded.end(), word) != kIncluded.end()) {
    return llm.max_positions;
  }
  const std::int32_t base = word == "yarn" ? hf::count_or(*rope, "original_max_position_embeddings",
                                                          llm.max_positions, 1, hf::kMaxPositions)
                                           : llm.max_positions;
  const double scaled = factor->number(0, kLargestFactor) * base;
  if (scaled < 1 || scaled > static_cast<double>(hf::kMaxPositions)) {
    factor->fail(fmt::format("scales {} positions to {:g}; expected 1 to {}", base, scaled,
                             hf::kMaxPositions));
  }
  return static_cast<std::int32_t>(scaled);
}

/// Throws an error with the missing keys of an unknown family.
[[noreturn]] void refuse_family(const Field& config, const Field& at, std::string_view what) {
  const std::string word = at.string();
  std::vector<std::string> given;
  std::vector<std::string> missing;
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
                          "max_position_embeddings", "tie_word_embeddings", "sliding_window"}) {
    (config.raw().contains(key) ? given : missing).emplace_back(key);
  }
  std::vector<std::string> known;
  for (const hf::Family& family : hf::families()) {
    if (what == "architecture") {
      known.insert(known.end(), family.architectures.begin(), family.architectures.end());
    } else {
      known.emplace_back(family.model_type);
    }
  }
  const std::string unknown = unknown_name(what, word, known);
  at.fail(fmt::format(
      "{}{} The cache layout of its layers is unknown; of the keys that a Llama-like family "
      "requires, the file has {} and does not have {}. If its layers match a known family, add "
      "\"{}\" with that family's model_type to the file",
      unknown, unknown.ends_with('?') ? "" : ".",
      given.empty() ? "nothing" : fmt::format("{}", fmt::join(given, ", ")),
      missing.empty() ? "nothing" : fmt::format("{}", fmt::join(missing, ", ")), kFamilyKey));
}

/// Returns the family of a configuration: the requested one, otherwise the first known one of its
/// model types and classes. `outer`: the configuration that wraps it, or itself.
const hf::Family& family_of(const Field& config, const Field& outer,
                            std::vector<std::string>& notes) {
  if (const auto requested = outer.find(kFamilyKey)) {
    const hf::Family* family = hf::find_family(requested->string());
    if (family == nullptr) refuse_family(config, *requested, "model_type");
    notes.push_back(
        fmt::format("read as a model of type {}, as {} requests", family->model_type, kFamilyKey));
    return *family;
  }
  std::optional<Field> first_type, first_class;
  for (const Field* level : {&config, &outer}) {
    if (const auto type = level->find("model_type")) {
      if (const hf::Family* family = hf::find_family(type->string())) return *family;
      if (!first_type) first_type = type;
    }
    if (const auto classes = level->find("architectures")) {
      for (const Field& one : classes->one_or_more()) {
        if (const hf::Family* family = hf::find_family(one.string())) return *family;
        if (!first_class) first_class = one;
      }
    }
  }
  if (!first_type && !first_class) config.fail("neither model_type nor architectures is given");
  refuse_what_is_not_modelled(config, nullptr);
  if (first_type) refuse_family(config, *first_type, "model_type");
  refuse_family(config, *first_class, "architecture");
}

/// Returns the language model inside a configuration with a vision or audio tower; nullopt if the
/// configuration is that of a language model.
std::optional<Field> wrapped_text(const Field& config) {
  for (const char* key : {"text_config", "language_config", "llm_config"}) {
    if (const auto text = config.find(key); text && text->is_object()) return text;
  }
  if (const auto thinker = config.find("thinker_config"); thinker && thinker->is_object()) {
    return wrapped_text(*thinker);
  }
  return std::nullopt;
}

/// Returns the inner configuration with the keys that may be at either level.
Field with_outer_keys(const Field& text, const Field& outer) {
  nlohmann::json merged = text.raw();
  bool is_same = true;
  for (const char* key : {"tie_word_embeddings", "dtype", "torch_dtype", "vocab_size",
                          "quantization_config", "expert_dtype"}) {
    // An inner dtype takes precedence, under either of its key names.
    const bool is_dtype = std::string_view{key}.ends_with("dtype") && key[0] != 'e';
    if (is_dtype && (text.has("dtype") || text.has("torch_dtype"))) continue;
    if (text.has(key) || !outer.has(key)) continue;
    merged[key] = outer.at(key).raw();
    is_same = false;
  }
  return is_same ? text : Field::wrap(std::move(merged), text.place());
}

/// Files may declare prediction layers whose weights are not in the checkpoint.
void note_prediction_layers(const Field& config, Llm& llm) {
  for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"}) {
    const auto layers = config.find(key);
    if (!layers || says_nothing(layers->raw())) continue;
    llm.mtp_layers = static_cast<std::int32_t>(layers->integer(0, hf::kMaxLayers));
    llm.notes.push_back(fmt::format(
        "{} announces layers that predict further tokens: neither their weights nor their cache "
        "are counted",
        key));
    return;
  }
}

/// Notes keys that no reader uses and that are named like sizes.
void note_unknown_keys(const Field& config, const hf::Family& family, Llm& llm) {
  constexpr std::size_t kMaxNames = 16, kLongestName = 40;
  std::vector<std::string> unknown;
  std::size_t more = 0;
  for (const auto& [key, value] : config.members()) {
    const bool is_read =
        std::find(family.reads.begin(), family.reads.end(), key) != family.reads.end();
    if (!is_read && !says_nothing(value.raw()) && hf::may_change_memory(key)) {
      if (unknown.size() < kMaxNames) {
        unknown.push_back(excerpt(key, kLongestName));
      } else {
        ++more;
      }
    }
  }
  if (unknown.empty()) return;
  llm.notes.push_back(fmt::format("not read, and may change memory: {}{}", fmt::join(unknown, ", "),
                                  more > 0 ? fmt::format(", and {} more", more) : ""));
}

// Architectures with this encoder. Their image processors accept up to 4,096 x 4,096 pixels
// (preprocessor_config.json, "longest_edge" 16,777,216).
constexpr std::array<std::string_view, 4> kArchitectures{
    "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"};
constexpr std::int64_t kImagePixels = std::int64_t{4096} * 4096;
constexpr std::int64_t kLargestPatch = 256;
constexpr std::int64_t kMaxFrames = 64;

/// Returns the vision encoder of a configuration, if its sizes are known.
std::optional<VisionEncoder> read_vision(const Field& config) {
  const auto vision = config.find("vision_config");
  const auto names = config.find("architectures");
  if (!vision || !vision->is_object() || !names) return std::nullopt;
  const std::vector<Field> architectures = names->one_or_more();
  if (architectures.empty() || std::find(kArchitectures.begin(), kArchitectures.end(),
                                         architectures.front().string()) == kArchitectures.end()) {
    return std::nullopt;
  }
  const std::int32_t side = hf::count(vision->at("patch_size"), 1, kLargestPatch);
  const std::int32_t merge = hf::count(vision->at("spatial_merge_size"), 1, 16);
  const std::int32_t channels = hf::count_or(*vision, "in_channels", 3, 1, 16);
  const std::int32_t frames = hf::count(vision->at("temporal_patch_size"), 1, kMaxFrames);
  VisionEncoder out{
      .width = hf::count(vision->at("hidden_size"), 1, hf::kLargestWidth),
      .mlp_width = hf::count(vision->at("intermediate_size"), 1, hf::kLargestFfn),
      .layers = hf::count(vision->at("depth"), 1, hf::kMaxLayers),
      .patch_values = channels * frames * side * side,
      .positions = hf::count(vision->at("num_position_embeddings"), 1, hf::kLargestVocabulary),
      .patches_per_token = merge * merge,
      .output_width = hf::count(vision->at("out_hidden_size"), 1, hf::kLargestWidth)};
  if (const auto layers = vision->find("deepstack_visual_indexes")) {
    out.extra_mergers = static_cast<std::int32_t>(layers->items().size());
  }
  out.image_tokens =
      std::max<std::int64_t>(1, kImagePixels / (std::int64_t{side} * side * out.patches_per_token));
  return out;
}

}  // namespace

Llm read_hf_config(const Field& config, std::string name,
                   const std::optional<Field>& quant_config) {
  if (!config.is_object()) config.expected("an object");
  const auto wrapped = wrapped_text(config);
  const Field text = wrapped ? with_outer_keys(*wrapped, config) : config;
  std::vector<std::string> notes;
  const hf::Family& family = family_of(text, config, notes);
  refuse_what_is_not_modelled(text, &family);
  Llm llm = family.read(text);
  llm.name = std::move(name);
  llm.model_type = family.model_type;
  llm.source = config.file();
  llm.notes.insert(llm.notes.begin(), notes.begin(), notes.end());
  llm.vision = read_vision(config);
  if (llm.vision) {
    llm.notes.emplace_back("the vision encoder is counted if an engine loads it");
  } else if (wrapped) {
    llm.notes.emplace_back("only the language model is counted, no vision or audio tower");
  }
  llm.max_positions = positions_with_rope_scaling(text, llm);
  note_prediction_layers(text, llm);
  note_unknown_keys(text, family, llm);
  llm.compute_dtype = llm.published_dtype = hf::plain_dtype(text);
  hf::read_quantization(text, quant_config, family.checkpoint, llm);
  if (const std::int64_t total = parameters(llm); total > hf::kMaxParameters)
    config.fail(fmt::format("{} parameters; expected at most 1e15", total));
  return llm;
}

Llm read_hf_config_file(const std::filesystem::path& path, std::string name) {
  std::vector<std::filesystem::path> others;
  if (path.filename() == "config.json") {
    // Files of ModelOpt, AutoGPTQ and AutoAWQ.
    for (const char* file : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
      others.push_back(path.parent_path() / file);
    }
  } else {
    others.push_back(std::filesystem::path{path}.replace_extension(".quant.json"));
  }
  std::optional<Field> quant_config;
  for (const std::filesystem::path& other : others) {
    std::error_code status;
    if (quant_config || other == path || !std::filesystem::exists(other, status)) continue;
    quant_config = Field::read_python_file(other);
  }
  return read_hf_config(Field::read_python_file(path), std::move(name), quant_config);
}

}  // namespace kvsim
