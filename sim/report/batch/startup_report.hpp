#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "models/stack/stack.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// What an engine runs with as results hold it: version, flags, and where each value comes from.
[[nodiscard]] nlohmann::ordered_json settings_json(const EngineSettings& settings);
/// "vLLM 0.28: --max-num-batched-tokens 2048 …", and a line for each place that values come from.
[[nodiscard]] std::string settings_text(const EngineSettings& settings, std::size_t width);

/// An engine's start as results hold it: bytes of one GPU, blocks, tokens.
[[nodiscard]] nlohmann::ordered_json startup_json(const EngineStartup& startup);
/// "GPU KV cache size: 31,232 tokens …" and the terms it comes from, as the engine's log has them.
[[nodiscard]] std::string startup_text(const EngineStartup& startup, std::size_t width);

}  // namespace kvsim
