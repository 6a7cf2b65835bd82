#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// The size law of a method that depends on data, as measured by a replay of one trace.
struct MeasuredLaw {
  std::string trace;           // its name, reported with every use of the law
  std::vector<double> kept;    // by layer: share of the prompt's tokens a head holds after it
  std::vector<double> growth;  // by layer: entries that a decode token adds to a head
  // By layer: K and V bytes of a head over those of the method's size law for as many entries; 1 if
  // that law is exact, and for all layers if empty.
  std::vector<double> bytes{};
  // By layer and stored head: `kept` and `growth` of each; the members above are their means over
  // heads. Empty if the heads of every layer are equal, or were not counted.
  std::vector<std::vector<double>> head_kept{};
  std::vector<std::vector<double>> head_growth{};
};

/// `method` with `law` where it has none itself: entries if they depend on the data, and in any
/// case the bytes of an entry. The rest is the method's. Layers of a model with another number than
/// the trace's take the law of the layer at the same relative depth.
/// Errors: ContractError if the law is of no layers, or its lists differ in length.
[[nodiscard]] std::shared_ptr<const Method> with_measured_law(std::shared_ptr<const Method> method,
                                                              MeasuredLaw law,
                                                              std::int32_t n_layers);

/// For a method whose streaming heads are chosen by data while their share is a parameter
/// (DuoAttention): the model's total does not depend on the choice. With `heads` stored heads per
/// layer it gives the entries of each, with streaming heads distributed evenly over the layers;
/// with 0 only means. nullopt for others.
[[nodiscard]] std::optional<MeasuredLaw> expected_law(const Method& method, std::int64_t prompt,
                                                      std::int32_t n_layers,
                                                      std::int32_t heads = 0);

}  // namespace kvsim
