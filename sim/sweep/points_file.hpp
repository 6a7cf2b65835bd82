#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvsim {

/// `points.jsonl` of a sweep's results folder: a line of JSON that says of which sweep it is, then
/// one for each point that is done, in whatever order they were. Every line is
///   {"sum":"0123456789abcdef", …}
/// where the sum is the fingerprint of the line's text without that member. A line whose sum is
/// wrong was being written when the program was ended, or the machine: it and what follows is as
/// good as not there.
inline constexpr std::string_view kPointsFile = "points.jsonl";

/// `object` ("{…}", not empty, without line ends) as a line with its sum and line end, and back:
/// nullopt where the line is not whole.
[[nodiscard]] std::string summed_line(std::string_view object);
[[nodiscard]] std::optional<std::string> unsummed(std::string_view line);

/// What a points file holds, as far as it is whole.
struct PointsContent {
  nlohmann::json header;
  std::vector<std::string> objects;  // of the lines after the header
  std::size_t good_bytes = 0;        // length of all whole lines
  std::size_t torn_bytes = 0;        // behind them
};
/// Errors: InputError if the file cannot be read or its first line, though whole, is no JSON.
/// nullopt: not even its first line is whole.
[[nodiscard]] std::optional<PointsContent> read_points_file(const std::filesystem::path& path);

/// Appends lines to a points file. Each is written at once and whole, so that ending the program
/// loses none; they are synced to disk at most every two seconds and at the end.
class PointsWriter {
 public:
  /// Opens `path`, creating it, cuts it to `keep` bytes and locks it for this process. Errors:
  /// InputError if it cannot be written or another process has it.
  PointsWriter(const std::filesystem::path& path, std::size_t keep);
  ~PointsWriter();
  PointsWriter(const PointsWriter&) = delete;
  PointsWriter& operator=(const PointsWriter&) = delete;

  /// Errors: InputError "PATH: cannot be written: …"; what was written of the line is cut off.
  void add(std::string_view object);
  /// Waits until the disk has all.
  void sync();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::size_t size_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace kvsim
