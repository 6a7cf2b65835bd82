// Stores of fewer bits: quantisers within their bounds, byte laws equal to the counted bytes at
// every step, and KIVI, GEAR and ThinK compared with references.

#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

#include "models/math/low_rank/low_rank.hpp"
#include "models/math/quantise.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/merging_run.hpp"
#include "tests/support/reference/reference_stored.hpp"
#include "tests/support/session_run.hpp"

namespace kvsim {
namespace {

using test::rel;

std::shared_ptr<const Method> method_of(const std::string& name, std::int64_t prompt,
                                        std::int32_t d, Params params = {},
                                        std::optional<Budget> budget = {},
                                        Dtype recorded = Dtype::kFp16) {
  return make_method(
      {.name = name, .params = std::move(params), .budget = budget}, prompt,
      {.recorded = recorded, .shape = {.n_heads = 2, .n_kv_heads = 1, .head_dim = d}});
}

std::vector<float> numbers(std::size_t n, std::uint64_t seed, double spread = 1.0) {
  test::Normal normal{seed};
  std::vector<float> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back(static_cast<float>(spread * normal()));
  return all;
}

TEST_CASE("asymmetric groups: every value within half a step and constants exact") {
  for (const std::int32_t bits : {2, 4, 8}) {
    for (const std::size_t n : {1U, 31U, 64U, 257U}) {
      const std::int32_t levels = (1 << bits) - 1;
      const auto row = numbers(n, n);
      auto rounded = row;
      round_asymmetric_row(rounded, 32, levels);
      for (std::size_t at = 0; at < n; at += 32) {
        const std::size_t end = std::min(n, at + 32);
        float low = row[at];
        float high = row[at];
        for (std::size_t i = at; i < end; ++i) {
          low = std::min(low, row[i]);
          high = std::max(high, row[i]);
        }
        const AsymmetricGroup group = asymmetric_group(low, high, levels);
        // Step and zero in fp16 shift the ends by at most 2^-11 of their value.
        const double slack = (static_cast<double>(high - low) + std::abs(low)) * 0x1p-11;
        for (std::size_t i = at; i < end; ++i) {
          CHECK(std::abs(static_cast<double>(rounded[i] - row[i])) <=
                static_cast<double>(group.step) / 2 + slack);
        }
      }
    }
  }
  std::vector<float> same(5, 0.5F);
  round_asymmetric_row(same, 4, 3);
  CHECK(same == std::vector<float>(5, 0.5F));
  // Columns are rows of the transposed matrix.
  const auto rows = numbers(7 * 5, 3);
  auto columns = rows;
  round_asymmetric_columns(columns, 5, 3, 15);
  for (std::size_t j = 0; j < 5; ++j) {
    std::vector<float> column;
    for (std::size_t i = 0; i < 7; ++i) column.push_back(rows[i * 5 + j]);
    round_asymmetric_row(column, 3, 15);
    for (std::size_t i = 0; i < 7; ++i) CHECK(columns[i * 5 + j] == column[i]);
  }
  // By hand: 0 … 3 in 2 bits is exact; 1.5 ties to the even code.
  CHECK(asymmetric_code(1.5F, {.step = 1, .zero = 0}, 3) == 2);
  CHECK(asymmetric_code(0.5F, {.step = 1, .zero = 0}, 3) == 0);
  CHECK(asymmetric_code(9.0F, {.step = 1, .zero = 0}, 3) == 3);
}

TEST_CASE("int8 is within half a step and rounding twice changes nothing") {
  for (const std::size_t n : {1U, 31U, 257U}) {
    const auto row = numbers(n, n + 5, 3.0);
    auto rounded = row;
    round_int8_row(rounded);
    const double step = static_cast<double>(int8_step(row));
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(std::abs(static_cast<double>(rounded[i] - row[i])) <= step / 2 * (1 + 1e-6));
    }
    auto again = rounded;
    round_int8_row(again);
    CHECK(again == rounded);
  }
  std::vector<float> zero(4, 0.0F);
  round_int8_row(zero);
  CHECK(zero == std::vector<float>(4, 0.0F));
}

TEST_CASE("fp8: the nearest value of the format, ties to even, saturating") {
  struct Format {
    Fp8 format;
    int mantissa, bias, codes;
    double bound;
  };
  // Codes of positive finite values: e4m3 ends at 0x7e (448), e5m2 at 0x7b (57344).
  for (const Format& each :
       {Format{Fp8::kE4m3, 3, 7, 0x7f, 0x1p-4}, Format{Fp8::kE5m2, 2, 15, 0x7c, 0x1p-3}}) {
    std::vector<double> values;
    for (int code = 0; code < each.codes; ++code) {
      const int exponent = code >> each.mantissa;
      const double fraction = std::ldexp(code & ((1 << each.mantissa) - 1), -each.mantissa);
      values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - each.bias)
                                     : std::ldexp(1 + fraction, exponent - each.bias));
    }
    CHECK(values.back() == static_cast<double>(fp8_max(each.format)));
    const double smallest_normal = std::ldexp(1.0, 1 - each.bias);
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(static_cast<double>(round_to_fp8(static_cast<float>(values[i]), each.format)) ==
            values[i]);
      if (i + 1 == values.size()) break;
      const double middle = (values[i] + values[i + 1]) / 2;
      const double even = i % 2 == 0 ? values[i] : values[i + 1];
      CHECK(static_cast<double>(round_to_fp8(static_cast<float>(-middle), each.format)) == -even);
      const double above = middle + (values[i + 1] - middle) * 0.01;
      CHECK(static_cast<double>(round_to_fp8(static_cast<float>(above), each.format)) ==
            values[i + 1]);
      if (values[i] >= smallest_normal) {
        CHECK(std::abs(values[i + 1] - above) <= each.bound * above);
        CHECK(std::abs(even - middle) <= each.bound * middle);
      }
    }
    CHECK(round_to_fp8(1e30F, each.format) == fp8_max(each.format));
    CHECK(round_to_fp8(-1e30F, each.format) == -fp8_max(each.format));
    CHECK(std::isnan(round_to_fp8(std::nanf(""), each.format)));
  }
}

