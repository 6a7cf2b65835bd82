// Grammars of the free-text cells of published figures.

#include <optional>
#include <string>
#include <vector>

#include "tests/support/check.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {
namespace {

using test::rel;

TEST_CASE("numbers with suffixes") {
  CHECK(number_of("60K") == 60'000.0);
  CHECK(number_of("1M") == 1'000'000.0);
  CHECK(number_of(" 512 ") == 512.0);
  CHECK(number_of("128,000") == 128'000.0);
  CHECK(number_of("0.5") == 0.5);
  CHECK(number_of("5%") == 0.05);
  for (const char* text : {"", "LongBench", "12 GB", "K", "%", "nan", "inf", "1e400", "4x"}) {
    INFO(std::string{text});
    CHECK_FALSE(number_of(text));
  }
}

TEST_CASE("a number is found next to its name within one clause") {
  CHECK(number_at("budget 1024, buffer 128", "budget") == 1024.0);
  CHECK(number_at("budget 1024, buffer 128", "buffer") == 128.0);
  CHECK(number_at("alpha=0.6 lambda=0.98", "lambda") == 0.98);
  CHECK(number_at("25% retrieval heads", "retrieval heads") == 0.25);
  CHECK(number_at("2048 total, window 32, sum", "total") == 2048.0);
  CHECK(number_at("gpu_memory_utilization 0.9, max_model_len 8192", "max_model_len") == 8192.0);
  CHECK(number_at("peak; total_gpu_memory 79.18 GiB", "total_gpu_memory") == 79.18);
  // The comma separates them: 1024 is not the value of the buffer.
  CHECK_FALSE(number_at("budget 1024, buffer", "buffer"));
  CHECK_FALSE(number_at("window", "window"));
  CHECK_FALSE(number_at("", "window"));
}

TEST_CASE("words are whole words") {
  CHECK(has_word("x vs FP16 peak", "peak"));
  CHECK_FALSE(has_word("speak up", "peak"));
  CHECK(without_brackets("fp16 (inferred; text says fp32)") == "fp16");
  CHECK(without_brackets(" A (b (c)) d ") == "a  d");
}

TEST_CASE("prompt lengths") {
  const auto tokens = [](const char* text, const char* note = "") -> std::int64_t {
    const auto prompt = parse_prompt(text, note);
    return prompt ? prompt->tokens : -1;
  };
  CHECK(tokens("2048") == 2048);
  CHECK(tokens("60K") == 60'000);
  CHECK(tokens("1M") == 1'000'000);
  CHECK(tokens("161 avg (ShareGPT)") == 161);
  CHECK(tokens("LongBench avg (about 6K)") == 6000);
  CHECK(tokens("4096 total") == 4096);
  CHECK(parse_prompt("4096 total", "")->total);
  // 8K is 8,000, unless the note spells out the binary number and not the decimal one.
  CHECK(tokens("8K") == 8000);
  CHECK(tokens("8K", "80x8x128 B x 8192 x 128") == 8192);
  CHECK(tokens("128K", "x 128000 B; 131,072 tokens would be more") == 128'000);
  CHECK(parse_prompt("short", "")->is_short);
  CHECK(parse_prompt("short (cache allocated for 8192)", "")->allocated == 8192);
  for (const char* text : {"", "LongBench", "RULER 4k and 16k", "OpenOrca (up to 1024)",
                           "CNN/DM (<=1919)", "mixed", "0", "-5", "1.5", "1e12"}) {
    INFO(std::string{text});
    CHECK(tokens(text) == -1);
  }
}

TEST_CASE("output lengths") {
  const auto plain = parse_output("512", 100);
  REQUIRE(plain);
  CHECK(plain->tokens == 512);
  CHECK_FALSE(plain->steady);
  CHECK(parse_output("338 avg", 161)->tokens == 338);
  CHECK(parse_output("prefill only", 161)->tokens == 0);
  CHECK(parse_output("prompt", 161)->tokens == 0);
  CHECK_FALSE(parse_output("prompt", 161)->steady);
  CHECK(parse_output("<=128", 31374)->tokens == 128);
  CHECK(parse_output("about 69 (inferred tokens)", 100)->tokens == 69);
  CHECK(parse_output("mean 290-291 (tokens/s over samples/s)", 1024)->tokens == 291);
  CHECK(parse_output("decode", 20'000)->steady);
  CHECK(parse_output("decode at 52K", 20'000)->context == 52'000);
  const auto reached = parse_output("34K (to 54K total)", 20'000);
  REQUIRE(reached);
  CHECK(reached->tokens == 34'000);
  CHECK(reached->by_context);
  CHECK(parse_output("to 54K", 20'000)->tokens == 34'000);
  const auto range = parse_output("20K-54K", 20'000);
  REQUIRE(range);
  CHECK(range->context == 20'000);
  CHECK(range->tokens == 34'000);
  CHECK(parse_output("0", 100)->tokens == 0);
  for (const char* text : {"", "long", "to 10K", "1, 2, 3", "1.5"}) {
    INFO(std::string{text});
    CHECK_FALSE(parse_output(text, 20'000));
  }
}

TEST_CASE("batches") {
  CHECK(parse_batch("64", "")->sequences == 64);
  CHECK(parse_batch("concurrency 250", "")->sequences == 250);
  CHECK(parse_batch("concurrency 250", "")->in_flight);
  for (const char* text : {"max that fits", "as many as fit (kv fraction 0.90-0.95)",
                           "raised until OOM", "max batch each", "in-flight"}) {
    INFO(std::string{text});
    CHECK(parse_batch(text, "")->as_many_as_fit);
  }
  CHECK_FALSE(parse_batch("max that fits", "")->in_flight);
  CHECK(parse_batch("in-flight", "")->in_flight);
  CHECK(parse_batch("max that fits", "largest power-of-2 batch that fits")->power_of_two);
  for (const char* text : {"", "many", "0", "2.5", "1 2"}) {
    INFO(std::string{text});
    CHECK_FALSE(parse_batch(text, ""));
  }
}

TEST_CASE("formats") {
  struct Case {
    const char* text;
    Dtype weights;
    std::optional<Dtype> activations, cache;
    std::optional<std::int32_t> group;
  };
  const std::vector<Case> cases{
      {"fp16", Dtype::kFp16, {}, {}, {}},
      {"FP16", Dtype::kFp16, {}, {}, {}},
      {"fp16 (inferred; text says fp32)", Dtype::kFp16, {}, {}, {}},
      {"int8 weights", Dtype::kInt8, {}, {}, {}},
      {"int4 weights g32", Dtype::kInt4, {}, {}, 32},
      {"int4 weights+KV", Dtype::kInt4, {}, Dtype::kInt4, {}},
      {"mxfp4", Dtype::kFp4, {}, {}, {}},
      {"W4A16", Dtype::kInt4, Dtype::kFp16, {}, {}},
      {"W8A8", Dtype::kInt8, Dtype::kInt8, {}, {}},
      {"W4A8KV4", Dtype::kInt4, Dtype::kInt8, Dtype::kInt4, {}},
      {"fp8 weights", Dtype::kFp8E4m3, {}, {}, {}},
  };
  for (const Case& c : cases) {
    INFO(std::string{c.text});
    const auto format = parse_format(c.text);
    REQUIRE(format);
    CHECK(format->weights == c.weights);
    CHECK(format->activations == c.activations);
    CHECK(format->cache == c.cache);
    CHECK(format->group == c.group);
  }
  for (const char* text : {"", "W5A16", "Wx", "W4A", "K4V2", "nonsense"}) {
    INFO(std::string{text});
    CHECK_FALSE(parse_format(text));
  }
}

TEST_CASE("units of memory") {
  constexpr double kGi = 1073741824.0;
  CHECK(bytes_in("GiB", "", true) == kGi);
  CHECK(bytes_in("GB (GiB)", "", false) == kGi);
  CHECK(bytes_in("GiB (labelled GB)", "", true) == kGi);
  CHECK(bytes_in("GB (1e9, torch max reserved so far)", "", true) == 1e9);
  CHECK(bytes_in("GB", "max_memory_reserved, 1e9", true) == 1e9);
  CHECK(bytes_in("GB", "", true) == kGi);  // like the rest of its document
  CHECK(bytes_in("GB", "", false) == 1e9);
  CHECK(bytes_in("GB", "so the unit is GiB", false) == kGi);
  CHECK_FALSE(bytes_in("tokens", "", true));
}

}  // namespace
}  // namespace kvsim
