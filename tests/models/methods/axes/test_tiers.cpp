// Codecs of pages outside the GPU: worked examples, bytes, and laws over every codec.

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/math/arithmetic_coder.hpp"
#include "models/math/low_int.hpp"
#include "models/math/low_rank/principal.hpp"
#include "models/methods/composed.hpp"
#include "models/methods/session/session.hpp"
#include "models/methods/tier/kvtc_layout.hpp"
#include "models/methods/tier_axis.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

using namespace kvsim;
using test::rel;

namespace {

using Row = std::vector<float>;

const Row kA{.10009765625F,   -.44921875F, .80078125F, 1.296875F,  -2.59375F,  3.09375F,
             -.050048828125F, .55078125F,  1.046875F,  -1.703125F, .30078125F, -.2001953125F,
             2.203125F,       -.8984375F,  .6484375F,  -3.703125F};
const std::vector<std::string> kCodecs{"nvfp4-cold-pages", "cachegen", "kvtc", "ans-pages"};

std::shared_ptr<const TierRule> codec(const std::string& name, std::int32_t head_dim = 128,
                                      Params params = {}, Dtype recorded = Dtype::kBf16) {
  const auto method = make_method({name, std::move(params), {}}, 512,
                                  {.recorded = recorded,
                                   .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim},
                                   .n_layers = 36});
  return as_composed(*method).parts().tier;
}

Row normal_rows(std::int64_t tokens, std::int64_t width, unsigned seed, bool outliers = false) {
  std::mt19937_64 random{seed};
  std::normal_distribution<float> normal;
  Row rows(static_cast<std::size_t>(tokens * width));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto channel = static_cast<std::int64_t>(i) % width % 128;
    const bool is_outlier = outliers && (channel == 5 || channel == 69 || channel == 100);
    rows[i] = as_stored(normal(random) * (is_outlier ? 8.0F : 1.0F), Dtype::kBf16);
  }
  return rows;
}

TierRows rows_of(std::int64_t tokens, std::int64_t width, std::int32_t layer = 20,
                 std::int32_t head_dim = 128, bool outliers = false) {
  return {.layer = layer,
          .prompt = tokens,
          .tokens = tokens,
          .width = width,
          .head_dim = head_dim,
          .stored = Dtype::kBf16,
          .keys = normal_rows(tokens, width, 1, outliers),
          .values = normal_rows(tokens, width, 2, outliers)};
}

double error_of(const TierTrip& trip) { return trip.key_error / trip.key_square; }

TierPage page_of(std::int64_t tokens, Dtype stored = Dtype::kBf16, std::int64_t width = 1024) {
  return {.layer = 20, .tokens = tokens, .keys = width, .values = width, .stored = stored};
}

}  // namespace

TEST_CASE("NVFP4 cold pages: bytes of a page, and the row of the worked example") {
  const auto nvfp4 = codec("nvfp4-cold-pages");
  // Qwen3-8B: 36 layers, 8 KV heads of 128, 32 tokens.
  CHECK(36 * page_of(32).bytes() == 4'718'592);
  CHECK(36 * nvfp4->link_bytes(page_of(32)) == 1'327'104);
  CHECK(page_of(32).bytes() / nvfp4->link_bytes(page_of(32)) == rel(512.0 / 144, 1e-12));
  const TierPage fp8 = page_of(32, Dtype::kFp8E4m3);
  CHECK(36 * fp8.bytes() == 2'359'296);
  CHECK(fp8.bytes() / nvfp4->link_bytes(fp8) == rel(256.0 / 144, 1e-12));
  // 16 channels of one token: 16 codes and 2 scales of K and V, in a multiple of 16 B.
  CHECK(codec("nvfp4-cold-pages", 16)->link_bytes(page_of(1, Dtype::kBf16, 16)) == 32);

  TierRows one{.prompt = 1,
               .tokens = 1,
               .width = 16,
               .head_dim = 16,
               .stored = Dtype::kBf16,
               .keys = kA,
               .values = kA};
  (void)codec("nvfp4-cold-pages", 16)->pass(one);
  const Row expected{0,      -.3125F, .9375F, 1.25F,   -2.5F, 2.5F,    0,     .625F,
                     .9375F, -1.875F, .3125F, -.3125F, 2.5F,  -.9375F, .625F, -3.75F};
  CHECK(one.keys == expected);
  CHECK(one.values == expected);
  CHECK_THROWS_AS(codec("nvfp4-cold-pages", 24), InputError);
}

