// Formats that engines ship: worked examples of codes, bytes and rows, and their laws. The numbers
// of the examples were computed from the definitions, independently of this program.

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/math/low_float.hpp"
#include "models/math/low_int.hpp"
#include "models/math/turboquant.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

using namespace kvsim;
using test::rel;

namespace {

using Row = std::vector<float>;

const Row kA{.10009765625F,   -.44921875F, .80078125F, 1.296875F,  -2.59375F,  3.09375F,
             -.050048828125F, .55078125F,  1.046875F,  -1.703125F, .30078125F, -.2001953125F,
             2.203125F,       -.8984375F,  .6484375F,  -3.703125F};
const Row kD{.5F, -1.25F, 2, .03125F, -.75F, 1.5F, -2.5F, .875F};

void check_row(const Row& found, const Row& expected, double tolerance = 1e-6) {
  REQUIRE(found.size() >= expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == doctest::Approx(expected[i]).epsilon(tolerance));
  }
}

std::shared_ptr<const Method> method_of(const std::string& name, std::int32_t head_dim = 128,
                                        std::int32_t layers = 8, Params params = {}) {
  return make_method({name, std::move(params), {}}, 64,
                     {.recorded = Dtype::kBf16,
                      .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim},
                      .n_layers = layers});
}

/// A key or value row of the method's store, as read by attention.
Row stored_row(const std::string& name, Row row, bool is_key, Params params = {},
               Dtype recorded = Dtype::kBf16) {
  const auto method = method_of(name, static_cast<std::int32_t>(row.size()), 8, std::move(params));
  const auto& parts = as_composed(*method).parts();
  const auto d = static_cast<std::int32_t>(row.size());
  auto store = parts.store->start({.layer = 4, .n_layers = 8, .head_dim = d}, recorded);
  EntryTable table{d};
  Row other(row.size(), 0.25F);
  table.append(0, is_key ? row : other, is_key ? other : row);
  store->appended(table, 0);
  const auto out = is_key ? table.key(0) : table.value(0);
  return {out.begin(), out.end()};
}

std::int64_t entry_bytes(const std::string& name, std::int32_t head_dim = 128, Params params = {}) {
  const auto method = method_of(name, head_dim, 8, std::move(params));
  const LayerShape one{.n_heads = 1, .n_kv_heads = 1, .head_dim = head_dim};
  const auto bytes = [&](std::int64_t entries) {
    return method->rows_bytes(4, one, Dtype::kBf16, entries, entries).kv.count();
  };
  return bytes(11) - bytes(10);
}

double relative_error(const std::string& name, bool is_key, bool outliers,
                      Dtype recorded = Dtype::kBf16) {
  std::mt19937_64 random{7};
  std::normal_distribution<float> normal;
  double error = 0;
  double sum = 0;
  for (int n = 0; n < 4096; ++n) {
    Row row(128);
    for (float& x : row) x = normal(random);
    if (outliers) {
      for (const std::size_t channel : {5U, 69U, 100U}) row[channel] *= 8;
    }
    for (float& x : row) x = as_stored(x, Dtype::kBf16);
    const Row out = stored_row(name, row, is_key, {}, recorded);
    for (std::size_t i = 0; i < row.size(); ++i) {
      error += std::pow(static_cast<double>(out[i]) - row[i], 2);
      sum += std::pow(static_cast<double>(row[i]), 2);
    }
  }
  return error / sum;
}

}  // namespace

TEST_CASE("E2M1 and E4M3: ties, saturation and bytes") {
  const Row ties{.25F, .75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, -.25F, -5};
  const auto rounded = [&](E2m1Tie tie) {
    Row out;
    for (const float x : ties) out.push_back(e2m1_value(e2m1_code(x, tie)));
    return out;
  };
  CHECK(rounded(E2m1Tie::kEven) == Row{0, 1, 1, 2, 2, 4, 4, -0.F, -4});
  CHECK(rounded(E2m1Tie::kAway) == Row{.5F, 1, 1.5F, 2, 3, 4, 6, -.5F, -6});
  CHECK(rounded(E2m1Tie::kLower) == Row{0, .5F, 1, 1.5F, 2, 3, 4, -.5F, -6});
  CHECK(e4m3_byte(449) == 126);
  CHECK(e4m3_byte(17) == 88);
  CHECK(e4m3_byte(19) == 90);
  CHECK(e4m3_byte(0x1p-10F) == 0);
  CHECK(e4m3_byte(1.5F * 0x1p-10F) == 1);
  for (int byte = 0; byte < 255; ++byte) {
    if (byte == 127) continue;  // NaN
    const auto value = e4m3_value(static_cast<std::uint8_t>(byte));
    CHECK(e4m3_value(e4m3_byte(value)) == value);
    CHECK(round_to_fp8(value, Fp8::kE4m3) == value);
  }
}

