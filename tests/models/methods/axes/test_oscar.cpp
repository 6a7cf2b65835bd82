// OSCAR INT2: worked examples, laws, bytes and errors.

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "models/math/low_rank/gram.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_learned.hpp"
#include "tests/support/store_run.hpp"

namespace kvsim {
namespace {

using test::rel;
using Rows = std::vector<float>;

const Rows kA{.10009765625F,   -.44921875F, .80078125F, 1.296875F,  -2.59375F,  3.09375F,
              -.050048828125F, .55078125F,  1.046875F,  -1.703125F, .30078125F, -.2001953125F,
              2.203125F,       -.8984375F,  .6484375F,  -3.703125F};
const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

Params settings(const std::string& rotation, std::int64_t first, std::int64_t last,
                double clip = 0) {
  return {{"rotation", rotation},
          {"full_first", first},
          {"full_last", last},
          {"key_clip", clip},
          {"value_clip", clip}};
}

TEST_CASE("OSCAR: the worked examples' steps, zero points and codes") {
  const auto check = [](double clip, double step, double zero, const std::vector<int>& codes) {
    const OscarRow row = oscar_row(kA, clip, Dtype::kFp32, false);
    CHECK(row.step == rel(step, 1e-6));
    CHECK(row.zero == rel(zero, 1e-6));
    for (std::size_t i = 0; i < kA.size(); ++i) {
      CAPTURE(i);
      CHECK(oscar_code(kA[i], row) == codes[i]);
    }
  };
  check(0, 2.265625, 1.634483, {2, 1, 2, 2, 0, 3, 2, 2, 2, 1, 2, 2, 3, 1, 2, 0});
  check(.75, 1.46875, 1.5, {2, 1, 2, 2, 0, 3, 1, 2, 2, 0, 2, 1, 3, 1, 2, 0});
  CHECK(oscar_row(kA, .75, Dtype::kFp32, false).bound == 2.203125F);
  // Without clipping the ends of the range are exact.
  const OscarRow ends = oscar_row(kA, 0, Dtype::kFp32, false);
  CHECK(oscar_value(0, ends) == rel(-3.703125, 1e-6));
  CHECK(oscar_value(3, ends) == rel(3.09375, 1e-6));
  const OscarRow zero = oscar_row(Rows(16, 0.F), .96, Dtype::kFp16, false);
  CHECK(oscar_value(oscar_code(0, zero), zero) == 0);
  // With fp16 storage, codes are still computed in fp32.
  const OscarRow half = oscar_row(kA, 0, Dtype::kFp16, false);
  CHECK(half.step == ends.step);
  CHECK(half.stored_zero == as_stored(half.zero, Dtype::kFp16));
}

TEST_CASE("OSCAR's levels of a normal row, as released") {
  // Mean 0 and deviation 1: bounds at +-.98107 and 0, equal steps of (3.0191 / 3) 1.16.
  Rows row;
  for (int i = 0; i < 8; ++i) row.insert(row.end(), {1, -1});
  const OscarRow set = oscar_row(row, 0, Dtype::kFp32, true);
  CHECK(set.deviation == rel(1, 1e-6));
  CHECK(set.step == rel(2 * 1.50955855846405 / 3 * 1.16, 1e-6));
  CHECK(set.zero == rel(1.5, 1e-6));
  CHECK(oscar_code(-.99F, set) == 0);
  CHECK(oscar_code(-.98F, set) == 1);
  CHECK(oscar_code(0, set) == 2);
  CHECK(oscar_code(.98F, set) == 2);
  CHECK(oscar_code(.99F, set) == 3);
  CHECK(oscar_value(2, set) == rel(.5 * 2 * 1.50955855846405 / 3 * 1.16, 1e-5));
}

/// x times the Hadamard matrix of d = x.size(), normalised.
Rows rotated(const Rows& x) {
  Rows out;
  for (std::size_t j = 0; j < x.size(); ++j) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += static_cast<double>(x[i]) * (std::popcount(i & j) % 2 == 0 ? 1 : -1);
    }
    out.push_back(static_cast<float>(sum / std::sqrt(static_cast<double>(x.size()))));
  }
  return out;
}

TEST_CASE("a stored row of OSCAR is the rounded rotation, rotated back") {
  test::StoreRun run{"oscar", settings("hadamard", 0, 0, .75), 16, 4};
  run.append(kA, kA);
  Rows row = rotated(kA);
  for (float& x : row) x = as_stored(x, Dtype::kBf16);
  const OscarRow scale = oscar_row(row, .75, Dtype::kFp16, false);
  for (float& x : row) x = oscar_value(oscar_code(x, scale), scale);
  const Rows want = rotated(row);
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(run.keys()[i] == doctest::Approx(want[i]).epsilon(1e-6));
    CHECK(run.values()[i] == doctest::Approx(want[i]).epsilon(1e-6));
  }
}