TEST_CASE("smoothing scales by hand, and zeros guarded") {
  // 4^0.5 / 1^0.5 = 2; 9^0.5 / 4^0.5 = 1.5.
  const std::vector<float> keys{4, 9, 0, 1};
  const std::vector<float> queries{1, 4, 2, 0};
  std::vector<float> scales(4);
  smoothing_scales(keys, queries, 0.5, scales);
  CHECK(scales == std::vector<float>{2, 1.5, 1, 1});
}

TEST_CASE("smoothing without rounding leaves logits unchanged") {
  test::Normal normal{12};
  for (const std::size_t d : {1U, 31U, 257U}) {
    std::vector<float> max_key(d), max_query(d), q(d), k(d), scales(d);
    for (std::size_t j = 0; j < d; ++j) {
      q[j] = static_cast<float>(normal());
      k[j] = j % 5 == 3 ? 0.0F : static_cast<float>(9 * normal());
      max_key[j] = std::abs(k[j]);
      max_query[j] = std::abs(q[j]);
    }
    smoothing_scales(max_key, max_query, 0.5, scales);
    double plain = 0, smoothed = 0, size = 0;
    for (std::size_t j = 0; j < d; ++j) {
      const auto s = static_cast<double>(scales[j]);
      const auto x = static_cast<double>(q[j]), y = static_cast<double>(k[j]);
      CHECK((s > 0 && std::isfinite(s)));
      plain += x * y;
      smoothed += (x * s) * (y / s);
      size += std::abs(x * y);
    }
    CHECK(std::abs(plain - smoothed) <= 1e-12 * (1 + size));
  }
}

TEST_CASE("power iteration: orthonormal, never worse than rank 0, exact at full rank") {
  for (const auto& [n, d] : {std::pair{1, 1}, {31, 8}, {8, 31}, {64, 16}}) {
    const auto flat = numbers(static_cast<std::size_t>(n * d), 9);
    const std::vector<double> x{flat.begin(), flat.end()};
    const auto error = [&](const LowRank& part) {
      double sum = 0;
      const auto r = static_cast<std::size_t>(part.rank);
      for (std::size_t i = 0; i < x.size(); ++i) {
        double y = x[i];
        for (std::size_t c = 0; c < r; ++c) {
          y -= part.a[i / static_cast<std::size_t>(d) * r + c] *
               part.b[i % static_cast<std::size_t>(d) * r + c];
        }
        sum += y * y;
      }
      return std::sqrt(sum);
    };
    double before = error(power_iteration(x, n, d, 0, 3));
    for (const std::int32_t rank : {1, 2, 4, 64}) {
      const double after = error(power_iteration(x, n, d, rank, 3));
      CHECK(after <= before * (1 + 1e-12));
      before = after;
    }
    CHECK(before < 1e-9);
  }
}