TEST_CASE("a Hadamard rotation applied twice is the row times its length") {
  Row row = kA;
  hadamard(row);
  double norm = 0;
  double before = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    norm += static_cast<double>(row[i]) * row[i];
    before += static_cast<double>(kA[i]) * kA[i];
  }
  CHECK(norm == rel(16 * before, 1e-6));
  hadamard(row);
  for (std::size_t i = 0; i < row.size(); ++i) CHECK(row[i] == rel(16 * kA[i], 1e-6));
}

TEST_CASE("QuaRot: the worked example's codes and row, and its laws") {
  Row rotated = kA;
  hadamard(rotated);
  for (float& x : rotated) x /= 4;
  const QuarotRow scale = quarot_row(rotated, 15, 1);
  CHECK(scale.step == rel(.4580485, 1e-6));
  CHECK(scale.zero == 9);
  const std::array<int, 16> codes{9, 11, 10, 7, 10, 10, 5, 14, 12, 0, 6, 6, 9, 15, 10, 10};
  Row expected;
  for (std::size_t i = 0; i < 16; ++i) {
    CAPTURE(i);
    CHECK(quarot_code(rotated[i], scale) == codes[i]);
    expected.push_back(.4580485F * static_cast<float>(codes[i] - 9) / 4);
  }
  hadamard(expected);
  check_row(stored_row("quarot", kA, true), expected, 1e-5);
  check_row(stored_row("quarot", kA, false), expected, 1e-5);
  // Zero is exact; without clipping 8 bits are within half a step of the rotated row.
  CHECK(stored_row("quarot", Row(16, 0.F), true) == Row(16, 0.F));
  const QuarotRow fine = quarot_row(rotated, 255, 1);
  for (const float x : rotated) {
    CHECK(std::abs(quarot_value(quarot_code(x, fine), fine) - x) <= fine.step * .5001F);
  }
  // Clipping to half of a symmetric range: 4 becomes 2, while half of 4 is unchanged.
  const QuarotRow half = quarot_row(Row{-4, 1, 4, 0}, 4, .5F);
  CHECK(half.step == 1);
  CHECK(half.zero == 2);
  CHECK(quarot_value(quarot_code(4, half), half) == 2);
  CHECK(quarot_value(quarot_code(1, half), half) == 1);
  CHECK(entry_bytes("quarot", 128, {{"bits", std::int64_t{2}}}) == 72);
  CHECK(entry_bytes("quarot", 128, {{"bits", std::int64_t{8}}}) == 264);
  // A step rotates the new key and each query: 128^2 multiply-adds each, two KV heads.
  const auto method = method_of("quarot");
  const auto plain = method_of("lmdeploy-int4");
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 128};
  CHECK(method->decode_traffic(4, shape, Dtype::kBf16, 100, false).extra_flops -
            plain->decode_traffic(4, shape, Dtype::kBf16, 100, false).extra_flops ==
        2 * 3 * 2.0 * 128 * 128);
  CHECK_THROWS_AS((void)method_of("quarot", 96), InputError);
  CHECK_THROWS_AS((void)method_of("quarot", 128, 8, {{"clip", 0.0}}), InputError);
}

