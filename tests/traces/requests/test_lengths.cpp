// Distributions compared with theory, and bounds. Tolerances are five standard errors of the
// estimate unless stated otherwise, so that the test detects wrong parameters but does not fail by
// chance.

#include <cmath>
#include <functional>
#include <vector>

#include <doctest/doctest.h>

#include "models/units/check.hpp"
#include "tests/support/check.hpp"
#include "traces/requests/lengths.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int kDraws = 200'000;

struct Moments {
  double mean = 0.0, deviation = 0.0;
};

Moments moments_of(const std::function<double()>& draw) {
  std::vector<double> x(kDraws);
  Moments m;
  for (double& v : x) m.mean += (v = draw());
  m.mean /= kDraws;
  for (const double v : x) m.deviation += (v - m.mean) * (v - m.mean);
  m.deviation = std::sqrt(m.deviation / kDraws);
  return m;
}

void check_moments(const std::function<double()>& draw, double mean, double deviation,
                   double deviation_tolerance) {
  const Moments m = moments_of(draw);
  CHECK(std::abs(m.mean - mean) < 5.0 * deviation / std::sqrt(1.0 * kDraws));
  CHECK(m.deviation == rel(deviation, deviation_tolerance));
}

}  // namespace

TEST_CASE("the normal's distribution function and its inverse") {
  CHECK(normal_quantile(0.5) == doctest::Approx(0.0));
  CHECK(normal_quantile(0.975) == rel(1.959963984540054, 1e-13));
  CHECK(normal_quantile(0.99) == rel(2.3263478740408408, 1e-13));
  CHECK(normal_quantile(1e-10) == rel(-6.361340902404056, 1e-12));
  for (const double p : {1e-12, 0.01, 0.3, 0.77, 0.999999}) {
    CHECK(normal_cdf(normal_quantile(p)) == rel(p, 1e-11));
  }
}

