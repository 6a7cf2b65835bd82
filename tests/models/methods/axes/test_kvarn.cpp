// KVarN: the worked example, its laws, its bytes and its error.

#include <bit>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "models/math/kvarn.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/store_run.hpp"

namespace kvsim {
namespace {

using test::rel;
using Rows = std::vector<float>;

const Rows kTile{1,   2,   -1,   .5F,  //
                 10,  -8,  4,    6,    //
                 .2F, .1F, -.3F, .4F,  //
                 3,   -3,  5,    -6};
const Params kNoSinks{{"full_tokens", std::int64_t{0}}};

TEST_CASE("KVarN: the worked example's scales, codes and rows") {
  const KvarnBalance balance = kvarn_balance(kTile, 4, 4, 8);
  const Rows columns{.7408182F, 1.065656F, .7408182F, .7688907F};
  const Rows rows{1.413376F, 8.879009F, .7408182F, 6.602094F};
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(balance.columns[i] == rel(static_cast<double>(columns[i]), 1e-6));
    CHECK(balance.rows[i] == rel(static_cast<double>(rows[i]), 1e-6));
  }
  const KvarnTile tile = kvarn_tile(kTile, 4, 4, 15, 8);
  const std::vector<std::uint8_t> codes{13, 15, 0, 9, 15, 0, 9, 11, 11, 8, 0, 15, 12, 5, 15, 0};
  CHECK(tile.codes == codes);
  const Rows found{1.07148F,  1.999501F,  -.9996862F, .4507989F,
                   9.998309F, -7.999046F, 3.774503F,  6.072736F};
  for (std::int32_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(tile.value(i / 4, i % 4) ==
          rel(static_cast<double>(found[static_cast<std::size_t>(i)]), 1e-6));
  }
}

TEST_CASE("KVarN's balancing never increases the imbalance, and scales with a factor of the tile") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    // Scales of columns have a lower bound of e^-0.3, which a large tile does not reach.
    Rows tile = test::normal_rows(32, 16, true, seed);
    for (float& x : tile) x *= 16;
    const KvarnBalance plain = kvarn_balance(tile, 32, 16, 8);
    CHECK(plain.imbalance <= plain.imbalance_before);
    CHECK(plain.imbalance >= 2);
    CHECK(kvarn_balance(tile, 32, 16, 0).imbalance == plain.imbalance_before);
    // The first pass, over columns, absorbs a factor.
    for (float& x : tile) x *= 4;
    const KvarnBalance scaled = kvarn_balance(tile, 32, 16, 8);
    for (std::size_t c = 0; c < 16; ++c) {
      CHECK(scaled.columns[c] == rel(4 * static_cast<double>(plain.columns[c]), 1e-4));
    }
    for (std::size_t r = 0; r < 32; ++r) {
      CHECK(scaled.rows[r] == rel(static_cast<double>(plain.rows[r]), 1e-4));
    }
  }
  const KvarnTile zeros = kvarn_tile(Rows(16, 0.F), 4, 4, 15, 8);
  for (std::int32_t i = 0; i < 16; ++i) CHECK(zeros.value(i / 4, i % 4) == 0);
}

TEST_CASE("a store of KVarN equals tiles of its definition, ends stay exact") {
  // d = 16, tiles of 64, 64 unquantised tokens: of 220 tokens, two tiles are rounded and 28 wait.
  const Rows keys = test::normal_rows(220, 16, false, 3);
  const Rows values = test::normal_rows(220, 16, false, 4);
  test::StoreRun run{"kvarn-k4v2",
                     {{"tile", std::int64_t{64}}, {"full_tokens", std::int64_t{64}}},
                     16,
                     220,
                     Dtype::kFp16};
  run.append_all(keys, values);
  const Rows k = run.keys();
  const Rows v = run.values();
  const auto rotated = [](const Rows& rows, std::size_t t) {
    Rows row(rows.begin() + static_cast<std::ptrdiff_t>(t * 16),
             rows.begin() + static_cast<std::ptrdiff_t>(t * 16 + 16));
    Rows out(16, 0.F);
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 16; ++j) {
        out[j] += row[i] * (std::popcount(i & j) % 2 == 0 ? .25F : -.25F);
      }
    }
    return out;
  };
  for (std::size_t t = 0; t < 220; ++t) {
    if (t >= 64 && t < 192) continue;
    for (std::size_t j = 0; j < 16; ++j) {
      CHECK(k[t * 16 + j] == as_stored(keys[t * 16 + j], Dtype::kFp16));
      CHECK(v[t * 16 + j] == as_stored(values[t * 16 + j], Dtype::kFp16));
    }
  }
  for (const std::size_t first : {std::size_t{64}, std::size_t{128}}) {
    Rows by_channel(16 * 64), by_token(64 * 16);
    for (std::size_t t = 0; t < 64; ++t) {
      const Rows key = rotated(keys, first + t);
      const Rows value = rotated(values, first + t);
      for (std::size_t j = 0; j < 16; ++j) {
        by_channel[j * 64 + t] = key[j];
        by_token[t * 16 + j] = value[j];
      }
    }
    const KvarnTile kt = kvarn_tile(by_channel, 16, 64, 15, 8);
    const KvarnTile vt = kvarn_tile(by_token, 64, 16, 3, 8);
    int differ = 0;
    for (std::size_t t = 0; t < 64; ++t) {
      const Rows key = rotated(k, first + t);
      const Rows value = rotated(v, first + t);
      for (std::size_t j = 0; j < 16; ++j) {
        const auto c = static_cast<std::int32_t>(j);
        const auto r = static_cast<std::int32_t>(t);
        // If the rotation sums in another order, a code may be on the other side of a bound.
        differ += std::abs(key[j] - kt.value(c, r)) > 1e-5F ? 1 : 0;
        differ += std::abs(value[j] - vt.value(r, c)) > 1e-5F ? 1 : 0;
      }
    }
    CHECK(differ <= 4);
  }
}

