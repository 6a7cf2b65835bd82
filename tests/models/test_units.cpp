#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "models/units/check.hpp"
#include "models/units/dtype.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "models/units/folder.hpp"
#include "models/units/names.hpp"
#include "models/units/result.hpp"
#include "models/units/units.hpp"
#include "models/units/units_format.hpp"
#include "models/units/units_parse.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::rel;

static_assert(!std::is_constructible_v<Bytes, double>, "a fraction is no number of bytes");
static_assert(80_GiB > 80_GB);

TEST_CASE("time is bytes over bandwidth") {
  // 2e9 B at 2 TB/s take 1 ms.
  CHECK((2_GB / 2.0_TBps).count() == rel(1e-3));
  CHECK((FlopCount{312e12} / 312.0_TFLOPps).count() == rel(1.0));
  CHECK(to_sim_time(Seconds{1.5e-12}).count() == 2);
  CHECK(to_seconds(to_sim_time(Seconds{0.25})).count() == rel(0.25));
}

TEST_CASE("bytes and clock times never wrap") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const Bytes max{kMax};
  CHECK(max + 0_B == max);
  CHECK((max - 1_B) + 1_B == max);
  CHECK_THROWS_AS((void)(max + 1_B), OverflowError);
  CHECK_THROWS_AS((void)(Bytes{-2} - max), OverflowError);
  CHECK_THROWS_AS((void)(max * 2), OverflowError);
  CHECK_THROWS_AS((void)(2 * SimTime{kMax}), OverflowError);
  Bytes sum = max;
  CHECK_THROWS_AS(sum += 1_B, OverflowError);
  CHECK(sum == max);  // unchanged
  CHECK(round_up(Bytes{kMax - 1}, 2_B) == Bytes{kMax - 1});
  CHECK_THROWS_AS((void)round_up(max, 2_B), OverflowError);
  CHECK(round_up(5_B, 4_B) == 8_B);
  CHECK(rounded<Bytes>(-2.5) == Bytes{-3});
  CHECK(truncated<Bytes>(2.9) == 2_B);
  CHECK_THROWS_AS((void)rounded<Bytes>(std::nan("")), OverflowError);
  CHECK_THROWS_AS((void)rounded<Bytes>(9.3e18), OverflowError);
  CHECK(to_sim_time(Seconds{9.2e6}).count() == 9'200'000'000'000'000'000);
  CHECK_THROWS_AS((void)to_sim_time(Seconds{9.3e6}), OverflowError);
  CHECK_THROWS_AS((void)to_sim_time(Seconds{INFINITY}), OverflowError);
  // Messages begin with their subject: places and points are prepended.
  CHECK_THROWS_WITH_AS((void)to_sim_time(Seconds{9.3e6}),
                       "a time exceeds the range of the simulated clock (9,223,372 s, 106 days)",
                       OverflowError);
  CHECK_THROWS_WITH_AS((void)(max + 1_B), "a number of bytes exceeds the range of 64 bits (8 EiB)",
                       OverflowError);
}

TEST_CASE("printed values can be parsed again") {
  for (const Bytes n : {0_B, 1_B, 512_B, 1_KiB, 80_GiB, 40_MiB}) {
    const auto parsed = parse_bytes(fmt::format("{}", n));
    REQUIRE(parsed.has_value());
    CHECK(*parsed == n);
  }
  for (const double rate : {1.0, 2.039e12, 3.35e12, 26e9}) {
    CHECK(parse_bandwidth(fmt::format("{}", BytesPerSecond{rate})).value().count() ==
          rel(rate, 1e-9));
  }
  for (const double t : {3e-9, 1.5e-6, 2e-3, 7.0, 1800.0}) {
    CHECK(parse_duration(fmt::format("{}", Seconds{t})).value().count() == rel(t, 1e-9));
  }
}

