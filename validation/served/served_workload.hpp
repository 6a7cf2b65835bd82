#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/units/units.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_settings.hpp"
#include "validation/served/served_tables.hpp"

namespace kvsim {

/// Folders of the files that runs refer to. A folder that does not exist has no files.
struct ServedFolders {
  /// RUN.csv: per-request logs; RUN.timeline.csv: the engine's counts per second.
  std::filesystem::path requests{};
  std::filesystem::path lengths{};  // lengths of data sets
};

enum class ServedArrivals : std::uint8_t { kNone, kOpen, kAtOnce, kClosed };

/// Requests of a run's client to one of its equal engines, as the key `requests` of a scenario.
struct ServedWorkload {
  nlohmann::ordered_json requests;
  ServedArrivals arrivals = ServedArrivals::kOpen;
  double rate = 0;  // kOpen: requests per second to one engine; 0: as in the log
  /// kClosed: users per engine; kAtOnce: constant number of sequences in the engine, 0 if unknown.
  std::int64_t users = 0;
  std::int64_t count = 0;          // simulated
  std::int64_t stated_count = 0;   // per engine in the run; 0: not stated
  bool is_ladder = false;          // rates rise until the service saturates
  std::optional<Seconds> until{};  // requests that end later are ignored
  bool is_whole = true;  // false: only some of the run's requests, of which the steady part is used
  bool has_log = false;
  std::filesystem::path timeline{};  // measured counts over time; empty: none
  /// Ratio of the run's rates to those of the simulated engine.
  double scale = 1;
  std::vector<std::string> assumed;
};

/// Prefix of the remark that lengths vary around a stated mean.
inline constexpr std::string_view kSpreadRemark = "lengths spread";

/// Maximum number of requests simulated per run.
inline constexpr std::int64_t kMaxSimulatedRequests = 4000;

/// Reads the columns that describe requests and client. Errors: NotExpressed; InputError for an
/// invalid file of lengths.
[[nodiscard]] ServedWorkload served_workload(const ServedRun& run, const ServedClient& client,
                                             ServedSettings& settings,
                                             const ServedFolders& folders);

}  // namespace kvsim
