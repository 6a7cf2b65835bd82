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

/// The question of `kvsim requests info --tiers`: a multi-level prefix cache for one model.
struct TierQuestion {
  std::string model;
  Bytes token_bytes{};  // of the cache, on all GPUs
  std::string format;   // of the cache
  std::vector<CacheTier> tiers{};
  /// Lower bound of a token's forward-pass time on one GPU: matrix multiplications at the data
  /// sheet's dense rate, without attention.
  std::optional<Seconds> token_time{};
  std::string gpu{};
};

[[nodiscard]] std::vector<Option> tier_options();
/// nullopt without --tiers. Errors: InputError.
[[nodiscard]] std::optional<TierQuestion> read_tiers(const Arguments& arguments,
                                                     const RequestTrace& trace);
[[nodiscard]] nlohmann::ordered_json tiers_json(const TierQuestion& question,
                                                const RequestTrace& trace, const ReuseCurve& curve);
/// `schedule`: the order of the requests in `curve`.
[[nodiscard]] std::string tiers_text(const TierQuestion& question, const RequestTrace& trace,
                                     const ReuseCurve& curve, const std::string& schedule,
                                     std::size_t width);

}  // namespace kvsim
