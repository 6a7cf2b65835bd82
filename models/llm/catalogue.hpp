#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim {

/// Returns the model named `name` (catalogue name, alias or Hugging Face id, case-insensitive).
/// Throws InputError with the nearest known name.
[[nodiscard]] const Llm& find_llm(std::string_view name);
/// All catalogue models, by name.
[[nodiscard]] const std::vector<Llm>& builtin_llms();
/// Returns other spellings of a catalogue name that find_llm accepts.
[[nodiscard]] std::vector<std::string> llm_aliases(std::string_view name);

/// Reads a Hugging Face `config.json` (any of the families of docs/models.md). `name` is the
/// model's name in results. `quant_config` is the checkpoint's hf_quant_config.json,
/// quantize_config.json or quant_config.json, if it has one. Throws InputError: for an unknown
/// architecture with the missing keys, and for an unknown quantization.
[[nodiscard]] Llm read_hf_config(const Field& config, std::string name,
                                 const std::optional<Field>& quant_config = {});
/// Reads a file; a file named config.json is read with the first such quantization file of its
/// folder.
[[nodiscard]] Llm read_hf_config_file(const std::filesystem::path& path, std::string name);

}  // namespace kvsim
