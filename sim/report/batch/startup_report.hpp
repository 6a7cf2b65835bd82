#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "models/stack/stack.hpp"
#include "sim/memory/vllm_startup.hpp"
#include "sim/scenario/read/log_start.hpp"

namespace kvsim {

/// An engine's settings as stored in results: version, flags, and the source of each value.
[[nodiscard]] nlohmann::ordered_json settings_json(const EngineSettings& settings);
/// "vLLM 0.28: --max-num-batched-tokens 2048 …", and a line per source of values.
[[nodiscard]] std::string settings_text(const EngineSettings& settings, std::size_t width);

/// An engine's start as stored in results: bytes per GPU, blocks, tokens.
[[nodiscard]] nlohmann::ordered_json startup_json(const EngineStartup& startup);
/// The values of an engine's start-up log: kvsim.calibrate-log/1.
[[nodiscard]] nlohmann::ordered_json log_start_json(const LogStart& start);
/// "GPU KV cache size: 31,232 tokens …" and its terms, as in the engine's log.
[[nodiscard]] std::string startup_text(const EngineStartup& startup, std::size_t width);

}  // namespace kvsim