TEST_CASE("power iteration: repeated rows do not raise the rank") {
  // Two directions, the longer one four times: rank 2 is exact after the first round.
  const std::vector<double> x{3, 0, 0, 3, 0, 0, 3, 0, 0, 3, 0, 0, 0, 1, 0};
  const LowRank part = power_iteration(x, 5, 3, 2, 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double got =
        part.a[i / 3 * 2] * part.b[i % 3 * 2] + part.a[i / 3 * 2 + 1] * part.b[i % 3 * 2 + 1];
    CHECK(std::abs(got - x[i]) < 1e-12);
  }
}

const std::vector<std::string> kStores{"int8",           "rtn",  "kivi-2", "kivi-4",  "fp8-e4m3",
                                       "smoothquant-kv", "gear", "think",  "fp8-e5m2"};
struct Size {
  std::int64_t prompt, tokens;
};
const std::vector<Size> kSizes{{1, 1},     {1, 40},    {31, 31},   {31, 140},
                               {128, 130}, {257, 300}, {300, 430}, {40, 330}};

TEST_CASE("I9: the size law equals the bytes counted by the store at every step") {
  for (const std::string& name : kStores) {
    for (const Size& size : kSizes) {
      for (const std::int32_t d : {16, 64, 128}) {
        for (const std::int32_t group : {1, 3}) {
          if (d == 128 && size.tokens > 300) continue;
          INFO(name, " prompt ", size.prompt, " tokens ", size.tokens, " d ", d);
          const auto head = test::random_head(group, d, size.tokens, size.prompt);
          test::SessionRun run{method_of(name, size.prompt, d), head.view};
          const LayerShape shape{.n_heads = group, .n_kv_heads = 1, .head_dim = d};
          for (std::int64_t t = size.prompt; t <= size.tokens; ++t) {
            const auto law = run.method->layer_bytes(0, shape, Dtype::kFp16, size.prompt, t);
            REQUIRE(law.has_value());
            REQUIRE(run.session.bytes(0).kv == law->kv);
            if (t < size.tokens) run.step(t);
          }
        }
      }
    }
  }
}

TEST_CASE("bytes by hand") {
  const auto bytes = [](const std::string& name, std::int64_t tokens, std::int32_t d,
                        Params params = {}) {
    return method_of(name, tokens, d, std::move(params))
        ->layer_bytes(0, {.n_heads = 1, .n_kv_heads = 1, .head_dim = d}, Dtype::kFp16, tokens,
                      tokens)
        ->kv.count();
  };
  // d + 2 bytes per row: 256 / 130 = 1.97 times smaller at d 128.
  CHECK(bytes("int8", 10, 128) == 2 * 10 * 130);
  CHECK(bytes("smoothquant-kv", 10, 128) == 2 * 10 * 130 + 2 * 128);
  // 5 bits per element.
  CHECK(bytes("rtn", 10, 128) == 2 * 10 * 128 * 5 / 8);
  CHECK(bytes("fp8-e4m3", 10, 128) == 2 * 10 * 128 + 8);
  CHECK(bytes("fp8-e4m3", 10, 128, {{"scale", std::string{"token"}}}) == 2 * 10 * 132);
  // 300 tokens, R 128, g 32: 256 keys and 172 values at 3 bits, 44 and 128 unquantised rows.
  CHECK(bytes("kivi-2", 300, 128) == 128 * (428 * 3 / 8.0 + 172 * 2));
  CHECK(bytes("kivi-4", 300, 128) == 128 * (428 * 5 / 8.0 + 172 * 2));
  // No residual: 3 bits for 288 keys (9 groups of 32) and 300 values, 12 keys wait for a group.
  CHECK(bytes("kivi-2", 300, 128, {{"residual", std::int64_t{0}}}) ==
        128 * (588 * 3 / 8.0 + 12 * 2));
  // GEAR, 128 tokens, d 128: codes of 2 bits; 2.56 -> int(0.02 * 128 / 2) = 1 outlier at each end
  // of a channel and of a token, 4 B each; steps of 2 groups of keys x 128 channels + 2 x 128; rank
  // 4.
  CHECK(bytes("gear", 128, 128) == 2 * 128 * 128 / 4 + 4 * (2 * 128 + 2 * 128) +
                                       4 * (2 * 128 + 2 * 128) + 2 * 4 * (128 + 128) * 2);
  // ThinK: int(128 * 0.4) = 51 channels of 100 - 32 keys are dropped, and 16 B identify them.
  CHECK(bytes("think", 100, 128) == 2 * 100 * 128 * 2 - 68 * 51 * 2 + 16);
}

