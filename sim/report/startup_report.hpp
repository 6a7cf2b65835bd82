#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// An engine's start as results hold it: bytes of one GPU, blocks, tokens.
[[nodiscard]] nlohmann::ordered_json startup_json(const EngineStartup& startup);
/// "GPU KV cache size: 31,232 tokens …" and the terms it comes from, as the engine's log has them.
[[nodiscard]] std::string startup_text(const EngineStartup& startup, std::size_t width);

}  // namespace kvsim
