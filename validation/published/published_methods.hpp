#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "validation/published/published_csv.hpp"

namespace kvsim {

/// The compression method that a row names, with the parameters its text gives.
struct MethodMatch {
  std::optional<MethodSpec> spec{};  // none: `reason` says why
  std::string reason{};
  bool recomputes_window = false;      // no cache: the window is prefilled again at every step
  std::vector<std::string> assumed{};  // for people
};

/// `prompt` turns shares of the prompt into entries where a parameter wants these.
[[nodiscard]] MethodMatch match_method(const std::string& method, const std::string& params,
                                       const std::string& note, std::int64_t prompt);

/// What "x vs FP16", "x full KV (GQA)", "% KV vs SnapKV" compare with, and whether peaks are.
struct Baseline {
  MethodSpec spec;
  bool peak = false;
};
/// By the row's unit; `method` is the row's own. nullopt: it names none that is known.
[[nodiscard]] std::optional<Baseline> baseline_of(const PublishedRow& row,
                                                  const std::optional<MethodSpec>& method);

}  // namespace kvsim