TEST_CASE("KIVI equals a reference at every step and waiting rows are exact") {
  for (const Size& size : kSizes) {
    for (const auto& [d, g, r] : {std::array{64, 32, 128}, std::array{16, 32, 32},
                                  std::array{8, 4, 12}, std::array{31, 40, 62}}) {
      INFO("prompt ", size.prompt, " tokens ", size.tokens, " d ", d);
      const auto head = test::random_head(2, d, size.tokens, size.prompt, 4);
      test::SessionRun run{
          method_of("kivi-4", size.prompt, d,
                    {{"quant_group", std::int64_t{g}}, {"residual", std::int64_t{r}}}),
          head.view};
      for (std::int64_t t = size.prompt;; ++t) {
        if (t % 7 == 0 || t == size.tokens || t % r < 2) {
          const auto group = static_cast<std::size_t>(std::min(g, d));
          const auto want_keys = test::reference_kivi_keys(test::rows_of(head.keys, t, d), 4, group,
                                                           static_cast<std::size_t>(r));
          const auto want_values = test::reference_kivi_values(test::rows_of(head.values, t, d), 4,
                                                               group, static_cast<std::size_t>(r));
          double worst = 0;
          for (std::int32_t slot = 0; slot < run.session.entries().size(); ++slot) {
            const auto id = static_cast<std::size_t>(run.session.entries().id(slot));
            for (std::size_t j = 0; j < static_cast<std::size_t>(d); ++j) {
              worst = std::max({worst,
                                std::abs(static_cast<double>(run.session.entries().key(slot)[j]) -
                                         want_keys[id][j]),
                                std::abs(static_cast<double>(run.session.entries().value(slot)[j]) -
                                         want_values[id][j])});
            }
          }
          REQUIRE(worst < 1e-5);
        }
        if (t == size.tokens) break;
        run.step(t);
        // The flush happens after attention: the step read the cache before the flush, and one
        // unquantised row.
        const LayerShape shape{.n_heads = 2, .n_kv_heads = 1, .head_dim = d};
        const auto before = run.method->layer_bytes(0, shape, Dtype::kFp16, size.prompt, t);
        CHECK(run.session.events().stored == static_cast<double>(before->kv.count() + 2LL * d * 2));
      }
    }
  }
}

TEST_CASE("KIVI's holes: a key group is freed with its last token, a value immediately") {
  constexpr std::int32_t kDim = 8;
  const auto head = test::random_head(1, kDim, 40, 20);
  const auto method = method_of("kivi-2", 20, kDim,
                                {{"quant_group", std::int64_t{4}}, {"residual", std::int64_t{8}}});
  const auto& rule = *as_composed(*method).parts().store;
  const auto store = rule.start({.head_dim = kDim, .tokens = 40}, Dtype::kFp16);
  EntryTable entries{kDim};
  for (std::int32_t id = 0; id < 20; ++id) {
    entries.append(id, head.view.key(id), head.view.value(id));
  }
  PromptScores scores{head.view};
  store->prompt_written(entries, scores, 0);
  // 16 keys in 4 groups of 4 * 8 * 2/8 + 4 * 8 = 40 B, 12 values of 2 + 8 B, 4 + 8 rows of 16 B.
  CHECK(store->kv_bytes(entries).count() == 4 * 40 + 12 * 10 + 12 * 16);
  const auto leave = [&](std::int32_t id) {
    store->leaving(entries, id);
    entries.erase(entries.slot_of(id));
  };
  for (const std::int32_t id : {4, 6, 7}) leave(id);
  CHECK(store->kv_bytes(entries).count() == 4 * 40 + 9 * 10 + 12 * 16);
  leave(5);
  CHECK(store->kv_bytes(entries).count() == 3 * 40 + 8 * 10 + 12 * 16);
  leave(18);  // key and value both wait
  CHECK(store->kv_bytes(entries).count() == 3 * 40 + 8 * 10 + 10 * 16);
  // A token of a group whose value is not yet packed.
  leave(15);
  CHECK(store->kv_bytes(entries).count() == 3 * 40 + 8 * 10 + 9 * 16);
}

