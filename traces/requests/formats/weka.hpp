#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "traces/requests/formats/read_requests.hpp"

namespace kvsim {

/// Reads sessions of coding agents, one JSON object per file (callanjfox/kv-cache-tester, "v8";
/// every key is in docs/requests.md). Sessions are numbered in the order of `paths`; all start at
/// 0. A request waits for the previous one of its agent, and the main agent also for earlier
/// sub-agents unless their status is "async_launched"; pauses are the recorded ones. Ids of the
/// scope "local" differ between files. Errors: InputError "FILE: POINTER: expected ..., got ..."
/// for the first bad file beyond options.skip_bad, and for files with different block sizes.
[[nodiscard]] RequestTrace read_weka(std::span<const std::filesystem::path> paths,
                                     const ReadOptions& options);
/// The same for the text of one session.
[[nodiscard]] RequestTrace parse_weka(std::string_view text, std::string_view name,
                                      const ReadOptions& options);

/// Whether a text that begins with `head` has this format.
[[nodiscard]] bool looks_like_weka(std::string_view head);
/// Returns `path`, or for a folder its files NAME.json that look like this format, sorted; empty if
/// the folder has none.
[[nodiscard]] std::vector<std::filesystem::path> weka_files(const std::filesystem::path& path);

}  // namespace kvsim
