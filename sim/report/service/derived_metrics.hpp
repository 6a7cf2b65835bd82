#pragma once

// Values derived from the result of a service, for tables, documents and figures.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

[[nodiscard]] constexpr double seconds_of(SimTime t) {
  return static_cast<double>(t.count()) * 1e-12;
}

/// Seconds of one request; nullopt if it did not reach that stage, or has no second token (TPOT).
struct RequestTimes {
  std::optional<double> queue, ttft, tpot, e2e;
};
[[nodiscard]] RequestTimes times_of(const RequestOutcome& outcome);

/// The HBM of one GPU at one time, by owner. The parts sum to the larger of the usable and the held
/// bytes.
enum class HbmPart : std::uint8_t {
  kContext,      // CUDA context, libraries, communication, graphs
  kWeights,      // including the draft model
  kActivations,  // and all other memory except the cache
  kLogical,      // entries that sequences hold, by the method's size law
  kSlack,        // the rest of their blocks: block ends, entries that cannot be reclaimed
  kCached,       // blocks kept only for their prefix
  kPoolFree,     // unused blocks of a reserved pool
  kFree
};
inline constexpr std::size_t kHbmParts = 8;
/// "context", "kv_logical", …: columns and counters.
[[nodiscard]] std::string_view name_of(HbmPart part);
/// "CUDA context", "KV entries", …: legends.
[[nodiscard]] std::string_view display_name(HbmPart part);
[[nodiscard]] std::array<Bytes, kHbmParts> hbm_parts(const ServeResult& result,
                                                     const ServeSample& sample);

/// Values with their counts, ascending.
struct Weighted {
  double value = 0;
  std::int64_t count = 0;
};
/// Gaps between the tokens of completed requests, seconds, as in itl_s. Iterations in which many
/// requests decode are counted, not listed: memory is proportional to iterations and spans.
[[nodiscard]] std::vector<Weighted> token_gaps(const ServeResult& result);
[[nodiscard]] std::vector<Weighted> ascending(std::vector<double> values);

/// How much of each possible bound of a service was in use: shares of the replicas' time.
struct ServeUtilization {
  double waits = 0;  // a request waits
  double tight = 0;  // a request waits while nearly all blocks are in use
  std::int32_t max_running = 0;
};
[[nodiscard]] ServeUtilization utilization(const ServeResult& result);

/// What limits a service, and the evidence for it.
struct ServeBottleneck {
  std::string kind;  // "start", "rejection", "arrival_rate", "kv_capacity", "kv_reservation",
                     // "max_num_seqs", "token_budget", "compute", "memory_bandwidth", "host"
  std::string text;  // a clause for display
};
[[nodiscard]] ServeBottleneck bottleneck(const ServeResult& result);

}  // namespace kvsim
