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

/// A run of the decode loop as requested by the user.
struct E2eRequest {
  std::string method = "full";  // a word of e2e_methods()
  std::int64_t budget = 0;      // entries per stored head; ignored by "full"
  std::int64_t batch = 1, prompt = 1, output = 1;
  std::uint64_t seed = 0;
};

/// Methods implemented by the loop.
[[nodiscard]] const std::vector<std::string>& e2e_methods();

/// The same run as input of the model and of the loop.
struct E2ePlan {
  Llm llm;
  Dtype dtype = Dtype::kBf16;  // of weights, activations and cache
  std::shared_ptr<const Method> method;
  kernels::LoopSpec loop;
};

/// `llm` must be dense, gated and rotary. Errors: InputError naming the option for an unknown
/// method, a prompt that is not longer than the budget, or a budget that the method does not
/// support.
[[nodiscard]] E2ePlan plan_e2e(Llm llm, Dtype dtype, const E2eRequest& request);

/// Returns `llm` with only its first layers. Errors: ContractError if it has fewer layers.
[[nodiscard]] Llm with_layers(Llm llm, std::int64_t n_layers);
/// A toy model that the simulator runs in a second.
[[nodiscard]] Llm toy_llm(std::int64_t n_layers);

}  // namespace kvsim