TEST_CASE("ThinK: channels with the smallest weight vanish from keys that are not recent") {
  for (const Size& size : {Size{100, 140}, Size{20, 90}, Size{1, 3}}) {
    constexpr std::int32_t kDim = 16;
    const auto head = test::random_head(3, kDim, size.tokens, size.prompt, 8);
    test::SessionRun run{method_of("think", size.prompt, kDim), head.view};
    run.to_the_end();
    std::vector<std::pair<double, std::size_t>> score;
    for (std::size_t c = 0; c < kDim; ++c) {
      double q = 0;
      double k = 0;
      for (std::int64_t t = 0; t < size.prompt; ++t) {
        k += std::pow(static_cast<double>(head.view.key(t)[c]), 2) /
             static_cast<double>(size.prompt);
        for (std::int32_t g = 0; g < 3 && t >= size.prompt - 32; ++g) {
          q += std::pow(static_cast<double>(head.view.query(g, t)[c]), 2) / 3.0;
        }
      }
      score.emplace_back(q * k, c);
    }
    std::sort(score.begin(), score.end());
    score.resize(6);  // int(16 * 0.4)
    const EntryTable& entries = run.session.entries();
    for (std::int32_t id = 0; id < entries.size(); ++id) {
      std::vector<float> want{head.view.key(id).begin(), head.view.key(id).end()};
      if (id < size.prompt - 32) {
        for (const auto& [value, c] : score) want[c] = 0;
      }
      const auto key = entries.key(entries.slot_of(id));
      CHECK(std::equal(want.begin(), want.end(), key.begin()));
    }
  }
}

TEST_CASE("GEAR: each part reduces the error and new tokens stay in full precision") {
  constexpr std::int32_t kDim = 64;
  const auto head = test::random_head(1, kDim, 300, 200, 6);
  const auto lost = [&](Params params) {
    test::SessionRun run{method_of("gear", 200, kDim, std::move(params)), head.view};
    run.to_the_end();
    double sum = 0;
    const EntryTable& entries = run.session.entries();
    for (std::int32_t id = 0; id < entries.size(); ++id) {
      double row = 0;
      for (std::size_t j = 0; j < kDim; ++j) {
        row += std::pow(
            static_cast<double>(entries.key(entries.slot_of(id))[j] - head.view.key(id)[j]), 2);
      }
      if (id >= 256) CHECK(row == 0.0);  // 192 at prefill, a block of 64, 44 wait
      sum += row;
    }
    return sum;
  };
  const double whole = lost({});
  const double no_rank = lost({{"variant", std::string{"outlier-kivi"}}});
  CHECK(whole < no_rank);
  CHECK(whole < lost({{"variant", std::string{"gear-l"}}}));
  CHECK(no_rank < lost({{"variant", std::string{"gear-l"}},
                        {"prompt_rank", std::int64_t{0}},
                        {"block_rank", std::int64_t{0}}}));
  CHECK(lost({{"bits", std::int64_t{4}}}) < whole);
  CHECK(lost({{"bits", std::int64_t{8}}}) <
        lost({{"bits", std::int64_t{8}}, {"levels", std::string{"code"}}}));
  // Whole channels share a step, which is coarser.
  CHECK(lost({{"backbone", std::string{"kcvt"}}, {"buffer", std::int64_t{64}}}) > whole);
}

TEST_CASE("GEAR: outliers are exact and most other values are not") {
  constexpr std::int32_t kDim = 32;
  const auto head = test::random_head(1, kDim, 64, 64, 5);
  test::SessionRun run{method_of("gear", 64, kDim, {{"outlier_share", 0.1}}), head.view};
  const EntryTable& entries = run.session.entries();
  int exact = 0;
  for (std::size_t c = 0; c < kDim; ++c) {
    std::vector<std::pair<float, std::int32_t>> channel;
    for (std::int32_t id = 0; id < 64; ++id) channel.emplace_back(head.view.key(id)[c], id);
    std::sort(channel.begin(), channel.end());
    for (std::size_t i = 0; i < 64; ++i) {
      const bool same = entries.key(entries.slot_of(channel[i].second))[c] == channel[i].first;
      exact += same ? 1 : 0;
      if (i < 3 || i >= 61) CHECK(same);  // int(0.1 * 64 / 2) = 3 at each end
    }
  }
  CHECK(exact < 32 * 7);
}

/// Reference of the rows that a step attends to: rows of earlier tokens and its own row.
struct StoredRows {
  test::Rows keys, values;
};
using ReferenceStore = std::function<StoredRows(const HeadVectors& head, std::int64_t tokens)>;

