#pragma once

// Speculative decoding as engines' options say it, as the key "speculation" of a scenario.

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "validation/served/served_text.hpp"

namespace kvsim {

/// The key "speculation" of options of vLLM, SGLang and TensorRT-LLM that have to do with it (a
/// JSON object in any spelling, or an option for each setting). Appends to `assumed` the
/// acceptance, which the options do not say (served-engines.json, acceptances). Errors:
/// NotExpressed for a proposer without a known acceptance (n-grams, models, other heads) and
/// without a number of tokens.
[[nodiscard]] nlohmann::ordered_json served_speculation(std::span<const EngineOption> options,
                                                        std::vector<std::string>& assumed);

}  // namespace kvsim
