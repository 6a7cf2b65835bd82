#pragma once

// The documents of docs/results.md, printed by --json and written to result.json. Bytes are
// integers; other numbers are doubles that parse back to the same bits; a missing number is null.
// Nothing here depends on the clock or on file locations.

#include <nlohmann/json.hpp>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// "kvsim.run/1". Errors: ContractError if the report has no scenario or the numbers of results and
/// points differ.
[[nodiscard]] nlohmann::ordered_json run_document(const RunReport& report);

}  // namespace kvsim