test::Row reference_attention(std::span<const float> q, const StoredRows& rows, double scale) {
  test::Row weights;
  double sum = 0;
  for (const test::Row& key : rows.keys) {
    double logit = 0;
    for (std::size_t j = 0; j < key.size(); ++j) logit += static_cast<double>(q[j]) * key[j];
    weights.push_back(std::exp(logit * scale));
    sum += weights.back();
  }
  test::Row out(rows.values.front().size(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += weights[i] / sum * rows.values[i][j];
  }
  return out;
}

/// Compares every cached row and every output after each step. Single precision may round a near
/// tie differently: at most one value in 10,000.
void compare_store(const std::string& name, const HeadVectors& head, const Params& params,
                   const ReferenceStore& reference) {
  INFO(name);
  test::SessionRun run{method_of(name, head.prompt, head.head_dim, params), head};
  std::int64_t off = 0;
  std::int64_t seen = 0;
  const auto compare_rows = [&](std::int64_t tokens) {
    const StoredRows want = reference(head, tokens);
    const EntryTable& entries = run.session.entries();
    REQUIRE(entries.size() == tokens);
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      const auto id = static_cast<std::size_t>(entries.id(slot));
      for (std::size_t j = 0; j < static_cast<std::size_t>(head.head_dim); ++j) {
        const double key = std::abs(static_cast<double>(entries.key(slot)[j]) - want.keys[id][j]);
        const double value =
            std::abs(static_cast<double>(entries.value(slot)[j]) - want.values[id][j]);
        off += (key > 2e-3 ? 1 : 0) + (value > 2e-3 ? 1 : 0);
        seen += 2;
      }
    }
  };
  compare_rows(head.prompt);
  for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
    StoredRows rows = reference(head, t);
    const StoredRows next = reference(head, t + 1);
    // Formats that round each row immediately also round the step's row before it attends.
    const bool at_once = name == "smoothquant-kv";
    rows.keys.push_back(at_once ? next.keys.back()
                                : test::rows_of(head.key(t), 1, head.head_dim)[0]);
    rows.values.push_back(at_once ? next.values.back()
                                  : test::rows_of(head.value(t), 1, head.head_dim)[0]);
    run.step(t);
    for (std::int32_t g = 0; g < head.group; ++g) {
      const test::Row want = reference_attention(head.query(g, t), rows, head.scale);
      for (std::size_t j = 0; j < want.size(); ++j) {
        const std::size_t at = static_cast<std::size_t>(g) * want.size() + j;
        REQUIRE(std::abs(run.session.output(0)[at] - want[j]) < 2e-3);
      }
    }
    if (t % 16 == 15 || t + 1 == head.tokens) compare_rows(t + 1);
  }
  CHECK(off * 10000 <= seen);
}

TEST_CASE("GEAR, ThinK and SmoothQuant equal references on the shipped trace") {
  const auto all = test::real_heads();
  for (const std::size_t layer : {std::size_t{0}, std::size_t{3}}) {
    INFO("layer ", layer);
    const HeadVectors& head = all[layer].view;
    const auto d = static_cast<std::size_t>(head.head_dim);
    for (const double outliers : {0.02, 0.1}) {
      compare_store(
          "gear", head, {{"outlier_share", outliers}},
          [outliers](const HeadVectors& h, std::int64_t tokens) -> StoredRows {
            // Completed blocks do not change: they are computed again only when a block is
            // completed.
            static std::map<std::tuple<const float*, double, std::int64_t>, StoredRows> known;
            const std::int64_t whole = tokens / 64 * 64;
            const auto at = std::tuple{h.keys.data(), outliers, whole};
            const auto raw = [&h](std::span<const float> rows, std::int64_t n) {
              return test::rows_of(rows, n, h.head_dim);
            };
            if (!known.contains(at)) {
              test::ReferenceGear keys{.outliers = outliers, .keys = true};
              test::ReferenceGear values{.outliers = outliers, .keys = false};
              const auto prompt = static_cast<std::size_t>(h.prompt);
              known[at] = {keys(raw(h.keys, whole), prompt), values(raw(h.values, whole), prompt)};
            }
            StoredRows rows = known[at];
            const StoredRows plain{raw(h.keys, tokens), raw(h.values, tokens)};
            for (auto t = static_cast<std::size_t>(whole); t < static_cast<std::size_t>(tokens);
                 ++t) {
              rows.keys.push_back(plain.keys[t]);
              rows.values.push_back(plain.values[t]);
            }
            return rows;
          });
    }
    test::Row weighed(d, 0.0), max_key(d, 0.0), max_query(d, 0.0);
    for (std::size_t j = 0; j < d; ++j) {
      double q = 0;
      double k = 0;
      for (std::int64_t t = 0; t < head.prompt; ++t) {
        const auto key = static_cast<double>(head.key(t)[j]);
        k += key * key;
        max_key[j] = std::max(max_key[j], std::abs(key));
        for (std::int32_t g = 0; g < head.group; ++g) {
          const auto query = static_cast<double>(head.query(g, t)[j]);
          max_query[j] = std::max(max_query[j], std::abs(query));
          if (t >= head.prompt - 32) q += query * query;
        }
      }
      weighed[j] = q * k;
    }
    test::Row sorted = weighed;
    std::sort(sorted.begin(), sorted.end());
    const double min = sorted[static_cast<std::size_t>(0.4 * static_cast<double>(d))];
    compare_store("think", head, {}, [&](const HeadVectors& h, std::int64_t tokens) -> StoredRows {
      StoredRows rows{test::rows_of(h.keys, tokens, h.head_dim),
                      test::rows_of(h.values, tokens, h.head_dim)};
      for (std::int64_t t = 0; t < h.prompt - 32; ++t) {
        for (std::size_t j = 0; j < d; ++j) {
          if (weighed[j] < min) rows.keys[static_cast<std::size_t>(t)][j] = 0;
        }
      }
      return rows;
    });
    test::Row scales(d);
    for (std::size_t j = 0; j < d; ++j) scales[j] = std::sqrt(max_key[j] / max_query[j]);
    compare_store(
        "smoothquant-kv", head, {}, [&](const HeadVectors& h, std::int64_t tokens) -> StoredRows {
          return {
              test::reference_int8(test::rows_of(h.keys, tokens, h.head_dim), scales),
              test::reference_int8(test::rows_of(h.values, tokens, h.head_dim), test::Row(d, 1.0))};
        });
  }
}

