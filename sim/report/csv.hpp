#pragma once

// Time series and tables as CSV (RFC 4180 quoting, lines end in "\n", units in column names).

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "sim/report/run_report.hpp"

namespace kvsim {

/// One field: quoted if it holds a comma, a quote, or a line end.
[[nodiscard]] std::string csv_field(std::string_view text);
/// The shortest digits that read back to the same double; empty for NaN and infinities.
[[nodiscard]] std::string csv_number(double value);

/// One line a point of a run_document.
[[nodiscard]] std::string points_csv(const nlohmann::ordered_json& document);
/// One line a sample: point,label,step,tokens,peak_bytes,held_bytes,kv_bytes,step_s,tok_s.
[[nodiscard]] std::string timeline_csv(const RunReport& report);
/// Who held the HBM at each point's peak: point,label,phase,owner,bytes.
[[nodiscard]] std::string owners_csv(const RunReport& report);
/// One line a term of an explained step, its formula and source left to result.json.
[[nodiscard]] std::string time_terms_csv(const RunReport& report);
/// Cache per layer at the end of each point: point,label,layer,kv_bytes.
[[nodiscard]] std::string layers_csv(const RunReport& report);
/// One line a method and step; header alone where no series was kept.
[[nodiscard]] std::string replay_steps_csv(const ReplayResult& replay);
[[nodiscard]] std::string replay_layer_steps_csv(const ReplayResult& replay);  // each layer's
/// One line a method and layer: entries, bytes, errors at the end.
[[nodiscard]] std::string replay_layers_csv(const ReplayResult& replay);

/// One line a method: sizes, traffic, errors, distance from the oracle.
[[nodiscard]] std::string replay_methods_csv(const ReplayResult& replay);
/// What each entry stands there for at the end, a line a run of positions: of entries that a score
/// chose each alone, of others those that follow one another. Empty where that was not kept.
[[nodiscard]] std::string replay_kept_csv(const ReplayResult& replay);
/// A line a method, moment, block size and layout.
[[nodiscard]] std::string replay_paged_csv(const ReplayResult& replay);

}  // namespace kvsim
