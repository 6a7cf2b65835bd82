#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/suite/loop_measure.hpp"
#include "validation/e2e/check.hpp"
#include "validation/e2e/predict.hpp"

namespace kvsim {

/// A run of the decode loop, either in the simulator, compared with the reference, or on a GPU,
/// measured and compared with the prediction.
struct E2eScore {
  std::string device;  // "cuda-sim", or the driver's name of the GPU
  std::string driver;  // empty in the simulator
  E2eRequest request;
  E2ePlan plan;
  std::optional<LoopCheck> check;
  std::optional<kernels::LoopMeasurement> measured;
  std::optional<E2ePrediction> predicted;
  std::vector<std::string> notes;

  [[nodiscard]] bool pass() const { return !check || check->pass(); }
};

/// Schema kvsim.validate-e2e/1.
[[nodiscard]] nlohmann::ordered_json e2e_json(const E2eScore& score);
[[nodiscard]] std::string e2e_text(const E2eScore& score, std::size_t width);

}  // namespace kvsim
