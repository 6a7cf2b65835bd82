#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/suite/loop_spec.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// A run of the decode loop as a user requests it.
struct E2eRequest {
  std::string method = "full";  // a word of e2e_methods()
  std::int64_t budget = 0;      // entries a stored head; of "full" no matter
  std::int64_t batch = 1, prompt = 1, output = 1;
  std::uint64_t seed = 0;
};

/// Methods whose steps the loop has.
[[nodiscard]] const std::vector<std::string>& e2e_methods();

/// The same run as the model and as the loop take it.
struct E2ePlan {
  Llm llm;
  Dtype dtype = Dtype::kBf16;  // of weights, activations and cache
  std::shared_ptr<const Method> method;
  kernels::LoopSpec loop;
};

/// `llm` is dense, gated and rotary. Errors: InputError naming the option, for an unknown method, a
/// prompt that is not longer than the budget, or a budget the method cannot keep.
[[nodiscard]] E2ePlan plan_e2e(Llm llm, Dtype dtype, const E2eRequest& request);

/// `llm` with only its first layers. Errors: ContractError for more than it has.
[[nodiscard]] Llm with_layers(Llm llm, std::int64_t n_layers);
/// Two layers, 64 wide, 4 query heads of 64 over 2 KV heads: what the simulator runs in a second.
[[nodiscard]] Llm toy_llm(std::int64_t n_layers);

}  // namespace kvsim
