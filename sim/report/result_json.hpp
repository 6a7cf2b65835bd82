#pragma once

// The documents of docs/results.md: what --json prints and what result.json holds. Bytes are
// integers, other numbers doubles written so that they read back to the same bits; a number that
// does not exist is null. Nothing here depends on the clock or on where files lie.

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/run_report.hpp"

namespace kvsim {

/// The program's version, as CMake knows it: "0.1.0".
[[nodiscard]] std::string_view kvsim_version();

/// "kvsim.run/1". Errors: ContractError if the report has no scenario or results and points differ
/// in number.
[[nodiscard]] nlohmann::ordered_json run_document(const RunReport& report);

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

/// As files and stdout hold it: indented by 2, arrays of plain values on one line, a newline at the
/// end. Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string to_file_text(const nlohmann::ordered_json& document);

}  // namespace kvsim