TEST_CASE("CacheGen: codes of the worked example, and bytes at the entropy of each channel") {
  const auto cachegen = codec("cachegen", 16);
  TierRows one{.layer = 20,
               .prompt = 1,
               .tokens = 1,
               .width = 16,
               .head_dim = 16,
               .stored = Dtype::kFp32,
               .keys = kA,
               .values = kA};
  (void)cachegen->pass(one);
  const std::vector<int> codes{7, 6, 9, 9, 2, 13, 7, 8, 9, 4, 8, 7, 11, 5, 8, 0};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    CHECK(std::abs(one.keys[i] - (codes[i] - 7) / 7.0 * 3.703125) < 1e-6 * 3.703125);
  }

  // Rows of 128: the expected errors, and the bytes of each chunk.
  for (const auto& [layer, expected] : {std::pair{0, 2.98e-3}, {20, 1.37e-2}}) {
    TierRows rows = rows_of(4096, 128, layer);
    const TierTrip trip = round_trip(*codec("cachegen"), rows);
    CAPTURE(layer);
    CHECK(error_of(trip) == rel(expected, 0.03));
    CHECK(trip.link_bytes < codec("cachegen")->link_bytes(rows.page()));
  }
  for (const auto& [layer, expected] : {std::pair{0, 2.0e-2}, {20, 8.8e-2}}) {
    TierRows rows = rows_of(4096, 128, layer, 128, true);
    CHECK(error_of(round_trip(*codec("cachegen"), rows)) == rel(expected, 0.04));
  }
}

TEST_CASE("the arithmetic coder returns its symbols, within a percent of their entropy") {
  std::mt19937_64 random{3};
  for (const double spread : {0.0, 0.4, 2.0, 5.0}) {
    std::normal_distribution<double> normal{15, spread + 1e-9};
    for (const std::size_t n : {1U, 2U, 31U, 256U, 4096U}) {
      std::vector<std::uint8_t> symbols(n);
      for (auto& s : symbols) {
        s = static_cast<std::uint8_t>(std::clamp(std::round(normal(random)), 0.0, 30.0));
      }
      const auto table = cumulative_frequencies(symbols, 33);
      const auto code = arithmetic_encode(symbols, table);
      CAPTURE(spread);
      CAPTURE(n);
      CHECK(arithmetic_decode(code, n, table) == symbols);
      CHECK(static_cast<double>(code.size()) <= 1.01 * entropy_bits(symbols) / 8 + 4);
    }
  }
  const std::vector<std::uint8_t> same(256, 7);
  CHECK(arithmetic_encode(same, cumulative_frequencies(same, 33)).size() <= 1);
}

TEST_CASE("ANS: rows return as they left, the bytes are the entropy of high and low bytes") {
  const auto ans = codec("ans-pages");
  TierRows rows = rows_of(256, 128);
  const Row keys = rows.keys;
  const TierTrip trip = round_trip(*ans, rows);
  CHECK(rows.keys == keys);
  CHECK(trip.key_error == 0);
  CHECK(trip.value_error == 0);
  CHECK(trip.link_bytes < trip.page_bytes);
  CHECK(ans->held_bytes(page_of(32)) == page_of(32).bytes());
  CHECK(ans->link_bytes(page_of(32)) == rel(page_of(32).bytes() / 1.4, 1e-12));
  // Two values in equal numbers: one bit each.
  TierRows two = rows_of(64, 128);
  for (std::size_t i = 0; i < two.keys.size(); ++i) {
    two.keys[i] = two.values[i] = i % 2 == 0 ? 1.0F : -2.0F;
  }
  CHECK(round_trip(*ans, two).link_bytes == rel(2 * 64 * 128 * 2 / 8.0, 1e-9));
}

TEST_CASE("KVTC: layouts keep their budget and order, the error falls with the budget") {
  std::mt19937_64 random{5};
  std::normal_distribution<double> normal;
  constexpr std::int64_t kWidth = 96, kTokens = 40;
  std::vector<double> rows;
  for (int t = 0; t < kTokens; ++t) {
    for (std::int64_t i = 0; i < kWidth; ++i) {
      rows.push_back(normal(random) * std::exp(-0.06 * static_cast<double>(i)));
    }
  }
  double before = std::numeric_limits<double>::infinity();
  for (const std::int64_t budget : {0, 16, 64, 100, 200, 400, 800, 1600, 3072}) {
    const KvtcLayout layout = kvtc_layout(rows, kWidth, budget);
    CAPTURE(budget);
    CHECK(layout.bits <= budget);
    CHECK(layout.error <= before);
    before = layout.error;
    std::int64_t bits = 0, kept = 0;
    KvtcType type = KvtcType::kFp32;
    for (const KvtcGroup& group : layout.groups) {
      bits += kvtc_bits(group);
      kept += group.size;
      CHECK(group.type >= type);
      type = group.type;
    }
    CHECK(bits == layout.bits);
    CHECK(kept <= kWidth);
    double error = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto row = std::span{rows}.subspan(static_cast<std::size_t>(t * kWidth), kWidth);
      std::vector<double> copy{row.begin(), row.end()};
      kvtc_round(copy, layout);
      for (std::size_t i = 0; i < copy.size(); ++i) error += std::pow(copy[i] - row[i], 2);
    }
    CHECK(error == rel(layout.error, 1e-9));
  }
  CHECK(before < 1e-12);  // 32 bits for each of 96 components: fp32
}

