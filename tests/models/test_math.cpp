#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/causal_attention.hpp"
#include "models/math/attention/rope.hpp"
#include "models/math/half.hpp"
#include "models/math/kmeans.hpp"
#include "models/math/lanes.hpp"
#include "models/math/quantise.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim {
namespace {

using test::rel;

std::vector<float> normals(std::size_t n, std::uint64_t seed) {
  test::Normal normal{seed};
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(normal());
  return out;
}

TEST_CASE(
    "the exponential of a lane is the library's to 2 ulp and vanishes for large negative values") {
  for (double x = 0; x > -708; x -= 0.0371) {
    const lanes::D4 got = lanes::exp_nonpositive(lanes::D4{x, -0.5, -100, x / 3});
    CHECK(got[0] == rel(std::exp(x), 5e-16));
    CHECK(got[3] == rel(std::exp(x / 3), 5e-16));
  }
  CHECK(lanes::exp_nonpositive(lanes::D4{} - 709.0)[0] == 0.0);
  CHECK(lanes::exp_nonpositive(lanes::D4{})[0] == 1.0);
}

TEST_CASE("the logarithm of a lane is the library's to 2 ulp, from the smallest to near 1") {
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    const lanes::D4 got = lanes::log_positive(lanes::D4{x, 0.5 + 1e-3, 1.0, 1e-16});
    CHECK(std::abs(got[0] - std::log(x)) <= 4.5e-16 * std::abs(std::log(x)));
    CHECK(got[2] == 0.0);
  }
  for (double away = 1.0 / 9007199254740992.0; away < 0.6; away *= 1.9) {  // input of -ln u
    const double x = 1.0 - away;
    const double got = lanes::log_positive(lanes::all(x))[3];
    CHECK(std::abs(got - std::log(x)) <= 4.5e-16 * std::abs(std::log(x)));
  }
}

TEST_CASE("rows by blocks equal the rows of group attention") {
  for (const std::int32_t group : {1, 4}) {
    for (const auto& [prompt, tokens, first] :
         {std::array{1, 2, 0}, std::array{31, 40, 7}, std::array{257, 257, 0}}) {
      const std::int32_t d = 9;
      std::vector<float> q(static_cast<std::size_t>(group * tokens * d));
      std::vector<float> keys(static_cast<std::size_t>(tokens * d));
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.7F * static_cast<float>(i));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        keys[i] = std::cos(1.3F * static_cast<float>(i * i % 1009));
      }
      GroupAttention attention{group, d, 0.3};
      std::int64_t rows = 0;
      each_causal_row(q, keys, group, d, tokens, prompt, first, 0.3, [&](const CausalRow& row) {
        CHECK(row.t == first + rows / group);
        CHECK(row.g == rows % group);
        ++rows;
        std::vector<float> at(static_cast<std::size_t>(group * d));
        for (std::int32_t g = 0; g < group; ++g) {
          std::copy_n(q.begin() + (g * tokens + row.t) * d, d, at.begin() + g * d);
        }
        attention.run_weights(at, std::span{keys}.first(static_cast<std::size_t>((row.t + 1) * d)),
                              {});
        REQUIRE(row.logits.size() == attention.entries());
        for (std::size_t i = 0; i < row.logits.size(); ++i) {
          REQUIRE(std::abs(row.logits[i] - attention.logits(row.g)[i]) < 1e-12);
          REQUIRE(std::abs(row.probabilities[i] - attention.probabilities(row.g)[i]) < 1e-13);
        }
      });
      CHECK(rows == (prompt - first) * group);
    }
  }
}

TEST_CASE("an entry hidden from one head has no weight in it and its usual weight in others") {
  GroupAttention attention{2, 1, 1.0};
  const std::vector<float> q{1, 1};
  const std::vector<float> keys{0, 0, 0};
  const std::vector<float> values{1, 2, 6};
  const double never = -std::numeric_limits<double>::infinity();
  attention.run(q, keys, values, std::vector<double>{0, 0, never, 0, 0, 0});
  CHECK(attention.output()[0] == doctest::Approx(1.5));  // over 1 and 2
  CHECK(attention.output()[1] == doctest::Approx(3.0));  // over all three
  CHECK(attention.probabilities(0)[2] == 0.0);
}

