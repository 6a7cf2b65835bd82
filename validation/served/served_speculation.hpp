#pragma once

// Mapping of engines' options for speculative decoding to the key "speculation" of a scenario.

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "validation/served/served_text.hpp"

namespace kvsim {

/// Returns the key "speculation" for the related options of vLLM, SGLang and TensorRT-LLM (a JSON
/// object in any spelling, or one option per setting). Appends the acceptance to `assumed`, because
/// the options do not state it (served-engines.json, acceptances). Errors: NotExpressed for a
/// proposer without a known acceptance (n-grams, models, other heads) or without a number of
/// tokens.
[[nodiscard]] nlohmann::ordered_json served_speculation(std::span<const EngineOption> options,
                                                        std::vector<std::string>& assumed);

}  // namespace kvsim
