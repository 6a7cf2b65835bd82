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

/// Where the files are that runs refer to. A folder that does not exist has no file.
struct ServedFolders {
  /// RUN.csv: logs request by request; RUN.timeline.csv: the engine's counts second by second.
  std::filesystem::path requests{};
  std::filesystem::path lengths{};  // lengths of data sets
};

enum class ServedArrivals : std::uint8_t { kNone, kOpen, kAtOnce, kClosed };

/// What a run's client sends to one of its equal engines, as the key `requests` of a scenario.
struct ServedWorkload {
  nlohmann::ordered_json requests;
  ServedArrivals arrivals = ServedArrivals::kOpen;
  double rate = 0;  // kOpen: requests a second to one engine; 0: as the log has them
  /// kClosed: of one engine; kAtOnce: sequences that it is kept full of, 0 if that is not known.
  std::int64_t users = 0;
  std::int64_t count = 0;          // simulated
  std::int64_t stated_count = 0;   // that one engine had in the run; 0: not stated
  bool is_ladder = false;          // rates rise until the service saturates
  std::optional<Seconds> until{};  // requests that end later do not count
  bool is_whole = true;  // false: a part of the run's requests, of which the steady part counts
  bool has_log = false;
  std::filesystem::path timeline{};  // measured counts over time; empty: none
  /// The run's rates over those of the simulated engine.
  double scale = 1;
  std::vector<std::string> assumed;
};

/// How the remark begins that lengths vary around a stated mean.
inline constexpr std::string_view kSpreadRemark = "lengths spread";

/// Requests that are simulated at most where a run has more.
inline constexpr std::int64_t kMaxSimulatedRequests = 4000;

/// Reads the columns that describe requests and client. Errors: NotExpressed; InputError for a file
/// of lengths that is wrong.
[[nodiscard]] ServedWorkload served_workload(const ServedRun& run, const ServedClient& client,
                                             ServedSettings& settings,
                                             const ServedFolders& folders);

}  // namespace kvsim
