#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/cost/step.hpp"

namespace kvsim {

/// How a step continues the steps before it.
enum class FormatPath : std::uint8_t {
  kLine,            // every value on a line, to rounding (of stored sizes, to whole bytes)
  kMonotonicSteps,  // lines would be short, but no value falls
  kBroken
};

/// The bytes that formats other than plain rows (Method::plain_rows is false) store and move in
/// each step, and whether they follow lines or stairs. If so, a step's operators and tensors, which
/// are sums of them, do too, and none of them shrinks.
class StorageTrend {
 public:
  /// A layer that represents all layers that store and move equal bytes.
  struct Layer {
    std::int32_t first = 0;
    std::int32_t size_class = 0;  // index of its moments
  };
  explicit StorageTrend(std::vector<Layer> layers);

  /// Adds the next step, with these states by layer class. `in` is that of any batch size.
  [[nodiscard]] FormatPath next(const CostInput& in, std::int64_t prompt,
                                const std::vector<DecodeState>& moments);
  /// The last step starts a new segment: a line, unless the lines before it were short.
  void start();

 private:
  static constexpr std::size_t kStored = 6;  // K and V, and side data: before, within, after
  static constexpr std::size_t kMoved = sizeof(StepTraffic) / sizeof(double) + 5;
  using Values = std::array<double, kStored + kMoved>;
  struct Stored {
    std::int64_t entries = -1;
    double kv = 0, side = 0;
  };
  /// The range of rises per step that are consistent with all steps since start().
  struct Rise {
    double min = 0, max = 0;
  };
  struct State {
    Layer layer;
    Values now{}, from{};
    std::array<Rise, kStored + kMoved> rise{};
    Stored last;                    // after the last step
    std::array<double, 4> pages{};  // K and V, and side data, of whole pages: before, after
    bool falls = false;             // whether a value or page fell in the last step
  };
  static void take(const CostInput& in, const DecodeState& moment, State& state);

  std::vector<State> layers_;
  std::int64_t steps_ = 0;  // since start()
  bool climbs_ = false;     // the last step was off its line, but nothing fell
  bool stairs_ = false;     // since start()
};

}  // namespace kvsim