TEST_CASE("SmoothQuant and FP8 keep attention close, and closer with more bits") {
  const auto head = test::random_head(2, 32, 257, 200, 2);
  const auto lost = [&](const std::string& name, Params params = {}) {
    test::SessionRun run{method_of(name, 200, 32, std::move(params)), head.view};
    run.to_the_end();
    double sum = 0;
    const EntryTable& entries = run.session.entries();
    for (std::int32_t id = 0; id < entries.size(); ++id) {
      for (std::size_t j = 0; j < 32; ++j) {
        sum += std::pow(
            static_cast<double>(entries.key(entries.slot_of(id))[j] - head.view.key(id)[j]), 2);
      }
    }
    return sum / static_cast<double>(entries.size() * 32);
  };
  CHECK(lost("int8") < 1e-4);
  CHECK(lost("smoothquant-kv") < 3e-4);
  CHECK(lost("int8") < lost("rtn"));
  CHECK(lost("fp8-e4m3") < lost("fp8-e5m2"));
  // Within 2^-4 of every value in the normal range.
  for (const std::string scale : {"head", "token", "tensor"}) {
    test::SessionRun run{method_of("fp8-e4m3", 200, 32, {{"scale", scale}}), head.view};
    const EntryTable& entries = run.session.entries();
    const float max = abs_max(head.view.keys.first(200 * 32));
    for (std::int32_t id = 0; id < entries.size(); ++id) {
      for (std::size_t j = 0; j < 32; ++j) {
        const auto x = static_cast<double>(head.view.key(id)[j]);
        const auto y = static_cast<double>(entries.key(entries.slot_of(id))[j]);
        if (std::abs(x) < static_cast<double>(max) / 448.0 * 0x1p-6) continue;
        CHECK(std::abs(x - y) <= std::abs(x) * 0x1p-4 * (1 + 1e-5));
      }
    }
  }
}

TEST_CASE("masking selects the same entries as removal and frees no memory") {
  const auto head = test::random_head(2, 16, 90, 60);
  const Budget budget{.fraction = 0, .entries = 20};
  test::SessionRun removed{method_of("h2o", 60, 16, {}, budget), head.view};
  test::SessionRun masked{method_of("h2o+store=masked", 60, 16, {}, budget), head.view};
  for (std::int64_t t = 60; t < 90; ++t) {
    removed.step(t);
    masked.step(t);
    CHECK(masked.session.kept() == removed.session.kept());
    CHECK(masked.session.bytes(0).kv.count() == (t + 1) * 2 * 16 * 2);
    CHECK(masked.session.bytes(0).kv ==
          masked.method
              ->layer_bytes(0, {.n_heads = 2, .n_kv_heads = 1, .head_dim = 16}, Dtype::kFp16, 60,
                            t + 1)
              ->kv);
  }
}