TEST_CASE("OSCAR keeps the first and the newest tokens, and rounds one as it leaves") {
  test::StoreRun run{"oscar", settings("hadamard", 3, 5), 16, 40};
  const Rows rows = test::normal_rows(40, 16, false);
  for (std::size_t t = 0; t < 40; ++t) {
    const auto row = std::span{rows}.subspan(t * 16, 16);
    run.append(row, row);
    const auto n = static_cast<std::int64_t>(t) + 1;
    const std::int64_t full = std::min<std::int64_t>(n, 8);
    CHECK(run.held() == full * 4 * 16 + (n - full) * 2 * (16 / 4 + 4));
    CHECK(run.held() == run.law(n));
    const Rows keys = run.keys();
    for (std::size_t i = 0; i <= t; ++i) {
      bool exact = true;
      for (std::size_t j = 0; j < 16; ++j) exact = exact && keys[i * 16 + j] == rows[i * 16 + j];
      CHECK(exact == (i < 3 || i + 5 > t));
    }
  }
  // 72 B per entry at 128 channels, 80 with fp32, 96 in vLLM; 2.28 bits at 131,072 tokens.
  const auto law = [](const std::string& layout, std::int64_t entries) {
    return test::StoreRun{"oscar", {{"layout", layout}}, 128, 8}.law(entries);
  };
  CHECK(law("fp16", 1320) == 72 * 1000 + 512 * 320);
  CHECK(law("fp32", 1320) == 80 * 1000 + 512 * 320);
  CHECK(law("vllm", 1320) == 96 * 1000 + 512 * 320);
  CHECK(static_cast<double>(law("fp16", 131072)) * 8 / 131072 / 256 ==
        doctest::Approx(2.28).epsilon(.002));
}

TEST_CASE("OSCAR's error on normal rows and on rows with outliers") {
  for (const bool outliers : {false, true}) {
    const Rows rows = test::normal_rows(4096, 128, outliers);
    test::StoreRun clipped{"oscar", settings("hadamard", 0, 0, .96), 128, 4096};
    test::StoreRun plain{"oscar", settings("hadamard", 0, 0), 128, 4096};
    clipped.append_all(rows, rows);
    plain.append_all(rows, rows);
    CHECK(test::relative_error(clipped.keys(), rows) == rel(outliers ? .139 : .156, .03));
    CHECK(test::relative_error(plain.values(), rows) == rel(outliers ? .207 : .250, .03));
  }
}

TEST_CASE("eigenvectors are orthonormal, diagonalise and ascend") {
  const Rows rows = test::normal_rows(300, 24, true);
  std::vector<double> weights;
  for (int i = 0; i < 300; ++i) weights.push_back(1 + i % 7);
  const auto gram = weighted_gram(rows, 24, weights);
  for (const std::size_t i : {0U, 5U, 23U}) {
    for (const std::size_t j : {0U, 5U, 23U}) {
      double sum = 0;
      for (std::size_t t = 0; t < 300; ++t) {
        sum += weights[t] * static_cast<double>(rows[t * 24 + i]) *
               static_cast<double>(rows[t * 24 + j]);
      }
      CHECK(gram[i * 24 + j] == doctest::Approx(sum).epsilon(1e-10));
    }
  }
  const auto u = symmetric_eigenvectors(gram, 24);
  double before = 0;
  for (std::size_t a = 0; a < 24; ++a) {
    for (std::size_t b = 0; b < 24; ++b) {
      double product = 0;
      double form = 0;
      for (std::size_t i = 0; i < 24; ++i) {
        product += u[i * 24 + a] * u[i * 24 + b];
        for (std::size_t j = 0; j < 24; ++j)
          form += u[i * 24 + a] * gram[i * 24 + j] * u[j * 24 + b];
      }
      CHECK(std::abs(product - (a == b ? 1 : 0)) < 1e-10);
      if (a != b) {
        CHECK(std::abs(form) < 1e-7);
      } else {
        CHECK(form >= before - 1e-7);
        before = form;
      }
    }
  }
}

