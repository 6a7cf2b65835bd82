#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Layouts of request traces; docs/requests.md lists where each is published.
enum class RequestFormat : std::uint8_t {
  kPlain,
  kAzure,
  kMooncake,
  kBurstGpt,
  kShareGpt,
  kServeGen,
  kVidur,
  kSplitwise,
  kWeka,
  kAgentic,
  kBailian
};

struct RequestFormatName {
  RequestFormat format;
  std::string_view name;  // word used in scenario files
  std::string_view layout;
};
/// In the order of RequestFormat.
[[nodiscard]] std::span<const RequestFormatName> request_formats();
[[nodiscard]] std::string_view name_of(RequestFormat format);
/// Errors: InputError "PLACE: unknown format …" with the nearest.
[[nodiscard]] RequestFormat parse_request_format(std::string_view word, std::string_view place);

struct ReadOptions {
  std::optional<RequestFormat> format{};  // absent: from the content
  std::int64_t skip_bad = 0;              // number of malformed records that are skipped and
                                          // counted
  bool sort = false;                      // sort records by time instead of rejecting unsorted ones
  /// For ShareGPT without token counts: tokens are estimated from the text with one of these.
  std::optional<double> chars_per_token{}, tokens_per_word{};
  /// Tokens per prefix id; absent: 512 for Mooncake, 64 for ShareGPT's growing contexts. No other
  /// format has prefixes.
  std::optional<std::int32_t> prefix_block{};
  std::uint64_t seed = 0;  // for requests drawn from ServeGen
};

/// Reads a trace: a file; for ServeGen one of a client's two files or a folder of clients; for Weka
/// a folder of sessions. Streams: memory is that of the result and about 1 MiB. Errors: InputError
/// "FILE:LINE: COLUMN: expected …, got …" for the first malformed record beyond `skip_bad`, and for
/// a file that cannot be read, is empty or has an unknown layout.
[[nodiscard]] RequestTrace read_requests(const std::filesystem::path& path,
                                         const ReadOptions& options = {});
/// Reads several files: sessions of agents (kWeka), one per file, numbered in the sorted order of
/// the paths; a folder means its files of that format. A single file is read as above. Errors: as
/// above, and InputError if one of several files has another format.
[[nodiscard]] RequestTrace read_requests(std::span<const std::filesystem::path> paths,
                                         const ReadOptions& options = {});
/// Reads text in memory, named `name` in messages; not for ServeGen, which has two files.
[[nodiscard]] RequestTrace parse_requests(std::string_view text, std::string_view name,
                                          const ReadOptions& options = {});

}  // namespace kvsim
