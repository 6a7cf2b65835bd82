#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include <sys/stat.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

using test::scratch;

/// A file of the given header text and data bytes, with a true or false header length.
fs::path file_of(const std::string& name, const std::string& header, const std::string& data,
                 std::optional<std::uint64_t> claimed = std::nullopt) {
  const fs::path path = scratch(name);
  std::ofstream out{path, std::ios::binary};
  const std::uint64_t length = claimed.value_or(header.size());
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << header << data;
  return path;
}

std::string complaint(const fs::path& path) {
  try {
    (void)Safetensors::open(path);
  } catch (const InputError& error) {
    const std::string text = error.what();
    const std::string prefix = path.string() + ": ";
    CHECK(text.starts_with(prefix));
    CHECK(text.find('\n') == std::string::npos);
    return text.substr(prefix.size());
  }
  return "none";
}

std::string one(const std::string& entry, const std::string& data = "12345678") {
  return complaint(file_of("one.safetensors", R"({"a":)" + entry + "}", data));
}

TEST_CASE("written tensors are read back in every floating type") {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kF64}) {
    const fs::path path = scratch("round_trip.safetensors");
    fs::remove(path);
    {
      SafetensorsWriter writer{
          path,
          {{"a", type, {2, 3}}, {"none", type, {0}}, {"n", TensorType::kI32, {2}}},
          {{"who", "a test"}}};
      CHECK(writer.current() == "a");
      const std::vector<float> values{1.0F, -2.5F, 0.0F, 1024.0F, -0.125F, 3.0F};
      writer.write(std::span{values}.first(4));
      CHECK_FALSE(fs::exists(path));  // no file under the name until it is complete
      writer.write(std::span{values}.subspan(4));
      writer.write(std::vector<std::int32_t>{7, -8});
      CHECK(writer.current().empty());
      writer.finish();
    }
    const Safetensors file = Safetensors::open(path);
    CHECK(file.metadata().at("who") == "a test");
    std::vector<float> out(6);
    file.read_floats("a", 0, out);
    CHECK(out == std::vector<float>{1.0F, -2.5F, 0.0F, 1024.0F, -0.125F, 3.0F});
    std::vector<float> tail(2);
    file.read_floats("a", 4, tail);
    CHECK(tail[0] == -0.125F);
    CHECK(file.find("none")->elements() == 0);
    CHECK_THROWS_AS(file.read_floats("a", 5, tail), ContractError);
    CHECK_THROWS_AS(file.read_floats("n", 0, tail), InputError);
    file.release(*file.find("a"));
    file.read_floats("a", 4, tail);  // a released page is read again
    CHECK(tail[1] == 3.0F);
  }
}

TEST_CASE("an unfinished writer leaves nothing behind") {
  const fs::path dir = scratch("unfinished");
  fs::remove_all(dir);
  fs::create_directories(dir);
  {
    SafetensorsWriter writer{dir / "x.safetensors", {{"a", TensorType::kF32, {2}}}, {}};
    CHECK_THROWS_AS(writer.finish(), ContractError);
    const std::vector<float> three(3);
    CHECK_THROWS_AS(writer.write(three), ContractError);
  }
  CHECK(fs::is_empty(dir));
  CHECK_THROWS_AS((SafetensorsWriter{dir / "no" / "x", {}, {}}), InputError);
}

TEST_CASE("files with false sizes are refused with place, expected and got") {
  CHECK(complaint(file_of("short", "", "", 0)).find("not valid JSON") != std::string::npos);
  std::ofstream{scratch("tiny")} << "abc";
  CHECK(complaint(scratch("tiny")) == "expected a safetensors file of at least 8 bytes, got 3");
  CHECK(complaint(file_of("huge", "{}", "", std::uint64_t{1} << 40U)) ==
        "expected a safetensors file, whose first 8 bytes are the length of its header, at most 2, "
        "got "
        "1099511627776");
  CHECK(complaint(file_of("negative", "{}", "", ~std::uint64_t{0}))
            .starts_with("expected a safetensors file, whose first"));
  CHECK(complaint(file_of("array", "[]", "")).find("expected an object") != std::string::npos);
  CHECK(complaint(file_of("extra", "{}", "xyz")) ==
        "expected 0 data bytes, as the tensors have, got 3");
  CHECK(complaint("/nonexistent/file") == "cannot be read: No such file or directory");
  const std::string no_file = "cannot be read: expected a file, got a folder, a pipe or a device";
  CHECK(complaint(scratch("")) == no_file);
  fs::remove(scratch("pipe"));
  REQUIRE(::mkfifo(scratch("pipe").c_str(), 0600) == 0);
  CHECK(complaint(scratch("pipe")) == no_file);  // immediately, although no program writes to it
}