TEST_CASE("KVarN's bytes: tiles as they fill, padded as in the engine") {
  for (const auto& [name, tile, bytes] :
       std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>{{"kvarn-k4v4", 128, 140},
                                                                        {"kvarn-k4v2", 128, 108},
                                                                        {"kvarn-k4v4", 64, 146},
                                                                        {"kvarn-k4v2", 64, 114}}) {
    INFO(name, " ", tile);
    const test::StoreRun run{name, {{"tile", tile}}, 128, 64};
    const std::int64_t full = 4 * 128;
    CHECK(run.law(100) == 100 * full);
    CHECK(run.law(128 + tile - 1) == (128 + tile - 1) * full);
    CHECK(run.law(128 + tile) == 128 * full + tile * bytes);
    CHECK(run.law(128 + 3 * tile + 5) == 133 * full + 3 * tile * bytes);
  }
  // From 256 channels, the bytes per token are a power of two: 280 becomes 512, 209 stays 256.
  const test::StoreRun wide{"kvarn-k4v4", kNoSinks, 256, 64};
  CHECK(wide.law(128) == 128 * 512);
  const test::StoreRun low{"kvarn-k4v2", kNoSinks, 256, 64};
  CHECK(low.law(128) == 128 * 256);
  test::StoreRun run{"kvarn-k4v4", {}, 64, 500};
  for (int t = 0; t < 500; ++t) {
    run.append(Rows(64, .5F), Rows(64, .25F));
    REQUIRE(run.held() == run.law(t + 1));
  }
}

TEST_CASE("KVarN's error on normal rows and on rows with outliers") {
  // Means over random draws: with outliers, a few numbers dominate each row.
  for (const bool outliers : {false, true}) {
    double key = 0, value = 0, low = 0;
    for (const std::uint64_t seed : {7U, 8U, 9U, 10U}) {
      const Rows rows = test::normal_rows(4096, 128, outliers, seed);
      test::StoreRun four{"kvarn-k4v4", kNoSinks, 128, 4096};
      test::StoreRun two{"kvarn-k4v2", kNoSinks, 128, 4096};
      four.append_all(rows, rows);
      two.append_all(rows, rows);
      key += test::relative_error(four.keys(), rows) / 4;
      value += test::relative_error(four.values(), rows) / 4;
      low += test::relative_error(two.values(), rows) / 4;
    }
    CHECK(key == rel(outliers ? 8.6e-3 : 9.6e-3, .03));
    CHECK(value == rel(outliers ? 7.9e-3 : 9.8e-3, .03));
    CHECK(low == rel(outliers ? .201 : .242, .03));
  }
}

TEST_CASE("KVarN's costs and refusals, and a replay by its law") {
  const LayerShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 128};
  const test::StoreRun run{"kvarn-k4v4", {}, 128, 64};
  const StepTraffic step = run.method->decode_traffic(4, shape, Dtype::kBf16, 1152, false);
  CHECK(step.attention_read == 2 * (128 * 512 + 8 * 128 * 140));
  // Rotations of a key, a value, two queries and two outputs; two operations per dequantised
  // element; 134 per balanced element.
  CHECK(step.extra_flops ==
        2 * (6 * 2.0 * 128 * 128 + 4.0 * 1152 * 128 + 2.0 * 128 * (8 * 16 + 6)));
  CHECK(step.move_read == 2 * 512);
  CHECK(step.move_write == 2 * 140);
  const auto why = [](const std::string& name, const Params& params) -> std::string {
    try {
      (void)make_method({name, params, {}}, 64,
                        {.shape = {.n_heads = 2, .n_kv_heads = 2, .head_dim = 128}, .n_layers = 4});
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(why("kvarn-k4v4+select=knorm", {}).find("none can be evicted") != std::string::npos);
  CHECK(why("kvarn-k4v4", {{"tile", std::int64_t{96}}}).find("64 or 128") != std::string::npos);
  CHECK(why("kvarn-k4v4", {{"value_bits", std::int64_t{3}}}).find("2 or 4") != std::string::npos);
  CHECK(why("kvarn-k4v4", {{"full_tokens", std::int64_t{100}}}).find("multiple") !=
        std::string::npos);
  const auto result =
      replay(Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors"),
             {{"kvarn-k4v4", {}, {}}, {"kvarn-k4v2", {}, {}}, {"full", {}, {}}}, {});
  for (const ReplayMethod& m : result.methods) {
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
  }
  CHECK(result.methods[0].rel_error_mean > 0);
  CHECK(result.methods[1].rel_error_mean > result.methods[0].rel_error_mean);
}

}  // namespace
}  // namespace kvsim