TEST_CASE("KVTC: all directions in fp32 lose nothing, sinks and recent tokens are exact") {
  // R = 1/2 of 16 bits is 32 bits an element.
  const auto method = [](Params params) { return codec("kvtc", 16, std::move(params)); };
  CHECK_THROWS_AS(method({{"tier_ratio", 0.5}}), InputError);
  TierRows rows = rows_of(400, 32, 3, 16);
  rows.stored = Dtype::kFp32;
  const Rope rope{16, 10000, false};
  rows.rope = &rope;
  const Row keys = rows.keys;
  const TierTrip trip = round_trip(*method({{"tier_ratio", 2.0}}), rows);
  CHECK(error_of(trip) > 0);
  for (std::size_t i = 0; i < 4 * 32; ++i) CHECK(rows.keys[i] == keys[i]);
  for (std::size_t i = (400 - 128) * 32; i < keys.size(); ++i) CHECK(rows.keys[i] == keys[i]);
  double last = std::numeric_limits<double>::infinity();
  for (const double ratio : {32.0, 8.0, 4.0, 2.0, 1.0}) {
    TierRows again = rows_of(400, 32, 3, 16);
    const double error = error_of(round_trip(*method({{"tier_ratio", ratio}}), again));
    CHECK(error <= last * 1.05);  // the allocation is made on half of the rows
    last = error;
  }
  const PrincipalBasis basis = principal_basis(keys, 400, 32, 32);
  Row back(32);
  basis.restore(basis.coefficients(std::span{keys}.first(32)), back);
  for (std::size_t i = 0; i < back.size(); ++i) {
    CHECK(back[i] == doctest::Approx(keys[i]).epsilon(1e-5));
  }
}

TEST_CASE("principal directions have a fixed sign, and at most the rank of the rows") {
  // Rows of mean 5 along (3, -4) / 5 in the first two of four channels.
  Row rows;
  for (const float along : {-2.0F, -1.0F, 1.0F, 2.0F, 0.0F}) {
    rows.insert(rows.end(), {5 + along * 0.6F, 5 - along * 0.8F, 5, 5});
  }
  const PrincipalBasis basis = principal_basis(rows, 5, 4, 4);
  REQUIRE(basis.rank == 1);
  const std::vector<double> expected{-0.6, 0.8, 0, 0};  // the largest component is positive
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(basis.vectors[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
  const Row equal(20, 7.0F);
  CHECK(principal_basis(equal, 5, 4, 4).rank == 1);
}

TEST_CASE("every codec: fixed bytes are linear in pages, no page grows, share 0 changes nothing") {
  for (const std::string& name : kCodecs) {
    CAPTURE(name);
    const auto tier = codec(name);
    const TierPage page = page_of(256), two = page_of(512);
    CHECK(tier->link_bytes(page) <= page.bytes());
    CHECK(tier->link_bytes(page) <= tier->held_bytes(page));
    CHECK(tier->held_bytes(page) <= page.bytes());
    if (tier->fixed_bytes()) {
      CHECK(tier->link_bytes(two) == rel(2 * tier->link_bytes(page), 1e-12));
    }
    for (const TierWork& work : {tier->encode(page), tier->decode(page)}) {
      CHECK(work.flops >= 0);
      CHECK(work.read + work.written >= page.bytes());
    }
    TierRows none = rows_of(256, 256);
    const Row keys = none.keys, values = none.values;
    none.tokens = 0;
    CHECK(round_trip(*tier, none).rows == 0);
    CHECK(none.keys == keys);
    // Later tokens are unchanged.
    TierRows half = rows_of(256, 256);
    half.tokens = 128;
    (void)round_trip(*tier, half);
    for (std::size_t i = 128 * 256; i < keys.size(); i += 37) {
      CHECK(half.keys[i] == keys[i]);
      CHECK(half.values[i] == values[i]);
    }
    // A second round trip at most doubles the error.
    TierRows rows = rows_of(512, 256);
    const Row first = rows.keys;
    const double once = error_of(round_trip(*tier, rows));
    (void)round_trip(*tier, rows);
    double off = 0, sum = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      off += std::pow(static_cast<double>(rows.keys[i]) - first[i], 2);
      sum += std::pow(static_cast<double>(first[i]), 2);
    }
    CHECK(off / sum <= 2 * once + 1e-12);
  }
}

TEST_CASE("a tier is refused for caches that engines do not store as coded pages") {
  const auto refused = [](const std::string& name, Params params = {}) {
    const MethodContext site{.recorded = Dtype::kBf16,
                             .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 128},
                             .n_layers = 4};
    CHECK_THROWS_AS((void)make_method({name, std::move(params), {}}, 512, site), InputError);
  };
  refused("snapkv+tier=nvfp4");
  refused("minicache+tier=nvfp4");
  refused("kivi-2+tier=nvfp4");
  refused("shadowkv+tier=cachegen");
  refused("fp8-e4m3+tier=nvfp4");
  refused("full+tier=nvfp5");
  const MethodContext site{.recorded = Dtype::kBf16,
                           .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 128},
                           .n_layers = 4};
  CHECK(make_method({"fp8-e4m3+tier=nvfp4",
                     {{"scale", std::string{"tensor"}}, {"source", std::string{"one"}}},
                     {}},
                    512, site) != nullptr);
  CHECK(make_method({"quest+tier=nvfp4", {}, {}}, 512, site) != nullptr);
}