TEST_CASE("NVFP4: the worked example's codes, scale and row") {
  const std::array<int, 16> nibbles{0, 9, 3, 4, 14, 6, 8, 2, 3, 13, 1, 9, 6, 11, 2, 15};
  for (const float global : {1.0F, .25F}) {
    const Nvfp4Group group = nvfp4_group(kA, global, Nvfp4Search::kMax6);
    CHECK(group.scale == (global == 1 ? 50 : 66));
    for (std::size_t i = 0; i < 16; ++i) CHECK(group.codes[i] == nibbles[i]);
  }
  check_row(stored_row("nvfp4", kA, true),
            {0, -.3125F, .9375F, 1.25F, -2.5F, 2.5F, -0.F, .625F, .9375F, -1.875F, .3125F, -.3125F,
             2.5F, -.9375F, .625F, -3.75F});
  const Nvfp4Group four = nvfp4_group(kA, 1, Nvfp4Search::kFourOverSix);
  CHECK(four.scale == 55);
  check_row(stored_row("nvfp4-4over6", kA, false),
            {0, -.46875F, .9375F, 1.40625F, -2.8125F, 2.8125F, -0.F, .46875F, .9375F, -1.875F,
             .46875F, -0.F, 1.875F, -.9375F, .46875F, -3.75F});
  const Row levels{4, 3, 2, 1, -4, -3, -2, -1, 4, 3, 2, 1, .5F, -.5F, 0, 4};
  CHECK(nvfp4_group(levels, 1, Nvfp4Search::kMax6).scale == 51);
  CHECK(nvfp4_group(levels, 1, Nvfp4Search::kFourOverSix).scale == 56);
  CHECK(stored_row("nvfp4-4over6", levels, true) == levels);
  check_row(stored_row("nvfp4", levels, true), {4.125F, 2.75F, 2.0625F, 1.03125F});
}

TEST_CASE("NVFP4: laws of scales") {
  std::mt19937_64 random{3};
  std::normal_distribution<float> normal;
  for (int n = 0; n < 200; ++n) {
    Row row(16);
    for (float& x : row) x = normal(random);
    const auto error = [&](Nvfp4Search search) {
      const Nvfp4Group group = nvfp4_group(row, 1, search);
      float sum = 0;
      for (std::size_t i = 0; i < 16; ++i) sum += std::pow(row[i] - nvfp4_value(group, i, 1), 2.F);
      return sum;
    };
    CHECK(error(Nvfp4Search::kFourOverSix) <= error(Nvfp4Search::kMax6));
    Row scaled = row;
    for (float& x : scaled) x *= 8;
    const Nvfp4Group a = nvfp4_group(row, 1, Nvfp4Search::kMax6);
    const Nvfp4Group b = nvfp4_group(scaled, 8, Nvfp4Search::kMax6);
    CHECK(a.scale == b.scale);
    for (std::size_t i = 0; i < 16; ++i) CHECK(a.codes[i] == b.codes[i]);
  }
  // A group below half the smallest scale becomes zero.
  Row small(16, 6 * 0x1p-10F);
  CHECK(nvfp4_group(small, 1, Nvfp4Search::kMax6).scale == 0);
}

TEST_CASE("int8 and fp8 per token-head: the worked example") {
  const float step = int8_token_step(kD);
  CHECK(step == rel(.01968504F, 1e-6));
  const std::array<int, 8> nearest{25, -64, 102, 2, -38, 76, -127, 44};
  const std::array<int, 8> truncated{25, -63, 101, 1, -38, 76, -127, 44};
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(int8_token_code(kD[i], step, false) == nearest[i]);
    CHECK(int8_token_code(kD[i], step, true) == truncated[i]);
  }
  check_row(stored_row("int8-per-token-head", kD, true),
            {.492126F, -1.259843F, 2.007874F, .03937008F, -.7480315F, 1.496063F, -2.5F, .8661417F});
  check_row(stored_row("fp8-per-token-head", kD, false),
            {.4910714F, -1.25F, 1.964286F, .03069197F, -.7142857F, 1.428571F, -2.5F, .8928572F});
  const Row cut = stored_row("int8-per-token-head", kD, true, {{"rounding", std::string{"trunc"}}});
  for (std::size_t i = 0; i < 8; ++i) CHECK(std::abs(cut[i]) <= std::abs(kD[i]) + 1e-6F);
}

TEST_CASE("int4 per token-head: the worked example") {
  Row w = kD;
  hadamard(w);
  CHECK(w == Row{.40625F, -1.90625F, -.40625F, .90625F, 2.15625F, 9.34375F, -5.15625F, -1.34375F});
  const Int4Rotated step = int4_rotated_step(w);
  CHECK(step.zero == 5);
  CHECK(step.word() == 1064793973U);
  CHECK(step.stored() == rel(.9666662F, 1e-7));
  const std::array<int, 8> codes{5, 3, 5, 6, 7, 15, 0, 4};
  for (std::size_t i = 0; i < 8; ++i) CHECK(int4_rotated_code(w[i], step) == codes[i]);
  check_row(
      stored_row("int4-per-token-head", kD, true, {}, Dtype::kFp32),
      {.6041664F, -1.329166F, 1.812499F, -.1208333F, -.8458329F, 1.570833F, -2.537499F, .8458329F},
      2e-6);
}

