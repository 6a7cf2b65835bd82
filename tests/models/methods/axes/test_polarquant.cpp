// PolarQuant's keys and SpinQuant: stored rows compared with references of their equations, and
// bytes.

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/store_run.hpp"

namespace kvsim {
namespace {

using Rows = std::vector<float>;

TEST_CASE("polarquant's keys: angles and radii of a reference, within half a step") {
  for (const bool interleaved : {true, false}) {
    const Rope rope{8, 10000, interleaved};
    const Rows keys = test::normal_rows(70, 8, false, 5);
    const Rows values = test::normal_rows(70, 8, false, 6);
    test::StoreRun run{"polarquant", {{"quant_group", std::int64_t{32}}}, 8, 70, Dtype::kFp16,
                       &rope};
    LayerVectors layer;
    for (std::size_t t = 0; t < 70; ++t) {
      run.append(std::span{keys}.subspan(t * 8, 8), std::span{values}.subspan(t * 8, 8));
      CHECK(run.held() == run.law(static_cast<std::int64_t>(t) + 1));
    }
    CHECK(run.values() == values);
    const Rows found = run.keys();
    CHECK(std::equal(found.begin() + 64 * 8, found.end(), keys.begin() + 64 * 8));
    for (std::size_t first = 0; first < 64; first += 32) {
      for (std::size_t pair = 0; pair < 4; ++pair) {
        const std::size_t a = interleaved ? 2 * pair : pair;
        const std::size_t b = interleaved ? 2 * pair + 1 : pair + 4;
        std::vector<double> phi, rho;
        for (std::size_t t = first; t < first + 32; ++t) {
          const auto x = static_cast<double>(keys[t * 8 + a]);
          const auto y = static_cast<double>(keys[t * 8 + b]);
          phi.push_back(std::atan2(y, x) + (y < 0 ? 2 * std::numbers::pi : 0));
          rho.push_back(std::hypot(x, y));
        }
        const auto decode = [](const std::vector<double>& x, std::size_t i) {
          const auto [min, max] = std::minmax_element(x.begin(), x.end());
          const auto zero = static_cast<double>(as_stored(static_cast<float>(*min), Dtype::kFp16));
          const auto step =
              static_cast<double>(as_stored(static_cast<float>((*max - *min) / 16), Dtype::kFp16));
          const double code = std::clamp(std::floor((x[i] - zero) / step), 0.0, 15.0);
          // Rounding of step and minimum moves the ends by less than half a step more.
          CHECK(std::abs(zero + (code + .5) * step - x[i]) <= step);
          return zero + (code + .5) * step;
        };
        int wrong = 0;
        for (std::size_t i = 0; i < 32; ++i) {
          const double angle = decode(phi, i);
          const double radius = decode(rho, i);
          const std::size_t at = (first + i) * 8;
          wrong += std::abs(static_cast<double>(found[at + a]) - radius * std::cos(angle)) > 1e-5
                       ? 1
                       : 0;
          wrong += std::abs(static_cast<double>(found[at + b]) - radius * std::sin(angle)) > 1e-5
                       ? 1
                       : 0;
        }
        CHECK(wrong <= 2);  // numbers next to a bound
      }
    }
  }
  // 68 B per key of 128 channels in groups of 128; values and unpacked rows have 256 B.
  const test::StoreRun run{"polarquant", {}, 128, 8};
  CHECK(run.law(300) == 256 * (68 + 256) + 44 * 512);
  CHECK(run.law(127) == 127 * 512);
}

TEST_CASE("polarquant and spinquant follow their laws in a replay") {
  const auto result =
      replay(Trace::open(KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors"),
             {{"polarquant", {}, {}},
              {"spinquant", {}, {}},
              {"polarquant", {{"quant_group", std::int64_t{32}}}, {}}},
             {});
  for (const ReplayMethod& m : result.methods) {
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    CHECK(m.rel_error_mean > 0);
  }
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

const Rows kA{.10009765625F,   -.44921875F, .80078125F, 1.296875F,  -2.59375F,  3.09375F,
              -.050048828125F, .55078125F,  1.046875F,  -1.703125F, .30078125F, -.2001953125F,
              2.203125F,       -.8984375F,  .6484375F,  -3.703125F};

TEST_CASE("SpinQuant: QuaRot's arithmetic in groups of 128 channels") {
  const test::StoreRun quarot{"quarot", {}, 128, 8};
  const test::StoreRun spin{"spinquant", {}, 128, 8};
  CHECK(spin.law(10) == quarot.law(10));
  CHECK(spin.law(10) == 10 * 136);
  CHECK(test::StoreRun{"spinquant", {}, 256, 8}.law(10) == 10 * 2 * (128 + 8));
  // Two groups of 8 of a rotated row of 16, each with a separate step.
  test::StoreRun run{"quarot", {{"quant_group", std::int64_t{8}}}, 16, 4};
  run.append(kA, kA);
  Rows row = rotated(kA);
  for (std::size_t at = 0; at < 16; at += 8) {
    const auto part = std::span{row}.subspan(at, 8);
    const QuarotRow scale = quarot_row(part, 15, 1);
    for (float& x : part) x = quarot_value(quarot_code(x, scale), scale);
  }
  const Rows want = rotated(row);
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(run.keys()[i] == doctest::Approx(want[i]).epsilon(1e-5));
  }
  CHECK_THROWS_AS((test::StoreRun{"quarot", {{"quant_group", std::int64_t{48}}}, 128, 8}),
                  InputError);
}

}  // namespace
}  // namespace kvsim