TEST_CASE("OSCAR's rotation of a prompt: a reference with the same eigenvectors") {
  // Covariances in plain loops; the store's rows follow from the rotation U H.
  const std::int32_t d = 16;
  const auto head = test::random_head(2, d, 60, 40, 11);
  const auto head2 = test::random_head(2, d, 60, 40, 12);
  const std::vector<HeadVectors> heads{head.view, head2.view};
  std::vector<double> of_keys(16 * 16, 0.0), of_values(16 * 16, 0.0);
  for (const HeadVectors& one : heads) {
    std::vector<double> queries(16 * 16, 0.0);
    for (std::int32_t g = 0; g < 2; ++g) {
      for (std::int64_t t = 0; t < 40; ++t) {
        const auto q = one.query(g, t);
        for (std::size_t i = 0; i < 16; ++i) {
          for (std::size_t j = 0; j < 16; ++j) {
            queries[i * 16 + j] += static_cast<double>(q[i]) * static_cast<double>(q[j]) / 80;
          }
        }
      }
    }
    std::vector<double> w;
    double mean = 0;
    for (std::int64_t t = 0; t < 40; ++t) {
      const auto k = one.key(t);
      double form = 0;
      for (std::size_t i = 0; i < 16; ++i) {
        for (std::size_t j = 0; j < 16; ++j) {
          form += static_cast<double>(k[i]) * queries[i * 16 + j] * static_cast<double>(k[j]);
        }
      }
      w.push_back(form);
      mean += form / 40;
    }
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 16; ++j) {
        of_keys[i * 16 + j] += queries[i * 16 + j] / 2;
        for (std::int64_t t = 0; t < 40; ++t) {
          of_values[i * 16 + j] += w[static_cast<std::size_t>(t)] / mean *
                                   static_cast<double>(one.value(t)[i]) *
                                   static_cast<double>(one.value(t)[j]) / 40 / 2;
        }
      }
    }
  }
  LayerVectors layer;
  layer.heads = heads;
  PromptScores scores{{heads[1]}, 1, layer};
  test::StoreRun run{"oscar", settings("trace", 0, 0), d, 60};
  for (std::int32_t t = 0; t < 40; ++t) {
    run.table.append(t, heads[1].key(t), heads[1].value(t));
  }
  run.store->prompt_written(run.table, scores, 0);
  int differ = 0;
  const auto check = [&](const std::vector<double>& covariance, bool keys) {
    const auto u = symmetric_eigenvectors(covariance, 16);
    for (std::int32_t t = 0; t < 40; ++t) {
      const auto exact = keys ? heads[1].key(t) : heads[1].value(t);
      Rows turned(16, 0.F);
      for (std::size_t j = 0; j < 16; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < 16; ++i) sum += static_cast<double>(exact[i]) * u[i * 16 + j];
        turned[j] = static_cast<float>(sum);
      }
      Rows row = rotated(turned);
      for (float& x : row) x = as_stored(x, Dtype::kBf16);
      const OscarRow scale = oscar_row(row, 0, Dtype::kFp16, false);
      for (float& x : row) x = oscar_value(oscar_code(x, scale), scale);
      row = rotated(row);
      const auto found = keys ? run.table.key(t) : run.table.value(t);
      bool same = true;
      for (std::size_t i = 0; i < 16; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < 16; ++j) sum += static_cast<double>(row[j]) * u[i * 16 + j];
        same = same && std::abs(static_cast<double>(found[i]) - sum) < 2e-5;
      }
      // A sum in another order may be rounded to another bf16 number.
      differ += same ? 0 : 1;
    }
  };
  check(of_keys, true);
  check(of_values, false);
  CHECK(differ <= 8);  // out of 80
}

TEST_CASE("OSCAR in a replay is exact while all tokens are first or newest, and follows its law") {
  const Trace trace = Trace::open(kSample);
  const Params small{{"full_first", std::int64_t{16}}, {"full_last", std::int64_t{32}}};
  const auto result = replay(trace,
                             {{"oscar", {{"full_last", std::int64_t{512}}}, {}},
                              {"oscar", small, {}},
                              {"oscar",
                               {{"rotation", std::string{"hadamard"}},
                                {"full_first", std::int64_t{16}},
                                {"full_last", std::int64_t{32}}},
                               {}},
                              {"oscar+select=window",
                               {{"full_first", std::int64_t{16}}, {"full_last", std::int64_t{32}}},
                               Budget{0, 200}}},
                             {});
  CHECK(result.methods[0].rel_error_mean < 1e-5);
  for (const std::size_t i : {0U, 1U, 2U}) {
    CHECK(result.methods[i].bytes_held_final == *result.methods[i].closed_form_bytes_final);
  }
  CHECK(result.methods[1].rel_error_mean > 1e-3);
  CHECK(!result.methods[3].closed_form_bytes_final);
  CHECK(result.methods[3].bytes_held_final < result.methods[1].bytes_held_final);
  CHECK_THROWS_WITH_AS(
      (void)make_method({"h2o+oscar+merge=zip", {}, Budget{0, 100}}, 500,
                        {.shape = {.n_heads = 2, .n_kv_heads = 2, .head_dim = 64}}),
      doctest::Contains("expected merge=drop"), InputError);
}

}  // namespace
}  // namespace kvsim