TEST_CASE("eviction and merging work with stores: bytes within bounds, a partial group counted") {
  for (const char* name :
       {"h2o+kivi-4", "zeromerge+kivi-2", "h2o+gear", "h2o+think", "h2o+int8", "zeromerge+rtn"}) {
    for (const Size& size : {Size{31, 200}, Size{150, 400}, Size{60, 60}}) {
      INFO(name, " prompt ", size.prompt);
      const auto head = test::random_head(2, 32, size.tokens, size.prompt, 12);
      test::SessionRun run{
          method_of(name, size.prompt, 32, {}, Budget{.fraction = 0, .entries = 100}), head.view};
      run.to_the_end();
      const std::int64_t kv = run.session.bytes(0).kv.count();
      const std::int64_t held = run.session.entries().size();
      CHECK(kv > 0);
      // An upper bound without bookkeeping: all rows unquantised, and a key group per token for
      // holes.
      CHECK(kv <= held * 2 * 32 * 2 + 400 * 40);
      CHECK(held <= 100);
    }
  }
  // A closed group leaves no remainder: a sliding window over KIVI holds at most one partial group.
  const auto head = test::random_head(1, 32, 600, 300);
  test::SessionRun run{
      method_of("streaming-llm+kivi-4", 300, 32,
                {{"quant_group", std::int64_t{32}}, {"residual", std::int64_t{32}}},
                Budget{.fraction = 0, .entries = 132}),
      head.view};
  run.to_the_end();
  // The prompt left 4 sinks and 172 … 299: four groups of 32; 296 … 299 wait, so later groups begin
  // at 296 + 32 i. At the end the window is 472 … 599: the sinks' group and that of 456 are
  // partial, those of 488, 520 and 552 are complete, and 584 … 599 wait; of the values, 568 … 599
  // wait and 96 + 4 are stored.
  CHECK(run.session.bytes(0).kv.count() ==
        5 * (32 * 32 / 2 + 4 * 32) + 100 * (16 + 4) + (16 + 32) * 64);
}

TEST_CASE("invalid settings are refused with the reason") {
  const auto refuses = [](const std::string& name, Params params, const std::string& why,
                          std::optional<Budget> budget = {}) {
    try {
      static_cast<void>(method_of(name, 100, 64, std::move(params), budget));
      FAIL_CHECK("not refused: ", name);
    } catch (const InputError& error) {
      CHECK(std::string{error.what()}.find(why) != std::string::npos);
    }
  };
  refuses("kivi-2", {{"bits", std::int64_t{3}}}, "expected 2, 4 or 8");
  refuses("kivi-2", {{"quant_group", std::int64_t{24}}}, "quant_group");
  refuses("kivi-2", {{"residual", std::int64_t{100}}}, "residual");
  refuses("kivi-2", {}, "takes no budget", Budget{0.2, 0});
  refuses("rtn", {{"quant_group", std::int64_t{0}}}, "quant_group");
  refuses("gear", {{"buffer", std::int64_t{65}}}, "buffer");
  refuses("gear", {{"outlier_share", 0.6}}, "outlier_share");
  refuses("zeromerge+gear", {}, "store=gear", Budget{0.5, 0});
  refuses("zeromerge+store=masked", {}, "store=masked", Budget{0.5, 0});
  refuses("think", {{"channel_share", 1.5}}, "channel_share");
  refuses("fp8-e4m3", {{"scale", std::string{"row"}}}, "scale");
  refuses("int8+kivi-2", {}, "two choices");
}

TEST_CASE("on a real trace: law, size and error of every store") {
  const auto trace = Trace::open(std::filesystem::path{KVSIM_SOURCE_DIR} /
                                 "traces/samples/books-treasure-512.safetensors");
  std::vector<MethodSpec> specs;
  for (const std::string& name : kStores)
    specs.push_back({.name = name, .params = {}, .budget = {}});
  for (const char* name : {"h2o+kivi-4", "h2o+gear", "h2o+think", "h2o+int8", "h2o+rtn"}) {
    specs.push_back({.name = name, .params = {}, .budget = Budget{0.2, 0}});
  }
  ReplayOptions options;
  options.per_step = true;
  const ReplayResult result = replay(trace, specs, options);
  for (const ReplayMethod& each : result.methods) {
    INFO(each.name);
    CHECK(each.rel_error_mean > 0);
    CHECK(each.rel_error_mean < 0.25);
    CHECK_FALSE(each.retained_mass_mean.has_value());
    if (each.budget) {
      CHECK(*each.budget_reached <= 0.2);
      CHECK(*each.budget_reached > 0.18);
      continue;
    }
    REQUIRE(each.closed_form_bytes_final.has_value());
    CHECK(*each.closed_form_bytes_final == each.bytes_held_final);
    const auto method =
        resolve_for_trace({.name = each.name, .params = {}, .budget = {}}, trace.info());
    for (const ReplayStep& step : each.series) {
      const auto law =
          layer_cache_bytes(*method, 0, {.n_heads = 6, .n_kv_heads = 2, .head_dim = 32},
                            Dtype::kFp16, 384, step.tokens);
      REQUIRE(step.bytes_held == 6 * law->count());
    }
  }
}

}  // namespace
}  // namespace kvsim
