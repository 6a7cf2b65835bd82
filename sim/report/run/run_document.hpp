#pragma once

// The documents of docs/results.md: what --json prints and what result.json holds. Bytes are
// integers, other numbers doubles written so that they read back to the same bits; a number that
// does not exist is null. Nothing here depends on the clock or on where files lie.

#include <nlohmann/json.hpp>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// "kvsim.run/1". Errors: ContractError if the report has no scenario or results and points differ
/// in number.
[[nodiscard]] nlohmann::ordered_json run_document(const RunReport& report);

}  // namespace kvsim
