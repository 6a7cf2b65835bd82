#pragma once

// Tables of a service, each with a header line; lines end in "\n". Times in seconds since the
// workload's start, bytes of one GPU.

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// One line per request: arrival, waiting time, start, end, lengths and outcome.
[[nodiscard]] std::string requests_csv(const RunReport& report);
/// One line per sample of a replica: running and waiting requests, HBM by owner.
[[nodiscard]] std::string serve_timeline_csv(const RunReport& report);
/// One line per point of a run_document: its scalar keys; each distribution as ttft_s_mean, ….
[[nodiscard]] std::string serve_points_csv(const nlohmann::ordered_json& document);

}  // namespace kvsim
