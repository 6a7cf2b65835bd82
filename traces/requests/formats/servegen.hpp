#pragma once

// ServeGen's clients: rates and patterns by window of the day, distributions of lengths.

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
  double rate = 0.0;   // requests a second
  GapKind gaps = GapKind::kExponential;
  double shape = 1.0;  // of the gaps
};
struct ServeGenLengths {
  double start = 0.0;
  LengthSpec input{}, output{};
};
struct ServeGenClient {
  std::string name;
  std::vector<ServeGenWindow> windows{};   // by start; each lasts to the next, the last as long as
                                           // the one before it (a single one: 600 s)
  std::vector<ServeGenLengths> lengths{};  // by start; each holds to the next
};

/// Whether `path` is a folder, or called like one of a client's two files.
[[nodiscard]] bool looks_like_servegen(const std::filesystem::path& path);

/// How many requests its rates make.
[[nodiscard]] double expected_requests(const ServeGenClient& client);

class RequestSink;

/// One client's `*-trace.csv` and `*-dataset.json`. Windows are records of `sink`, which passes
/// over bad ones as its options allow; the window before one lasts until the next good one. Errors:
/// InputError.
[[nodiscard]] ServeGenClient read_servegen_client(const std::filesystem::path& path,
                                                  RequestSink& sink);

/// Requests drawn for the client or the folder of clients at `path`. A client's arrivals are a
/// renewal process of unit-mean gaps (of the pattern of the window they begin in) laid over the
/// integral of its rate, so that each window has rate * length requests in expectation; the
/// published scale parameters are not used, as the rate says it already. Lengths are independent of
/// each other. Errors: InputError, also where rates make more than 1e8 requests.
[[nodiscard]] RequestTrace read_servegen(const std::filesystem::path& path,
                                         const ReadOptions& options);

}  // namespace kvsim
