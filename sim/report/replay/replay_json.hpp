#pragma once

// The documents of docs/results.md, printed by --json and written to result.json. Bytes are
// integers, other numbers doubles that read back to the same bits; a missing number is null.
// Nothing here depends on the clock or on file locations.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// "kvsim.replay/1". A method's `per_step` and `per_head` are there where its series are not empty.
[[nodiscard]] nlohmann::ordered_json replay_document(const ReplayResult& replay,
                                                     const std::vector<SkippedMethod>& skipped = {},
                                                     const std::vector<std::string>& notes = {});

/// Adds each method's series by layer, where it is kept, as `per_step_layers` to a replay_document
/// of the same result. Results folders have it as CSV instead: it is long.
void add_layer_steps(nlohmann::ordered_json& document, const ReplayResult& replay);

/// `{method, budget, kept: [layer][kv_head][positions ascending]}`; an entry merged from several
/// tokens is the array of its members instead of a number.
[[nodiscard]] nlohmann::ordered_json kept_document(const ReplayMethod& method);
/// The one method's document, or an array of them where there are several.
[[nodiscard]] nlohmann::ordered_json kept_document(const ReplayResult& replay);

}  // namespace kvsim
