#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// One GPU's memory according to a vLLM start-up log. Supports formats of V0 (0.2 to 0.8) and V1.
/// Values are in GiB or GB with two decimals or more; both mean 2^30 bytes in vLLM.
struct VllmLog {
  std::optional<Bytes> total{}, weights{}, non_torch{}, activation{}, graphs{}, kv_cache{};
  std::optional<double> memory_fraction;
  std::optional<std::int64_t> blocks, tokens, max_model_len;
  std::optional<double> max_concurrency;
  std::vector<std::string> notes;     // derived values and their derivation
  std::vector<std::string> warnings;  // mismatches with the scenario
};

/// Parses a log line by line, in linear time; if a figure appears twice (ranks, restarts), the last
/// one counts. A missing activation is computed from the other terms. `warnings` report an engine
/// that ran out of memory after its start. Errors: InputError if `text` has none of the figures or
/// one that cannot be read, no memory for the cache, a failed start, or CUDA graphs that freed more
/// memory than a start can; `place` is the file's name in messages.
[[nodiscard]] VllmLog read_vllm_log(std::string_view text, const std::string& place);

}  // namespace kvsim
