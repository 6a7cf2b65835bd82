#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/units/units.hpp"
#include "sim/cli/options/command.hpp"
#include "traces/requests/request.hpp"
#include "traces/requests/reuse/cache_tiers.hpp"

namespace kvsim {

/// A prefix cache of levels, for one model: what `kvsim requests info --tiers` asks about.
struct TierQuestion {
  std::string model;
  Bytes token_bytes{};  // of the cache, on all GPUs
  std::string format;   // of the cache
  std::vector<CacheTier> tiers{};
  /// The least time of computing a token's forward pass on one GPU: its matrices at the data
  /// sheet's dense rate, without attention.
  std::optional<Seconds> token_time{};
  std::string gpu{};
};

[[nodiscard]] std::vector<Option> tier_options();
/// nullopt: no --tiers. Errors: InputError.
[[nodiscard]] std::optional<TierQuestion> read_tiers(const Arguments& arguments,
                                                     const RequestTrace& trace);
[[nodiscard]] nlohmann::ordered_json tiers_json(const TierQuestion& question,
                                                const RequestTrace& trace, const ReuseCurve& curve);
/// `schedule`: the order of the requests that `curve` is of.
[[nodiscard]] std::string tiers_text(const TierQuestion& question, const RequestTrace& trace,
                                     const ReuseCurve& curve, const std::string& schedule,
                                     std::size_t width);

}  // namespace kvsim
