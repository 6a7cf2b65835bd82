#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim {

/// The model named `name` (catalogue name, alias or Hugging Face id, case-insensitive).
/// Errors: InputError naming the nearest known one.
[[nodiscard]] const Llm& find_llm(std::string_view name);
/// All catalogue models, by name.
[[nodiscard]] const std::vector<Llm>& builtin_llms();
/// Other spellings find_llm takes for a catalogue name.
[[nodiscard]] std::vector<std::string> llm_aliases(std::string_view name);

/// Reads a Hugging Face `config.json` (any of the families of docs/models.md). `name` is the
/// model's name in results. `quant_config` is the hf_quant_config.json, quantize_config.json or
/// quant_config.json of a checkpoint that has one. Errors: InputError; for an unknown architecture
/// it names the missing keys; an unknown quantization is refused.
[[nodiscard]] Llm read_hf_config(const Field& config, std::string name,
                                 const std::optional<Field>& quant_config = {});
/// The same of a file; one named config.json is read with the first such file of its folder.
[[nodiscard]] Llm read_hf_config_file(const std::filesystem::path& path, std::string name);

}  // namespace kvsim
