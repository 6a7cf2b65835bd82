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
  // By layer and stored head: `kept` and `growth` of each, whose means over heads those are. Empty
  // where the heads of every layer hold alike, or nobody counted them.
  std::vector<std::vector<double>> head_kept{};
  std::vector<std::vector<double>> head_growth{};
};

/// `method` with `law` where it has none of its own: entries where those depend on the data, and in
/// any case the bytes of an entry. All else is its own. Layers of a model with
/// another number than the trace's take the law of the layer at the same relative depth.
/// Errors: ContractError if the law is of no layers, or its lists differ in length.
[[nodiscard]] std::shared_ptr<const Method> with_measured_law(std::shared_ptr<const Method> method,
                                                              MeasuredLaw law,
                                                              std::int32_t n_layers);

/// Of a method whose streaming heads are chosen by data while their share is a parameter
/// (DuoAttention): however they lie, the model holds as much. With `heads` stored heads a layer it
/// says what each holds, the streaming ones dealt out evenly over the layers; with 0 means alone.
/// nullopt for others.
[[nodiscard]] std::optional<MeasuredLaw> expected_law(const Method& method, std::int64_t prompt,
                                                      std::int32_t n_layers,
                                                      std::int32_t heads = 0);

}  // namespace kvsim