TEST_CASE("binary and decimal units have their defined values") {
  CHECK(parse_bytes("80 GiB") == 80_GiB);
  CHECK(parse_bytes("80GB") == Bytes{80'000'000'000});
  CHECK(parse_bytes("1.5 KiB") == Bytes{1536});
  CHECK(parse_flops("312 TFLOP/s").value().count() == rel(312e12));
}

TEST_CASE("a quantity without its unit or with another unit is refused") {
  for (const std::string text : {"", "80", "GiB", "80 GiBs", "-1 GiB", "nan GiB", "inf B",
                                 "1e300 TiB", "80 GiB/s", "80 GiB x", "0x10 B", "1,5 GiB"}) {
    INFO(text);
    CHECK_FALSE(parse_bytes(text).has_value());
  }
  CHECK_FALSE(parse_bandwidth("4.8 TB").has_value());
  CHECK_FALSE(parse_duration("4 m").has_value());
}

TEST_CASE("texts of times beyond the clock and of sizes beyond 1 EiB are refused") {
  CHECK(parse_duration("9000000 s").has_value());
  CHECK_FALSE(parse_duration("9000001 s").has_value());
  CHECK_FALSE(parse_duration("2501 h").has_value());
  CHECK(parse_bytes("1048576 TiB").has_value());
  CHECK_FALSE(parse_bytes("1048577 TiB").has_value());
}

TEST_CASE("quoted input is bounded and its UTF-8 stays valid") {
  CHECK(excerpt("short") == "short");
  CHECK(excerpt(std::string(81, 'a')) == std::string(80, 'a') + "...");
  CHECK(excerpt("aaa\xC3\xA9", 4) == "aaa...");  // half of an e with an accent
  CHECK(excerpt("\x80\x80\x80\x80\x80\x80", 5).size() == 8);
  const std::string message =
      InputError{"f.json: /a: expected " + std::string(1 << 20, 'x') + "; hint"}.what();
  CHECK(message.size() < 5000);
  CHECK(message.starts_with("f.json: /a: expected x"));
  CHECK(message.ends_with("x; hint"));
}

TEST_CASE("rounding up never loses a byte and is idempotent") {
  for (const Bytes n : {0_B, 1_B, 511_B, 512_B, 513_B}) {
    const Bytes up = round_up(n, 512_B);
    CHECK(up >= n);
    CHECK(up - n < 512_B);
    CHECK(round_up(up, 512_B) == up);
  }
}

TEST_CASE("element formats know their width") {
  for (const auto& entry : kDtypes) {
    CHECK(parse_dtype(entry.name) == entry.dtype);
    CHECK(name_of(entry.dtype) == entry.name);
    CHECK(bytes_of(8, entry.dtype).count() == entry.bits);
  }
  CHECK(bytes_of(3, Dtype::kInt4) == 2_B);  // the half byte is rounded up
  CHECK(parse_dtype("float16") == Dtype::kFp16);
  CHECK_FALSE(parse_dtype("fp17").has_value());
}

TEST_CASE("the error for an unknown name suggests the nearest one, else known ones") {
  const std::vector<std::string> known{"zeromerge", "h2o", "full"};
  CHECK(unknown_name("method", "zero-merge", known) ==
        "unknown method \"zero-merge\"; did you mean \"zeromerge\"?");
  CHECK(unknown_name("method", "quantum", known) ==
        "unknown method \"quantum\" (full, h2o, zeromerge)");
  std::vector<std::string> many;
  for (int i = 100; i < 142; ++i) many.push_back(std::to_string(i));
  CHECK(unknown_name("model", "nothing like it", many).ends_with("138, 139, and 2 more)"));
  // Long names: the number of names is limited by the space.
  const std::vector<std::string> labels(30, std::string(300, 'a'));
  CHECK(unknown_name("point", "b", labels).ends_with("aa, and 28 more)"));
}

TEST_CASE("a hint is given only for a likely misspelling") {
  const auto near = [](std::string_view word, const std::vector<std::string>& known) {
    return nearest(word, known);
  };
  // Up to five letters: one inserted, omitted or replaced by a neighbour, or two swapped.
  CHECK(near("bach", {"batch"}) == "batch");
  CHECK(near("gpuu", {"gpu"}) == "gpu");
  CHECK(near("h20", {"h2o"}) == "h2o");
  CHECK(near("modle", {"model"}) == "model");
  CHECK(near("rnu", {"run"}) == "run");
  CHECK(near("axis", {"axes"}) == "axes");
  CHECK(near("modwl", {"model"}) == "model");  // a neighbouring key
  CHECK(near("name", {"nvme"}).empty());       // a consonant instead of a vowel
  CHECK(near("gpu", {"tpu"}) == "tpu");
  CHECK(near("gpu", {"gp2"}).empty());
  CHECK(near("v100", {"B200"}).empty());
  CHECK(near("scale", {"cache"}).empty());
  CHECK(near("x", {"k", "tp", ""}).empty());
  CHECK(near("", {"k", "tp"}).empty());
  // Longer words: two letters, or a third of the shorter word.
  CHECK(near("pormtp_tokens", {"prompt_tokens"}) == "prompt_tokens");
  CHECK(near("mehtodd", {"method"}) == "method");
  CHECK(near("figures", {"features"}) == "");  // three letters
  CHECK(near("max_batched_tokens", {"max_num_batched_tokens"}) == "max_num_batched_tokens");
  // The nearest of several, regardless of their order; case is ignored.
  CHECK(near("OUTPUT_TOKEN", {"prompt_tokens", "output_tokens"}) == "output_tokens");
  CHECK(near("output_token", {"output_tokens", "output_tokenx"}) == "output_tokens");
}

TEST_CASE("an unknown catalogue name: similar names, some others, and the command to list them") {
  KnownNames known{.kind = "model", .list_command = "kvsim list models"};
  known.names = {"alpha-1b", "alpha-2b", "beta-7b-chat"};
  known.aliases = {"org/Gamma"};
  CHECK(unknown_entry(known, "alpha-3b") ==
        "unknown model \"alpha-3b\"; did you mean \"alpha-1b\"?");
  CHECK(unknown_entry(known, "org/gama") ==
        "unknown model \"org/gama\"; did you mean \"org/Gamma\"?");
  CHECK(unknown_entry(known, "user/Beta-7b-chat") ==
        "unknown model \"user/Beta-7b-chat\"; did you mean \"beta-7b-chat\"?");
  CHECK(unknown_entry(known, "7B_Chat") ==
        "unknown model \"7B_Chat\"; did you mean \"beta-7b-chat\"?");
  CHECK(unknown_entry(known, "alph")
            .ends_with(
                "did you mean one of alpha-1b, alpha-2b? `kvsim list models alph` lists them"));
  CHECK(unknown_entry(known, "zzz") ==
        "unknown model \"zzz\" (known: alpha-1b, alpha-2b, beta-7b-chat); `kvsim list models` "
        "lists all");
  CHECK(folded_name("Llama 3.1_8B") == "llama-3.1-8b");
  CHECK(squeezed_name("Llama 3.1_8-B") == "llama3.18b");
}

TEST_CASE("a message is complete even if the input held a NUL") {
  using namespace std::string_literals;
  CHECK(std::string{InputError{"model \"a\0b\" is unknown"s}.what()} == "model \"a b\" is unknown");
}

TEST_CASE("a result is a value or a reason, and reading the absent one is a contract violation") {
  const Result<int, std::string> yes{3};
  const Result<int, std::string> no{std::string{"needs 2 GiB more"}};
  CHECK(yes.value() == 3);
  CHECK(no.error() == "needs 2 GiB more");
  CHECK_THROWS_AS((void)no.value(), ContractError);
}

TEST_CASE("files of a folder come in order and a folder that cannot be listed has a reason") {
  const std::filesystem::path folder = test::fresh("files_in");
  for (const char* name : {"b.csv", "a.csv", "c.json", "csv"}) test::write(folder / name, "");
  CHECK(files_in(folder, ".csv") == std::vector{folder / "a.csv", folder / "b.csv"});
  CHECK(files_in(folder, ".gp").empty());
  try {
    (void)files_in(folder / "absent", ".csv");
    FAIL("listed what is not there");
  } catch (const InputError& error) {
    CHECK(error.what() ==
          (folder / "absent").string() + ": cannot be read: No such file or directory");
  }
}

}  // namespace
}  // namespace kvsim
