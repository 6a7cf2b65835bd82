#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "models/llm/llm.hpp"
#include "models/units/units.hpp"
#include "sim/memory/groups/vllm_groups.hpp"

namespace kvsim {

/// A question about an engine: what `available` bytes of cache memory on each of `tensor_parallel`
/// GPUs hold.
struct CapacityQuestion {
  Bytes available{};
  std::int32_t tensor_parallel = 1;
  VllmGroupSettings settings{};
};

/// The groups of the model's layers and the capacity that vLLM reports. Errors: InputError.
[[nodiscard]] nlohmann::ordered_json capacity_json(const Llm& llm,
                                                   const CapacityQuestion& question);
[[nodiscard]] std::string capacity_text(const Llm& llm, const CapacityQuestion& question,
                                        std::size_t width);

}  // namespace kvsim
