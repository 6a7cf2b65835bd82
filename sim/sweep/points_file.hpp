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

/// `points.jsonl` of a sweep's results folder: a header line of JSON that identifies the sweep,
/// then one line per completed point, in any order. Every line is
///   {"sum":"0123456789abcdef", …}
/// where the sum is the fingerprint of the line's text without that member. A wrong sum means that
/// the program or the machine stopped while writing the line: it and all later lines are ignored.
inline constexpr std::string_view kPointsFile = "points.jsonl";

/// Converts `object` ("{…}", not empty, without line ends) to a line with its sum and line end, and
/// back: nullopt if the line is not complete.
[[nodiscard]] std::string summed_line(std::string_view object);
[[nodiscard]] std::optional<std::string> unsummed(std::string_view line);

/// The content of the complete lines of a points file.
struct PointsContent {
  nlohmann::json header;
  std::vector<std::string> objects;  // of the lines after the header
  std::size_t good_bytes = 0;        // length of all complete lines
  std::size_t torn_bytes = 0;        // after the complete lines
};
/// Returns nullopt if not even the first line is complete. Errors: InputError if the file cannot be
/// read, or if its first line is complete but not JSON.
[[nodiscard]] std::optional<PointsContent> read_points_file(const std::filesystem::path& path);

/// Appends lines to a points file. Each line is written immediately and completely, so that no line
/// is lost if the program is killed. Lines are synced to disk at most every two seconds and at the
/// end.
class PointsWriter {
 public:
  /// Opens or creates `path`, cuts it to `keep` bytes and locks it for this process. Errors:
  /// InputError if it cannot be written or another process holds the lock.
  PointsWriter(const std::filesystem::path& path, std::size_t keep);
  ~PointsWriter();
  PointsWriter(const PointsWriter&) = delete;
  PointsWriter& operator=(const PointsWriter&) = delete;

  /// Errors: InputError "PATH: cannot be written: …"; a partly written line is cut off.
  void add(std::string_view object);
  /// Waits until all lines are on disk.
  void sync();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::size_t size_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace kvsim
