#pragma once

// The documents of docs/results.md, printed by --json and written to result.json. Bytes are
// integers; other numbers are doubles that parse back to the same bits; a missing number is null.
// Nothing here depends on the clock or on file locations.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// "kvsim.replay/1". A method has `per_step` and `per_head` only if its series are not empty.
[[nodiscard]] nlohmann::ordered_json replay_document(const ReplayResult& replay,
                                                     const std::vector<SkippedMethod>& skipped = {},
                                                     const std::vector<std::string>& notes = {});

/// Adds each method's series by layer, if kept, as `per_step_layers` to a replay_document of the
/// same result. Results folders store it as CSV instead, because it is long.
void add_layer_steps(nlohmann::ordered_json& document, const ReplayResult& replay);

/// `{method, budget, kept: [layer][kv_head][positions ascending]}`; an entry merged from several
/// tokens is the array of its members instead of a number.
[[nodiscard]] nlohmann::ordered_json kept_document(const ReplayResult& replay,
                                                   const ReplayMethod& method);
/// The document of the only method, or an array if there are several.
[[nodiscard]] nlohmann::ordered_json kept_document(const ReplayResult& replay);

}  // namespace kvsim