TEST_CASE("the inverse of a distribution gives each length its probability") {
  const auto shares = [](const LengthSpec& spec) {
    const LengthSampler sampler{spec};
    REQUIRE(sampler.invertible());
    double sum = 0.0;
    std::int32_t last = 0;
    constexpr int kParts = 20'000;
    for (int i = 0; i < kParts; ++i) {
      const std::int32_t length = sampler.at((i + 0.5) / kParts);
      CHECK(length >= last);
      last = length;
      sum += length;
    }
    CHECK(sum / kParts == rel(sampler.mean(), 2e-3));
  };
  shares({.kind = LengthKind::kFixed, .low = 7, .high = 7});
  shares({.kind = LengthKind::kUniform, .low = 3, .high = 500});
  shares({.kind = LengthKind::kLognormal, .high = 9000, .mu = 6.0, .sigma = 0.9});
  shares({.kind = LengthKind::kZipf, .low = 1, .high = 900, .exponent = 1.1});
  shares({.kind = LengthKind::kEmpirical, .values = {1, 5, 90}, .weights = {2, 0, 1}});
  shares({.kind = LengthKind::kEmpirical, .values = {1, 5, 90}});
  const LengthSampler large{{.kind = LengthKind::kZipf, .low = 1, .high = 100'000}};
  CHECK_FALSE(large.invertible());
}

TEST_CASE("streams: unit means, deviations, and the standard's first word") {
  RandomStream s{1, "x"};
  check_moments([&] { return s.uniform(); }, 0.5, std::sqrt(1.0 / 12.0), 0.01);
  check_moments([&] { return s.normal(); }, 0.0, 1.0, 0.01);
  check_moments([&] { return s.exponential(); }, 1.0, 1.0, 0.015);
  for (const double shape : {0.25, 1.0, 4.0, 50.0}) {
    INFO("shape ", shape);
    check_moments([&] { return s.gamma(shape); }, 1.0, 1.0 / std::sqrt(shape), 0.02);
    const double second =
        std::tgamma(1.0 + 2.0 / shape) / std::pow(std::tgamma(1.0 + 1.0 / shape), 2);
    // At 0.25 the Weibull's fourth moment is too large for its deviation to be estimated.
    check_moments([&] { return s.weibull(shape); }, 1.0, std::sqrt(second - 1.0),
                  shape < 1.0 ? 0.5 : 0.02);
  }
}

TEST_CASE("streams: golden first values, and a different stream for each name and seed") {
  // 10000th word of a default-seeded engine, as defined by the standard ([rand.predef]).
  std::mt19937_64 engine;
  engine.discard(9999);
  CHECK(engine() == 9981545732273789042U);
  RandomStream a{0, "arrivals"};
  const double first = a.uniform();
  CHECK(first == RandomStream{0, "arrivals"}.uniform());
  CHECK(first != RandomStream{1, "arrivals"}.uniform());
  CHECK(first != RandomStream{0, "arrival"}.uniform());
  // The same engine and key computed independently of this code.
  CHECK(first == 0x1.843c2b83815cap-2);
  CHECK(a.uniform() == 0x1.6a4ab8cf0ca28p-4);
}

TEST_CASE("fixed, uniform: every value of the range and none beyond") {
  RandomStream s{2, "x"};
  const LengthSampler fixed{{.kind = LengthKind::kFixed, .low = 77, .high = 77}};
  CHECK(fixed.draw(s) == 77);
  const LengthSampler uniform{{.kind = LengthKind::kUniform, .low = 3, .high = 6}};
  std::vector<int> counts(10);
  for (int i = 0; i < kDraws; ++i) ++counts.at(static_cast<std::size_t>(uniform.draw(s)));
  CHECK(counts[2] == 0);
  CHECK(counts[7] == 0);
  for (std::size_t v = 3; v <= 6; ++v) {
    CHECK(std::abs(counts[v] - kDraws / 4.0) < 5.0 * std::sqrt(kDraws * 0.25 * 0.75));
  }
  CHECK(uniform.mean() == 4.5);
}

TEST_CASE("lognormal: from mean and p99, and truncated") {
  const LognormalShape shape = lognormal_of(1000, 4000);
  CHECK(std::exp(shape.mu + 0.5 * shape.sigma * shape.sigma) == rel(1000));
  CHECK(std::exp(shape.mu + 2.3263478740408408 * shape.sigma) == rel(4000, 1e-10));
  CHECK(shape.sigma < 2.3263478740408408);  // the narrower of two solutions
  CHECK(lognormal_of(50, 50).sigma == doctest::Approx(0.0));
  CHECK(lognormal_of(10, 10 * max_p99_per_mean()).sigma == rel(2.3263478740408408, 1e-6));
  CHECK_THROWS_AS((void)lognormal_of(10, 151), ContractError);

  const LengthSpec spec{.kind = LengthKind::kLognormal, .mu = shape.mu, .sigma = shape.sigma};
  const LengthSampler sampler{spec};
  RandomStream s{3, "x"};
  const double variance = 1e6 * std::expm1(shape.sigma * shape.sigma);
  check_moments([&] { return sampler.draw(s); }, 1000, std::sqrt(variance), 0.03);
  CHECK(sampler.mean() == rel(1000, 1e-5));
  int above = 0;
  for (int i = 0; i < kDraws; ++i) above += sampler.draw(s) > 4000 ? 1 : 0;
  CHECK(std::abs(above - 0.01 * kDraws) < 5.0 * std::sqrt(kDraws * 0.01 * 0.99));

  LengthSpec cut = spec;
  cut.low = 500;
  cut.high = 1500;
  const LengthSampler truncated{cut};
  double sum = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const std::int32_t n = truncated.draw(s);
    REQUIRE(n >= 500);
    REQUIRE(n <= 1500);
    sum += n;
  }
  // Deviation at most half the range.
  CHECK(std::abs(sum / kDraws - truncated.mean()) < 5.0 * 500.0 / std::sqrt(1.0 * kDraws) + 0.05);
}

TEST_CASE("zipf: probabilities of both samplers, bounds") {
  RandomStream s{4, "x"};
  for (const double exponent : {0.0, 0.7, 1.0, 2.0}) {
    for (const std::int32_t high : {50, 200'000}) {  // by a table, and by rejection
      INFO("exponent ", exponent, " up to ", high);
      const LengthSpec spec{
          .kind = LengthKind::kZipf, .low = 2, .high = high, .exponent = exponent};
      const LengthSampler sampler{spec};
      double mass = 0.0;
      for (std::int32_t n = 2; n <= high; ++n) mass += std::pow(n, -exponent);
      int twos = 0;
      int low_half = 0;
      const std::int32_t middle = high / 2;
      double below = 0.0;
      for (std::int32_t n = 2; n <= middle; ++n) below += std::pow(n, -exponent) / mass;
      for (int i = 0; i < kDraws; ++i) {
        const std::int32_t n = sampler.draw(s);
        REQUIRE(n >= 2);
        REQUIRE(n <= high);
        twos += n == 2 ? 1 : 0;
        low_half += n <= middle ? 1 : 0;
      }
      const auto near = [](int count, double p) {
        return std::abs(count - p * kDraws) < 5.0 * std::sqrt(kDraws * p * (1.0 - p)) + 1.0;
      };
      CHECK(near(twos, std::pow(2.0, -exponent) / mass));
      CHECK(near(low_half, below));
    }
  }
}

TEST_CASE("empirical: weights, equal weights, weight 0 never drawn") {
  RandomStream s{5, "x"};
  const LengthSampler weighted{
      {.kind = LengthKind::kEmpirical, .values = {10, 20, 30, 40}, .weights = {1, 0, 3, 0}}};
  int tens = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::int32_t n = weighted.draw(s);
    REQUIRE((n == 10 || n == 30));
    tens += n == 10 ? 1 : 0;
  }
  CHECK(std::abs(tens - 0.25 * kDraws) < 5.0 * std::sqrt(kDraws * 0.25 * 0.75));
  CHECK(weighted.mean() == 25.0);
  const LengthSampler plain{{.kind = LengthKind::kEmpirical, .values = {1, 1, 4}}};
  CHECK(plain.mean() == 2.0);
  check_moments([&] { return plain.draw(s); }, 2.0, std::sqrt(2.0), 0.02);
}