TEST_CASE("group attention is softmax attention, at odd sizes") {
  for (const std::int32_t group : {1, 2, 3, 4, 7}) {
    for (const std::int32_t d : {1, 3, 8, 31, 64}) {
      for (const std::int64_t tokens : {1, 2, 5, 31, 257}) {
        INFO("group ", group, " d ", d, " tokens ", tokens);
        const auto head = test::random_head(group, d, tokens, tokens);
        GroupAttention attention{group, d, head.view.scale};
        attention.run(test::queries_at(head.view, tokens - 1), head.keys, head.values, {});
        std::vector<std::int32_t> all(static_cast<std::size_t>(tokens));
        std::iota(all.begin(), all.end(), 0);
        for (std::int32_t g = 0; g < group; ++g) {
          const auto p = test::naive_attention(head.view, g, tokens - 1, all);
          double worst = 0;
          for (std::size_t i = 0; i < p.size(); ++i) {
            worst = std::max(worst, std::abs(attention.probabilities(g)[i] - p[i]));
          }
          CHECK(worst < 1e-14);
          for (std::int32_t j = 0; j < d; ++j) {
            double want = 0;
            for (std::size_t i = 0; i < p.size(); ++i) {
              want +=
                  p[i] *
                  static_cast<double>(
                      head.values[i * static_cast<std::size_t>(d) + static_cast<std::size_t>(j)]);
            }
            CHECK(std::abs(attention.output()[static_cast<std::size_t>(g * d + j)] - want) < 1e-13);
          }
        }
      }
    }
  }
}

TEST_CASE("an entry with bias ln w counts as w entries") {
  const auto head = test::random_head(2, 16, 4, 4);
  GroupAttention plain{2, 16, 0.25};
  GroupAttention biased{2, 16, 0.25};
  // Token 3 three times, against token 3 once with weight 3.
  std::vector<float> keys = head.keys;
  std::vector<float> values = head.values;
  for (int copy = 0; copy < 2; ++copy) {
    keys.insert(keys.end(), head.keys.end() - 16, head.keys.end());
    values.insert(values.end(), head.values.end() - 16, head.values.end());
  }
  plain.run(test::queries_at(head.view, 3), keys, values, {});
  const std::vector<double> bias{0, 0, 0, std::log(3.0)};
  biased.run(test::queries_at(head.view, 3), head.keys, head.values, bias);
  for (std::size_t j = 0; j < 32; ++j) {
    CHECK(std::abs(plain.output()[j] - biased.output()[j]) < 1e-14);
  }
  CHECK(plain.log_sum(0) == rel(biased.log_sum(0)));
}

TEST_CASE("the blocked reference equals row-by-row attention") {
  for (const std::int64_t tokens : {1, 31, 64, 65, 257}) {
    const auto head = test::random_head(3, 24, tokens, 1);
    for (const std::int64_t first : {std::int64_t{0}, tokens / 2, tokens}) {
      const auto got =
          causal_attention(head.q, head.keys, head.values, 3, 24, tokens, first, head.view.scale);
      CHECK(got.out.size() == static_cast<std::size_t>((tokens - first) * 3 * 24));
      GroupAttention attention{3, 24, head.view.scale};
      for (std::int64_t t = first; t < tokens; ++t) {
        const auto rows = static_cast<std::size_t>((t + 1) * 24);
        attention.run(test::queries_at(head.view, t), std::span{head.keys}.first(rows),
                      std::span{head.values}.first(rows), {});
        const auto at = static_cast<std::size_t>(t - first);
        double worst = 0;
        for (std::size_t j = 0; j < 3 * 24; ++j) {
          worst = std::max(worst, std::abs(attention.output()[j] -
                                           static_cast<double>(got.out[at * 3 * 24 + j])));
        }
        CHECK(worst < 5e-6);
        CHECK(std::abs(attention.log_sum(2) - got.log_sum[at * 3 + 2]) < 5e-6);
      }
    }
  }
}

TEST_CASE("a block of weights times values equals sums of rows") {
  constexpr std::int32_t kDim = 5;
  constexpr std::size_t kRows = 3, kSeen = 7, kStride = 9;
  const auto values = normals(kStride * kDim, 4);
  const auto weights = normals(kRows * kStride, 5);
  const std::vector<double> wide(weights.begin(), weights.end());
  std::vector<double> out(kRows * kDim);
  WeightedValues{values, kDim}.product(wide, kRows, kSeen, kStride, out);
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t j = 0; j < kDim; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < kSeen; ++i) {
        sum += wide[r * kStride + i] * static_cast<double>(values[i * kDim + j]);
      }
      CHECK(out[r * kDim + j] == rel(sum, 1e-13));
    }
  }
  CHECK_THROWS_AS((WeightedValues{values, kDim}.product(wide, kRows, kStride + 1, kStride, out)),
                  ContractError);
}

