#pragma once

// A user's scorer: code outside kvsim scores the prompt of a layer, and the harness of kvpress's
// ScorerPress keeps the highest scores of each stored head.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/methods/method.hpp"
#include "models/methods/view/vectors.hpp"

namespace kvsim {

/// The prompt of one layer. Only the prompt's tokens of `vectors` may be read.
struct PromptLayer {
  const LayerVectors& vectors;
  std::uint64_t seed = 0;
  /// True if every query head is a stored head, with the keys and values of its KV head.
  bool per_query_head = false;

  [[nodiscard]] std::int64_t prompt() const { return vectors.heads.front().prompt; }
  [[nodiscard]] std::int32_t stored_heads() const {
    return static_cast<std::int32_t>(vectors.heads.size()) *
           (per_query_head ? vectors.heads.front().group : 1);
  }
  /// The KV head of stored head `s`.
  [[nodiscard]] const HeadVectors& head(std::int32_t s) const {
    return vectors
        .heads[static_cast<std::size_t>(per_query_head ? s / vectors.heads.front().group : s)];
  }
};

/// Number of times that a kernel for the scores reads the prompt's keys, values and queries.
struct ScorePasses {
  double keys = 0, values = 0, queries = 0;
};

/// A user's method. Its scores must depend only on the arguments of `score`, because layers are
/// scored in any order.
struct OwnMethod {
  std::string name;     // as in results: "my_press.py:MyPress"
  std::string summary;  // one line
  std::string origin;   // "the user's Python file my_press.py (FNV-1a 0123456789abcdef)"
  std::vector<ParamInfo> params;
  TraceInputs inputs{};
  std::optional<ScorePasses> passes{};  // nullopt: no cost of the scores is counted
  /// Returns scores [stored heads, prompt], finite; higher scores are kept. `params` contains all
  /// declared parameters and "ratio", the removed share of the prompt. Called from several threads.
  /// Errors: InputError that names the method.
  std::function<std::vector<double>(const Params& params, const PromptLayer& layer)> score;
};

/// Returns the rule that selects by the scores of `method` with resolved parameters.
[[nodiscard]] std::shared_ptr<const SelectRule> own_rule(std::shared_ptr<const OwnMethod> method,
                                                         Params params);

}  // namespace kvsim
