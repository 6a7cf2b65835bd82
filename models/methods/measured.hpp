#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// The size law of a method that keeps what the data says, as a replay of one trace measured it.
struct MeasuredLaw {
  std::string trace;           // its name, told wherever the law is used
  std::vector<double> kept;    // by layer: share of the prompt's tokens a head holds after it
  std::vector<double> growth;  // by layer: entries a decode token adds to a head
  // By layer: K and V bytes a head holds over what the method's own size law says of as many
  // entries; 1 where that law counts them exactly, and for all layers where empty.
  std::vector<double> bytes{};
};

/// `method` with `law` where it has none of its own: entries where those depend on the data, and in
/// any case the bytes of an entry. All else is its own. Layers of a model with
/// another number than the trace's take the law of the layer at the same relative depth.
/// Errors: ContractError if the law is of no layers, or its two lists differ in length.
[[nodiscard]] std::shared_ptr<const Method> with_measured_law(std::shared_ptr<const Method> method,
                                                              MeasuredLaw law,
                                                              std::int32_t n_layers);

/// Means over heads for a method whose streaming heads are chosen by data while their share is a
/// parameter (DuoAttention): however they lie, the model holds as much. nullopt for others.
[[nodiscard]] std::optional<MeasuredLaw> expected_law(const Method& method, std::int64_t prompt,
                                                      std::int32_t n_layers);

}  // namespace kvsim