TEST_CASE("fp8 rounds to the nearest value of the format, ties to even, and saturates") {
  // All finite values that are not negative, in order: 2^(e - bias) (1 + m / 2^bits).
  const auto values_of = [](int bits, int bias, double max) {
    std::vector<double> all;
    for (int code = 0;; ++code) {
      const int e = code >> bits, m = code & ((1 << bits) - 1);
      const double x =
          e == 0 ? std::ldexp(m, 1 - bias - bits) : std::ldexp((1 << bits) + m, e - bias - bits);
      all.push_back(x);
      if (x == max) return all;
    }
  };
  for (const Fp8 format : {Fp8::kE4m3, Fp8::kE5m2}) {
    const bool e4m3 = format == Fp8::kE4m3;
    const auto all = e4m3 ? values_of(3, 7, 448) : values_of(2, 15, 57344);
    REQUIRE(all.size() == (e4m3 ? 127 : 124));
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      const double middle = (all[i] + all[i + 1]) / 2;
      const double even = i % 2 == 0 ? all[i] : all[i + 1];
      const auto rounded = [&](float x) { return static_cast<double>(round_to_fp8(x, format)); };
      const auto tie = static_cast<float>(middle);
      CHECK(rounded(static_cast<float>(all[i])) == all[i]);
      CHECK(rounded(tie) == even);
      CHECK(rounded(-tie) == -even);
      CHECK(rounded(std::nextafter(tie, 0.0F)) == all[i]);
      CHECK(rounded(std::nextafter(tie, 1e9F)) == all[i + 1]);
    }
    const auto max = static_cast<float>(all.back());
    CHECK(round_to_fp8(3e38F, format) == max);
    CHECK(round_to_fp8(-std::nextafter(max, 1e9F), format) == -max);
    CHECK(round_to_fp8(1e-40F, format) == 0.0F);
    CHECK(std::isnan(round_to_fp8(std::numeric_limits<float>::quiet_NaN(), format)));
  }
}

TEST_CASE("k-means assigns each row to its nearest centre") {
  constexpr std::int32_t kDim = 3, kCentres = 5;
  const auto rows = normals(40 * kDim, 6);
  const KmeansRows found = kmeans_rows(rows, kDim, kCentres, 50);
  for (std::size_t i = 0; i < found.nearest.size(); ++i) {
    CHECK(found.nearest[i] ==
          nearest_centre(std::span{rows}.subspan(i * kDim, kDim), found.centres));
  }
}

TEST_CASE("column sums are the sums of the rows' probabilities") {
  for (const std::int64_t prompt : {1, 31, 65, 200}) {
    const auto head = test::random_head(2, 16, 200, prompt);
    for (const double decay : {1.0, 0.9}) {
      const auto got =
          prompt_column_sums(head.q, head.keys, 2, 16, 200, prompt, head.view.scale, decay);
      std::vector<double> want(static_cast<std::size_t>(prompt), 0.0);
      std::vector<std::int32_t> seen;
      for (std::int64_t t = 0; t < prompt; ++t) {
        seen.push_back(static_cast<std::int32_t>(t));
        for (double& s : want) s *= decay;
        for (std::int32_t g = 0; g < 2; ++g) {
          const auto p = test::naive_attention(head.view, g, t, seen);
          for (std::size_t i = 0; i < p.size(); ++i) want[i] += p[i];
        }
      }
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 1e-12);
      if (decay == 1.0) {
        CHECK(std::accumulate(got.begin(), got.end(), 0.0) ==
              rel(2.0 * static_cast<double>(prompt)));
      }
    }
  }
}

