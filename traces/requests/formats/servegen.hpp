#pragma once

// ServeGen's clients: rates and patterns by time of day, distributions of lengths.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/lengths.hpp"

namespace kvsim {

enum class GapKind : std::uint8_t { kExponential, kGamma, kWeibull };

struct ServeGenWindow {
  double start = 0.0;  // seconds
  double rate = 0.0;   // requests per second
  GapKind gaps = GapKind::kExponential;
  double shape = 1.0;  // of the gaps
};
struct ServeGenLengths {
  double start = 0.0;
  LengthSpec input{}, output{};
};
struct ServeGenClient {
  std::string name;
  std::vector<ServeGenWindow> windows{};   // sorted by start; each lasts until the next, the last
                                           // as long as the previous one (a single one: 600 s)
  std::vector<ServeGenLengths> lengths{};  // sorted by start; each applies until the next
};

/// Whether `path` is a folder, or is named like one of a client's two files.
[[nodiscard]] bool looks_like_servegen(const std::filesystem::path& path);

/// Returns the expected number of requests at the client's rates.
[[nodiscard]] double expected_requests(const ServeGenClient& client);

class RequestSink;

/// Reads one client's `*-trace.csv` and `*-dataset.json`. Windows are records of `sink`, which
/// skips bad ones as its options allow; the window before a bad one lasts until the next good one.
/// Errors: InputError.
[[nodiscard]] ServeGenClient read_servegen_client(const std::filesystem::path& path,
                                                  RequestSink& sink);

/// Draws requests for the client or the folder of clients at `path`. A client's arrivals are a
/// renewal process of unit-mean gaps (with the pattern of the window in which they begin) over the
/// integral of its rate, so that each window has rate * length requests in expectation. The
/// published scale parameters are not used, because the rate implies them. Lengths are independent
/// of each other. Errors: InputError, also if the rates produce more than 1e8 requests.
[[nodiscard]] RequestTrace read_servegen(const std::filesystem::path& path,
                                         const ReadOptions& options);

}  // namespace kvsim
