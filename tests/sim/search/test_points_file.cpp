// The points file of a sweep: after any truncation the remaining lines are complete.

#include <filesystem>
#include <fstream>

#include <sys/stat.h>

#include "sim/sweep/points_file.hpp"
#include "tests/sim/search/sweep_files.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

TEST_CASE("a line is restored exactly and no other text of its length is accepted") {
  const std::string object = R"({"point":12,"x":"a \"b\" ü"})";
  const std::string line = summed_line(object);
  CHECK(nlohmann::json::parse(line).at("point") == 12);  // JSON lines, including the checksum
  CHECK(unsummed(line) == object);
  for (std::size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_FALSE(unsummed(damaged).has_value());
    CHECK_FALSE(unsummed(line.substr(0, i)).has_value());
  }
}

TEST_CASE("cut at any byte, the file holds the lines before the cut") {
  const auto folder = test::fresh("cut");
  const auto file = folder / "points.jsonl";
  std::vector<std::size_t> ends;
  {
    PointsWriter writer{file, 0};
    for (int i = 0; i < 4; ++i) {
      writer.add(fmt::format(R"({{"point":{}}})", i));
      ends.push_back(std::filesystem::file_size(file));
    }
    // Only one process at a time may write.
    CHECK(test::complaint([&] {
            const PointsWriter second{file, 0};
          }).find("another kvsim is writing it") != std::string::npos);
  }
  const std::string whole = test::text_of(file);
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    std::ofstream{file, std::ios::binary} << whole.substr(0, cut);
    const auto content = read_points_file(file);
    std::size_t lines = 0;
    while (lines < ends.size() && ends[lines] <= cut) ++lines;
    REQUIRE(content.has_value() == (lines > 0));
    if (!content) continue;
    CHECK(content->header.at("point") == 0);
    CHECK(content->objects.size() == lines - 1);
    CHECK(content->good_bytes == ends[lines - 1]);
    CHECK(content->torn_bytes == cut - ends[lines - 1]);
    // Later additions follow a complete line.
    PointsWriter{file, content->good_bytes}.add(R"({"point":9})");
    CHECK(read_points_file(file)->torn_bytes == 0);
    CHECK(read_points_file(file)->objects.back() == R"({"point":9})");
  }
}

TEST_CASE("unreadable and unwritable paths are reported") {
  const auto folder = test::fresh("unread");
  CHECK(test::complaint([&] { (void)read_points_file(folder / "none"); }).find("cannot be read") !=
        std::string::npos);
  CHECK(test::complaint([&] {
          const PointsWriter writer{folder, 0};
        }).find("cannot be written") != std::string::npos);
}

TEST_CASE("a points file is not written through a symbolic link or into a pipe") {
  const auto folder = test::fresh("points-link");
  std::ofstream{folder / "precious"} << "mine";
  std::filesystem::create_symlink("precious", folder / "points.jsonl");
  CHECK(test::complaint([&] {
          const PointsWriter writer{folder / "points.jsonl", 0};
        }).find("points.jsonl: cannot be written: it is a symbolic link to precious") !=
        std::string::npos);
  CHECK(test::text_of(folder / "precious") == "mine");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(test::complaint([&] {
          const PointsWriter writer{folder / "pipe", 0};
        }).find("pipe: cannot be written") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