TEST_CASE("hostile tensors are refused by name") {
  CHECK(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})") == "none");
  CHECK(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,16]})") ==
        "a: expected data_offsets within the file's 8 data bytes, got [0, 16]");
  CHECK(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})") ==
        "a: expected 12 bytes for shape [3] of F32, got 8");
  CHECK(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})").find("got [8, 0]") !=
        std::string::npos);
  CHECK(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})")
            .find("/a/dtype: expected one of") != std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})").find("/a/shape/0") !=
        std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,8]})").find("got 1.5") !=
        std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[1000000000,1000000000,1000000000],"data_offsets":[0,8]})")
            .find("a shape whose number of elements fits 64 bits") != std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]})")
            .find("within the file's 8 data bytes") != std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})").find("two data_offsets") !=
        std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[2]})").find("/a/data_offsets: missing") !=
        std::string::npos);
  CHECK(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})").find("unknown key") !=
        std::string::npos);
  CHECK(one(R"(7)").find("expected an object") != std::string::npos);
}

TEST_CASE("tensors that overlap or leave a hole are refused with both names") {
  const auto two = [](const std::string& a, const std::string& b) {
    return complaint(file_of("two.safetensors",
                             R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                                 R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                             "12345678"));
  };
  CHECK(two("[0,4]", "[4,8]") == "none");
  CHECK(two("[0,4]", "[2,6]") ==
        "b: expected to begin at byte 4 where a ends, got 2: tensors overlap");
  CHECK(
      complaint(file_of(
          "hole.safetensors",
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
          "12345678")) ==
      "b: expected to begin at byte 2 where a ends, got 4: tensors leave a hole");
}

TEST_CASE("comments in a header are refused") {
  for (const char* header : {"{} // x", "{/* x */}", "// x\n{}"}) {
    CHECK(complaint(file_of("comments", header, ""))
              .find("expected JSON without comments, got a comment") != std::string::npos);
  }
  // Trailing spaces, which writers add for alignment, are not comments.
  CHECK(Safetensors::open(file_of("spaces", "{}   ", "")).tensors().empty());
}

TEST_CASE("repeated keys are refused") {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(complaint(file_of("twice", R"({"a":)" + entry + R"(,"a":)" + entry + "}", ""))
            .find("given twice") != std::string::npos);
}

TEST_CASE("a header of 20,000 tensors is read in seconds") {
  std::string header = "{";
  constexpr int kTensors = 20'000;
  for (int i = 0; i < kTensors; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, 4 * i, 4 * i + 4);
  }
  const fs::path path = file_of("many", header + "}", std::string(4 * kTensors, '\0'));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(Safetensors::open(path).tensors().size() == kTensors);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{test::kSanitized ? 30 : 5});
}

TEST_CASE("a mutated or truncated file is read or refused with an InputError") {
  const fs::path path = scratch("whole.safetensors");
  SafetensorsWriter writer{
      path,
      {{"layers.0.k", TensorType::kF16, {3, 2}}, {"tokens", TensorType::kI32, {3}}},
      {{"format", "x"}}};
  writer.write(std::vector<float>(6, 1.0F));
  writer.write(std::vector<std::int32_t>{1, 2, 3});
  writer.finish();
  std::ifstream in{path, std::ios::binary};
  const std::string whole{std::istreambuf_iterator<char>{in}, {}};
  const fs::path mutated = scratch("mutated.safetensors");
  const auto attempt = [&](const std::string& bytes) {
    std::ofstream{mutated, std::ios::binary} << bytes;
    try {
      const Safetensors file = Safetensors::open(mutated);
      for (const auto& [name, entry] : file.tensors()) {
        std::vector<float> out(static_cast<std::size_t>(entry.elements()));
        if (entry.type != TensorType::kI32) file.read_floats(name, 0, out);
      }
    } catch (const InputError&) {
    }
  };
  for (std::size_t length = 0; length < whole.size(); ++length) attempt(whole.substr(0, length));
  std::mt19937_64 random{3};
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    attempt(bytes);
  }
}

}  // namespace
}  // namespace kvsim
