#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"

namespace kvsim {

/// What an error of a predicted metric depends on.
struct ResidualKey {
  std::string metric;      // "ttft", "tpot", "itl", "e2e", "throughput"
  std::string stack;       // "vllm"; empty: stacks without a class
  bool complete = true;    // all settings that decide times are known
  bool is_queued = false;  // requests wait for longer than they are prefilled

  friend auto operator<=>(const ResidualKey&, const ResidualKey&) = default;
  /// "TTFT of vllm, all settings stated, without a queue"
  [[nodiscard]] std::string words() const;
};

/// Measured over predicted values of one class of metrics: 90 % of new documents' values are in
/// [low, high].
struct ResidualClass {
  ResidualKey key;
  double low = 1, high = 1;
  std::int64_t documents = 0, rows = 0;
  /// With each document left out in turn: the share of its values that the interval of the others
  /// covers, mean over documents, and Winkler's score of their logarithms.
  double coverage = 0, interval_score = 0;
};

/// The residual model of services (models/cost/residuals/services.json), which
/// `kvsim calibrate --residuals` writes.
class ServiceResiduals {
 public:
  explicit ServiceResiduals(std::vector<ResidualClass> classes) : classes_{std::move(classes)} {}
  [[nodiscard]] static const ServiceResiduals& builtin();

  /// The class of `key`, else that of all stacks, else null.
  [[nodiscard]] const ResidualClass* find(const ResidualKey& key) const;
  [[nodiscard]] const std::vector<ResidualClass>& classes() const { return classes_; }

 private:
  std::vector<ResidualClass> classes_;
};

/// Errors: InputError.
[[nodiscard]] ServiceResiduals read_residuals(const Field& document);

}  // namespace kvsim
