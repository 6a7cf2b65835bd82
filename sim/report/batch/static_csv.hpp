#pragma once

// Time series and tables as CSV (RFC 4180 quoting, lines end in "\n", units in column names).

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// One line per point of a run_document.
[[nodiscard]] std::string points_csv(const nlohmann::ordered_json& document);
/// One line per sample: point,label,step,tokens,peak_bytes,held_bytes,kv_bytes,step_s,tok_s.
[[nodiscard]] std::string timeline_csv(const RunReport& report);
/// HBM by owner at each point's peak: point,label,phase,owner,bytes.
[[nodiscard]] std::string owners_csv(const RunReport& report);
/// One line per term of an explained step; its formula and source are only in result.json.
[[nodiscard]] std::string time_terms_csv(const RunReport& report);
/// Cache per layer at the end of each point: point,label,layer,kv_bytes.
[[nodiscard]] std::string layers_csv(const RunReport& report);

}  // namespace kvsim
