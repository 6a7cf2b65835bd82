#pragma once

// Values of the options of `kvsim run` and `kvsim plan`, as the JSON that scenario files have.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// Returns a single value unchanged, several values as a list.
[[nodiscard]] nlohmann::ordered_json one_or_list(std::vector<nlohmann::ordered_json> values);

/// Reads integers such as 4096, 32K (32 x 1,024) or 1M. Errors: InputError that names the typed
/// option.
[[nodiscard]] std::vector<nlohmann::ordered_json> read_counts(const Arguments& arguments,
                                                              std::string_view option,
                                                              std::int64_t min, std::int64_t max);

/// Reads lengths of a generated workload, each an integer or a distribution: "2000", "1000-3000"
/// (uniform), "1000,2000" (a list), "lognormal:mean=1000,p99=4000". Errors: as read_counts.
[[nodiscard]] std::vector<nlohmann::ordered_json> read_lengths(const Arguments& arguments,
                                                               std::string_view option,
                                                               std::int64_t min);

/// Converts `text` to an integer or a number if possible, otherwise to a string.
[[nodiscard]] nlohmann::json number_or_text(const std::string& text);

/// Reads "kind:key=value,…" or "key=value,…" as an object, anything else as a number or a string.
/// Errors: InputError that begins with `option`, such as "--isl".
[[nodiscard]] nlohmann::json read_kinds(const std::string& option, const std::string& text);

/// Reads rates in requests per second. Errors: as read_counts.
[[nodiscard]] std::vector<double> read_rates(const Arguments& arguments);

/// Reads a time above 0 and returns it in the form of scenario files: "2s" becomes "2 s". Errors:
/// as read_counts.
[[nodiscard]] std::string read_time(const Arguments& arguments, std::string_view option);

/// Reads the price per GPU-hour of each of `gpus`: "2.5" and "h100=2.5,h200=3.5" are in USD,
/// "2.2EUR" is not. Errors: as read_counts, and if one price is given for several GPUs.
[[nodiscard]] nlohmann::ordered_json read_prices(const Arguments& arguments,
                                                 const std::vector<std::string>& gpus);

/// Reads a percentile, "95" or "p95", as a share: 0.95. Errors: as read_counts.
[[nodiscard]] double read_percentile(const Arguments& arguments);

/// Reads a number in [low, high]. Errors: InputError with `hint`.
[[nodiscard]] double read_share(const Arguments& arguments, std::string_view option, double low,
                                double high, std::string_view hint);

/// The formats of --dtype and --quantization (a list); empty: as published. Errors: as read_counts,
/// and if both options name a format.
[[nodiscard]] std::vector<nlohmann::ordered_json> read_weight_formats(const Arguments& arguments);
/// The formats of --kv-dtype; empty: the format of the activations. Errors: as read_counts.
[[nodiscard]] std::vector<nlohmann::ordered_json> read_cache_formats(const Arguments& arguments);

}  // namespace kvsim
