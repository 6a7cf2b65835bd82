#pragma once

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

/// Reads a Hugging Face `config.json` (any of the families of docs/models.md). `name` is what
/// results call the model. Errors: InputError; an architecture that is not known says what is
/// missing.
[[nodiscard]] Llm read_hf_config(const Field& config, std::string name);

}  // namespace kvsim