TEST_CASE("rotation keeps norms, composes, and scores depend only on the distance") {
  for (const bool interleaved : {false, true}) {
    const Rope rope{16, 10000.0, interleaved};
    const auto head = test::random_head(1, 16, 2, 2);
    std::vector<float> a{head.keys.begin(), head.keys.begin() + 16};
    std::vector<float> b{head.q.begin(), head.q.begin() + 16};
    const std::vector<float> a0 = a;
    const double before = dot(a, b);
    rope.rotate(a, 37);
    rope.rotate(b, 37);
    CHECK(dot(a, b) == rel(before, 1e-5));
    rope.rotate(a, -37);
    for (std::size_t j = 0; j < 16; ++j) CHECK(std::abs(a[j] - a0[j]) < 1e-6F);
    rope.rotate(a, 0);
  }
  // Pair 0 turns by the full angle: (1, 0) by one position is (cos 1, sin 1).
  std::vector<float> unit(4, 0.0F);
  unit[0] = 1.0F;
  Rope{4, 10000.0, false}.rotate(unit, 1);
  CHECK(static_cast<double>(unit[0]) == rel(std::cos(1.0), 1e-7));
  CHECK(static_cast<double>(unit[2]) == rel(std::sin(1.0), 1e-7));
}

TEST_CASE("half formats round-trip every value") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = fp16_to_float(half);
    if (std::isnan(wide)) {
      CHECK(std::isnan(fp16_to_float(float_to_fp16(wide))));
    } else if (float_to_fp16(wide) != half) {
      FAIL("fp16 ", bits);
    }
    const float wide_b = bf16_to_float(half);
    if (!std::isnan(wide_b) && float_to_bf16(wide_b) != half) FAIL("bf16 ", bits);
  }
}

TEST_CASE("rounding to half is to nearest, ties to even") {
  CHECK(float_to_fp16(65519.996F) == 0x7BFF);               // largest finite, 65504
  CHECK(float_to_fp16(65520.0F) == 0x7C00);                 // halfway to 65536: infinity
  CHECK(fp16_to_float(float_to_fp16(2049.0F)) == 2048.0F);  // tie: even mantissa
  CHECK(fp16_to_float(float_to_fp16(2051.0F)) == 2052.0F);
  CHECK(float_to_fp16(0x1p-25F) == 0);  // tie between 0 and the least subnormal
  CHECK(float_to_fp16(0x1.8p-25F) == 1);
  CHECK(fp16_to_float(float_to_fp16(-0x1p-14F)) == -0x1p-14F);
  CHECK(bf16_to_float(float_to_bf16(257.0F)) == 256.0F);
  CHECK(std::isinf(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max()))));
}

TEST_CASE("scores that are all minus infinity are refused as a row out of its format's range") {
  constexpr std::int32_t kDim = 16;
  constexpr std::int64_t kTokens = 40;
  const std::vector<float> q(kTokens * kDim, 1.0F), values(kTokens * kDim, 1.0F);
  std::vector<float> keys(kTokens * kDim, 1.0F);
  for (std::size_t i = 0; i < keys.size(); i += kDim) {
    keys[i] = -std::numeric_limits<float>::infinity();
  }
  RunningAttention attention{1, kDim, 0.25};
  std::vector<float> out(kDim);
  std::vector<double> log_sum(1);
  attention.start(q, kTokens, kTokens - 1, 1);
  attention.add(keys, values, {}, {});
  CHECK_THROWS_AS(attention.finish(std::span{out}, std::span{log_sum}), InputError);
  attention.start(q, kTokens, kTokens - 1, 1);
  CHECK_THROWS_AS(attention.finish(std::span{out}, std::span{log_sum}), ContractError);
  // Also with entries that are added and removed: the first step has half of them, the second the
  // others.
  std::vector<std::int32_t> born(kTokens, 0), gone(kTokens, 1);
  for (std::size_t i = kTokens / 2; i < kTokens; ++i) born[i] = 1, gone[i] = 2;
  std::vector<float> two(2 * kDim);
  std::vector<double> two_sums(2);
  attention.start(q, kTokens, kTokens - 2, 2);
  attention.add(keys, values, born, gone);
  CHECK_THROWS_AS(attention.finish(std::span{two}, std::span{two_sums}), InputError);
  // A step without any entry is still a caller error.
  std::fill(born.begin(), born.end(), 1);
  std::fill(gone.begin(), gone.end(), 2);
  attention.start(q, kTokens, kTokens - 2, 2);
  attention.add(keys, values, born, gone);
  CHECK_THROWS_AS(attention.finish(std::span{two}, std::span{two_sums}), ContractError);
}

TEST_CASE("shapes that disagree are a contract violation") {
  GroupAttention attention{1, 4, 1.0};
  const std::vector<float> q(4), k(8), v(4);
  CHECK_THROWS_AS(attention.run(q, k, v, {}), ContractError);
  CHECK_THROWS_AS(attention.run(q, {}, {}, {}), ContractError);
}

}  // namespace
}  // namespace kvsim
