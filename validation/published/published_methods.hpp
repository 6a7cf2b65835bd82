#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "validation/published/published_csv.hpp"

namespace kvsim {

/// The compression method that a row names, with the parameters in its text.
struct MethodMatch {
  std::optional<MethodSpec> spec{};  // if empty, `reason` states why
  std::string reason{};
  bool recomputes_window = false;      // there is no cache: the window is prefilled again at every
                                       // step
  std::vector<std::string> assumed{};  // for readers
};

/// `prompt` converts shares of the prompt to entries for parameters that require entries.
[[nodiscard]] MethodMatch match_method(const std::string& method, const std::string& params,
                                       const std::string& note, std::int64_t prompt);

/// The baseline of "x vs FP16", "x full KV (GQA)" or "% KV vs SnapKV", and whether peaks are
/// compared.
struct Baseline {
  MethodSpec spec;
  bool peak = false;
};
/// Returns the baseline named by the row's unit; `method` is the row's method. nullopt if it names
/// no known baseline.
[[nodiscard]] std::optional<Baseline> baseline_of(const PublishedRow& row,
                                                  const std::optional<MethodSpec>& method);

}  // namespace kvsim