TEST_CASE("TurboQuant: the worked example's codes and rows") {
  float norm = 0;
  for (const float x : kA) norm += x * x;
  norm = std::sqrt(norm);
  CHECK(as_stored(norm, Dtype::kFp16) == 6.5625F);
  Row y = kA;
  hadamard(y);
  for (float& x : y) x /= 4 * norm;
  const std::array<int, 16> four{8, 10, 8, 6, 9, 9, 3, 13, 10, 0, 4, 5, 7, 13, 9, 9};
  const std::array<int, 16> three{4, 5, 4, 3, 4, 4, 1, 6, 5, 0, 2, 2, 3, 6, 4, 4};
  for (std::size_t i = 0; i < 16; ++i) {
    CAPTURE(i);
    CHECK(turboquant_code(y[i], 4, Codebook::kEngine, 16) == four[i]);
    CHECK(turboquant_code(y[i], 3, Codebook::kEngine, 16) == three[i]);
  }
  const Row key = stored_row("turboquant-4bit-nc", kA, true);
  check_row(
      key,
      {.101048F, -.6042988F, .6706614F, 1.483468F, -2.587413F, 3.045304F, -.2201895F, .5926169F,
       1.212916F, -1.675317F, .4823029F, -.03868026F, 2.103767F, -.7844662F, .7181037F, -3.688283F},
      2e-5);
  double length = 0;
  for (const float x : key) length += static_cast<double>(x) * x;
  CHECK(std::sqrt(length) == rel(6.5625, 1e-6));
  const TurboQuantValue value = turboquant_value(kA, 4);
  CHECK(value.step == .453125F);
  const std::array<int, 16> codes{8, 7, 10, 11, 2, 15, 8, 9, 10, 4, 9, 8, 13, 6, 10, 0};
  for (std::size_t i = 0; i < 16; ++i) CHECK(turboquant_value_code(kA[i], value) == codes[i]);
  check_row(stored_row("turboquant-4bit-nc", kA, false),
            {-.078125F, -.53125F, .828125F, 1.28125F, -2.796875F, 3.09375F});
  const TurboQuantValue coarse = turboquant_value(kA, 3);
  CHECK(as_stored(coarse.step, Dtype::kFp16) == .9711914F);
  const std::array<int, 16> few{4, 3, 5, 5, 1, 7, 4, 4, 5, 2, 4, 4, 6, 3, 4, 0};
  for (std::size_t i = 0; i < 16; ++i) CHECK(turboquant_value_code(kA[i], coarse) == few[i]);
  CHECK(stored_row("turboquant-4bit-nc", Row(16, 0.F), true) == Row(16, 0.F));
}

TEST_CASE("LMDeploy's int8, int4 and TurboQuant: the worked example") {
  const LmdeployRow eight = lmdeploy_row(kD, 255, false, Dtype::kFp16);
  CHECK(eight.step == rel(.01765442F, 1e-6));
  CHECK(eight.zero == -2.5F);
  const std::array<int, 8> codes{170, 71, 255, 143, 99, 227, 0, 191};
  const Row row{.5019531F, -1.246094F, 2, .02539062F, -.7519531F, 1.507812F, -2.5F, .8710938F};
  const LmdeployRow four = lmdeploy_row(kD, 15, false, Dtype::kFp16);
  CHECK(four.step == rel(.3000488F, 1e-6));
  const std::array<int, 8> few{10, 4, 15, 8, 6, 13, 0, 11};
  for (std::size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(lmdeploy_code(kD[i], eight) == codes[i]);
    CHECK(lmdeploy_value(codes[i], eight) == rel(row[i], 1e-6));
    CHECK(lmdeploy_code(kD[i], four) == few[i]);
  }
  CHECK(lmdeploy_code(3, lmdeploy_row(Row(8, 3.F), 255, false, Dtype::kFp16)) == 0);
  CHECK(stored_row("lmdeploy-int8", Row(8, 3.F), true) == Row(8, 3.F));
  // The inverse of the step exceeds fp16: values stay between the row's ends.
  Row tiny;
  for (int i = 0; i < 8; ++i) tiny.push_back(1e-4F * static_cast<float>(i));
  const LmdeployRow small = lmdeploy_row(tiny, 255, false, Dtype::kFp16);
  for (const float x : tiny) {
    const float value = lmdeploy_value(lmdeploy_code(x, small), small);
    CHECK(value >= -1e-5F);
    CHECK(value <= 8e-4F);
  }

  Row y = kA;
  hadamard(y);
  for (float& x : y) x /= 4;
  std::vector<std::uint8_t> index(16);
  std::vector<std::uint8_t> sign(16);
  const SignedKey key = lmdeploy_turbo_key(y, index, sign);
  CHECK(key.norm == rel(6.562113F, 1e-6));
  CHECK(key.half_step == rel(.04481165F, 1e-5));
  const std::array<int, 16> three{4, 5, 4, 3, 4, 4, 1, 6, 5, 0, 2, 2, 3, 6, 4, 4};
  const std::array<int, 16> signs{0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1};
  for (std::size_t i = 0; i < 16; ++i) {
    CAPTURE(i);
    CHECK(index[i] == three[i]);
    CHECK(sign[i] == signs[i]);
  }
}

