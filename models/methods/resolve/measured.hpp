#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// The size law of a method that depends on data, as measured by replaying one trace.
struct MeasuredLaw {
  std::string trace;           // the trace's name, reported with every use of the law
  std::vector<double> kept;    // by layer: share of the prompt's tokens that a head keeps
  std::vector<double> growth;  // by layer: entries that a decode token adds to a head
  // By layer: K and V bytes of a head, relative to the method's size law for the same number of
  // entries. 1 if that law is exact; empty: 1 for all layers.
  std::vector<double> bytes{};
  // By layer and stored head: `kept` and `growth`; the members above are their means over heads.
  // Empty if the heads of every layer are equal or were not counted.
  std::vector<std::vector<double>> head_kept{};
  std::vector<std::vector<double>> head_growth{};
};

/// Returns `method` with `law` in place of a missing size law: entries if they depend on the data,
/// and always the bytes per entry. Everything else is unchanged. If the model and the trace have
/// different numbers of layers, each layer uses the law of the layer at the same relative depth.
/// Errors: ContractError if the law has no layers, or its lists differ in length.
[[nodiscard]] std::shared_ptr<const Method> with_measured_law(std::shared_ptr<const Method> method,
                                                              MeasuredLaw law,
                                                              std::int32_t n_layers);

/// Returns the law of a method whose streaming heads are chosen by data but whose share of them is
/// a parameter (DuoAttention): the model's total does not depend on the choice. With `heads` stored
/// heads per layer, the law has entries per head, and streaming heads are distributed evenly over
/// the layers; with 0 it has only means. nullopt for other methods.
[[nodiscard]] std::optional<MeasuredLaw> expected_law(const Method& method, std::int64_t prompt,
                                                      std::int32_t n_layers,
                                                      std::int32_t heads = 0);

}  // namespace kvsim