TEST_CASE("SGLang's fp4 and UltraQuant: the worked example") {
  CHECK(mx16_group(kA).byte() == 127);
  const std::array<int, 16> codes{0, 9, 2, 3, 13, 5, 8, 1, 2, 11, 1, 8, 4, 10, 1, 14};
  for (std::size_t i = 0; i < 16; ++i) {
    CAPTURE(i);
    CHECK(e2m1_code(kA[i], E2m1Tie::kAway) == codes[i]);
  }
  Row row = kA;
  for (const float x : kA) row.push_back(as_stored(x / 4, Dtype::kBf16));
  const PowerGroup group = ultraquant_group(row);
  CHECK(group.byte() == 126);
  const std::array<int, 16> clipped{0, 10, 3, 5, 15, 7, 0, 2, 4, 13, 1, 9, 6, 12, 3, 15};
  for (std::size_t i = 0; i < 16; ++i) {
    CAPTURE(i);
    const auto code = e2m1_code(row[i] * 2, E2m1Tie::kLower);
    CHECK(e2m1_value(code) ==
          e2m1_value(static_cast<std::uint8_t>(clipped[i])));  // the sign of zero may differ
  }
  CHECK(ultraquant_group(Row(32, 0.F)).byte() == 0);
}

TEST_CASE("formats store the bytes that their definitions state") {
  struct Format {
    const char* name;
    std::int64_t bytes;  // of a key and a value of 128 channels
  };
  for (const Format& format :
       {Format{"nvfp4", 144}, Format{"nvfp4-4over6", 144}, Format{"fp8-per-token-head", 264},
        Format{"int8-per-token-head", 264}, Format{"int4-per-token-head", 136},
        Format{"quarot", 136}, Format{"turboquant-k8v4", 196}, Format{"turboquant-4bit-nc", 134},
        Format{"turboquant-k3v4-nc", 118}, Format{"turboquant-3bit-nc", 102},
        Format{"lmdeploy-int8", 264}, Format{"lmdeploy-int4", 136},
        Format{"lmdeploy-turboquant", 102}, Format{"fp4-e2m1", 144}, Format{"ultraquant-4bit", 136},
        Format{"fp8-e4m3", 256}}) {
    CAPTURE(format.name);
    CHECK(entry_bytes(format.name) == format.bytes);
  }
  CHECK(entry_bytes("ultraquant-4bit", 256) == 272);
}

TEST_CASE("formats have the error of their definition on normal rows and on rows with outliers") {
  struct Format {
    const char* name;
    bool is_key;
    double normal, outliers;
    Dtype recorded = Dtype::kBf16;  // LMDeploy computes in the model's dtype
  };
  for (const Format& format :
       {Format{"fp8-per-token-head", true, 6.63e-4, 3.99e-4},
        Format{"int8-per-token-head", true, 4.15e-5, 2.81e-4},
        Format{"nvfp4", true, 9.04e-3, 8.57e-3}, Format{"nvfp4-4over6", true, 7.57e-3, 8.09e-3},
        Format{"fp4-e2m1", true, 1.27e-2, 2.12e-2},
        Format{"ultraquant-4bit", true, 1.78e-2, 1.61e-2},
        Format{"ultraquant-4bit", false, 1.80e-2, 3.39e-2},
        Format{"int4-per-token-head", true, 1.01e-2, 8.34e-3},
        Format{"quarot", true, 1.01e-2, 8.34e-3}, Format{"quarot", false, 1.01e-2, 8.34e-3},
        Format{"turboquant-4bit-nc", true, 9.21e-3, 8.49e-3},
        Format{"turboquant-k3v4-nc", true, 3.38e-2, 3.07e-2},
        Format{"turboquant-4bit-nc", false, 9.91e-3, 3.99e-2},
        Format{"turboquant-3bit-nc", false, 4.54e-2, 1.84e-1},
        Format{"lmdeploy-int8", true, 3.60e-5, 1.46e-4, Dtype::kFp16},
        Format{"lmdeploy-int4", false, 9.91e-3, 3.99e-2, Dtype::kFp16},
        Format{"lmdeploy-turboquant", true, 1.30e-2, 1.00e-2}}) {
    CAPTURE(format.name);
    CAPTURE(format.is_key);
    CHECK(relative_error(format.name, format.is_key, false, format.recorded) ==
          rel(format.normal, 0.03));
    CHECK(relative_error(format.name, format.is_key, true, format.recorded) ==
          rel(format.outliers, 0.03));
  }
}

TEST_CASE("a format keeps the layers that are named in the recorded format") {
  const LayerShape one{.n_heads = 4, .n_kv_heads = 2, .head_dim = 128};
  const auto bytes = [&](const Method& method, std::int32_t layer) {
    return method.rows_bytes(layer, one, Dtype::kBf16, 10, 10).kv.count();
  };
  const auto turbo = method_of("turboquant-4bit-nc");
  for (std::int32_t layer = 0; layer < 8; ++layer) {
    const bool kept = layer < 2 || layer >= 6;
    CHECK(bytes(*turbo, layer) == 10 * 2 * (kept ? 512 : 134));
    CHECK(turbo->layer_kind(layer) == turbo->layer_kind(kept ? 0 : 2));
  }
  CHECK(turbo->layer_kind(0) != turbo->layer_kind(2));
  CHECK_FALSE(turbo->has_equal_layers());
  CHECK(method_of("nvfp4")->has_equal_layers());
  const auto listed = method_of("nvfp4", 128, 8, {{"keep_layers", std::string{"1,3-4"}}});
  for (std::int32_t layer = 0; layer < 8; ++layer) {
    const bool kept = layer == 1 || layer == 3 || layer == 4;
    CHECK(bytes(*listed, layer) == 10 * 2 * (kept ? 512 : 144));
  }
  for (const char* wrong : {"8", "a", "1,", "3-1", "1;2", "-1", "1-", "99999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS((void)method_of("nvfp4", 128, 8, {{"keep_layers", std::string{wrong}}}),
                    InputError);
  }
  CHECK_THROWS_AS((void)method_of("nvfp4", 128, 8, {{"keep_first", std::int64_t{9}}}), InputError);
  // In a hybrid model, TurboQuant does not exempt any layer.
  const auto hybrid = make_method(
      {"turboquant-4bit-nc", {}, {}}, 64,
      {.recorded = Dtype::kBf16, .shape = one, .n_layers = 2, .ordinals = {-1, 0, -1, 1}});
  CHECK(bytes(*hybrid, 1) == 10 * 2 * 134);
}

TEST_CASE("formats refuse unsupported head sizes") {
  CHECK_THROWS_WITH_AS((void)method_of("nvfp4", 72),
                       "method \"nvfp4\": store=nvfp4: expected a head size divisible by 16 "
                       "(channels under one scale), got 72",
                       InputError);
  CHECK_THROWS_AS((void)method_of("turboquant-4bit-nc", 96), InputError);
  CHECK_NOTHROW((void)method_of("turboquant-k8v4", 96));
  CHECK_THROWS_AS((void)method_of("minicache+turboquant-4bit-nc"), InputError);
}

TEST_CASE("cache formats are found by the spellings of engines") {
  CHECK(find_cache_format("turboquant_4bit_nc") == "turboquant-4bit-nc");
  CHECK(find_cache_format("nvfp4") == "nvfp4");
  CHECK_FALSE(find_cache_format("snapkv").has_value());
  CHECK_FALSE(find_cache_format("full").has_value());
  CHECK(in_cache_format({"full", {}, {}}, "nvfp4").name == "nvfp4");
  CHECK(in_cache_format({"snapkv", {}, {}}, "nvfp4").name == "snapkv+nvfp4");
}
