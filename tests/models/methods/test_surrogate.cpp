// Surrogates of log scores: their formulas, fits that recover a known map, their files, and KVzap
// with surrogates.

#include <cmath>
#include <numbers>

#include <unistd.h>

#include "models/math/attention/surrogate.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/surrogates.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "tests/support/vectors.hpp"
#include "traces/synthetic/generate.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

fs::path scratch(const std::string& name) {
  return test::scratch_folder() / fmt::format("{}-{}", ::getpid(), name);
}

/// y = W h + c with noise or, if `bent`, the absolute value of a projection.
SurrogateSamples samples_of(std::int64_t n, std::int32_t inputs, double noise, bool bent,
                            std::uint64_t seed) {
  SurrogateSamples s;
  s.inputs = inputs;
  s.outputs = 2;
  test::Normal normal{seed};
  for (std::int64_t i = 0; i < n; ++i) {
    double a = -3;
    double b = 1;
    for (std::int32_t j = 0; j < inputs; ++j) {
      const double x = normal();
      s.hidden.push_back(static_cast<float>(x));
      a += (j % 3 - 1) * 0.5 * x;
      b += j == 0 ? x : 0.0;
    }
    if (bent) a = std::abs(a + 3);
    s.scores.push_back(a + noise * normal());
    s.scores.push_back(b + noise * normal());
  }
  return s;
}

TEST_CASE("a surrogate computes W2 GELU(W1 h + c1) + c2, or W h + c") {
  const Surrogate linear{
      .inputs = 2, .outputs = 1, .width = 0, .w1 = {}, .b1 = {}, .w2 = {2.0F, -1.0F}, .b2 = {0.5F}};
  CHECK(linear.predict(std::vector<float>{1.0F, 3.0F, 0.0F, 0.0F}) ==
        std::vector<float>{-0.5F, 0.5F});
  const Surrogate mlp{.inputs = 1,
                      .outputs = 2,
                      .width = 1,
                      .w1 = {2.0F},
                      .b1 = {-1.0F},
                      .w2 = {1.0F, -2.0F},
                      .b2 = {0.0F, 10.0F}};
  // GELU(2 * 1.5 - 1) = 2 Phi(2) = 1.9544997.
  const auto out = mlp.predict(std::vector<float>{1.5F});
  CHECK(static_cast<double>(out[0]) == test::rel(1.9544997361036416, 1e-6));
  CHECK(static_cast<double>(out[1]) == test::rel(10 - 2 * 1.9544997361036416, 1e-6));
}

TEST_CASE("ridge regression finds a linear map and shrinks it under strong noise") {
  const auto exact = fit_ridge(samples_of(200, 12, 0, false, 1), samples_of(60, 12, 0, false, 2));
  CHECK(exact.lambda == 1e-4);
  for (const double r2 : explained_variance(exact.surrogate, samples_of(60, 12, 0, false, 3))) {
    CHECK(r2 > 0.9999);
  }
  CHECK(static_cast<double>(exact.surrogate.b2[0]) == test::rel(-3, 1e-2));
  const auto noisy = fit_ridge(samples_of(30, 25, 8, false, 4), samples_of(30, 25, 8, false, 5));
  CHECK(noisy.lambda > 0.01);
  // It has a solution even with more inputs than samples.
  const auto wide = fit_ridge(samples_of(5, 31, 0, false, 6), samples_of(3, 31, 0, false, 7));
  for (const float w : wide.surrogate.w2) CHECK(std::isfinite(w));
}

TEST_CASE("an mlp learns a nonlinear map, the same for the same seed") {
  const auto train = samples_of(600, 6, 0.05, true, 1);
  const auto validation = samples_of(200, 6, 0.05, true, 2);
  const auto test = samples_of(200, 6, 0.05, true, 3);
  const MlpOptions options{
      .width = 24, .epochs = 150, .batch = 32, .learning_rate = 5e-3, .seed = 4};
  const auto fit = fit_mlp(train, validation, options);
  CHECK(explained_variance(fit.surrogate, test)[0] > 0.9);
  CHECK(explained_variance(fit.surrogate, test)[1] > 0.95);
  CHECK(explained_variance(fit_ridge(train, validation).surrogate, test)[0] < 0.3);
  CHECK(fit_mlp(train, validation, options).surrogate.w1 == fit.surrogate.w1);
}

/// A generated trace with all inputs of the fit; its files are removed with the object.
struct RepeatTrace {
  explicit RepeatTrace(const std::string& name, std::int32_t layers = 2, bool hidden = true)
      : path{scratch(name)} {
    GenerateOptions options;
    options.layers = layers;
    options.heads = 4;
    options.kv_heads = 2;
    options.head_dim = 16;
    options.d_model = 32;
    options.prompt_tokens = 200;
    options.tokens = 401;
    options.with_hidden = hidden;
    options.with_output_projection = options.with_repeat = true;
    generate_trace(options, path);
  }
  ~RepeatTrace() { fs::remove(path); }
  fs::path path;
};

TEST_CASE("weights are restored from their file and KVzap decides by their predictions") {
  const RepeatTrace trace{"repeat.safetensors"};
  const fs::path weights = scratch("weights.safetensors");
  for (const bool mlp : {false, true}) {
    SurrogateOptions options;
    options.mlp = mlp;
    options.training.epochs = 30;
    const SurrogateFits fits = fit_surrogates({trace.path}, options);
    CHECK(fits.train + fits.validation + fits.held_out == 200);
    // Blocks of 16: twelve whole blocks and a remainder of 8, one in five held out.
    CHECK(fits.held_out == 32);
    CHECK(fits.layers.size() == 2);
    write_surrogates(fits.file, weights);
    const SurrogateFile back = read_surrogates(weights);
    CHECK(back.metadata == fits.file.metadata);
    CHECK(back.metadata.at("kind") == (mlp ? "mlp" : "linear"));
    REQUIRE(back.layers.size() == 2);
    CHECK(back.layers[1].w2 == fits.file.layers[1].w2);
    CHECK(back.layers[1].w1 == fits.file.layers[1].w1);

    const Trace opened = Trace::open(trace.path);
    const double tau = -3.0;
    ReplayOptions replaying;
    replaying.kept_positions = true;
    const auto got = replay(opened,
                            {{.name = "kvzap",
                              .params = {{"kvzap_source", std::string{"surrogate"}},
                                         {"weights", weights.string()},
                                         {"threshold", tau},
                                         {"window", std::int64_t{16}}},
                              .budget = {}}},
                            replaying)
                         .methods.front();
    std::int64_t kept = 0;
    for (std::int32_t l = 0; l < 2; ++l) {
      const auto at = static_cast<std::size_t>(l);
      const auto predicted = fits.file.layers[at].predict(opened.read_hidden(l));
      for (std::size_t h = 0; h < 2; ++h) {
        std::vector<std::vector<std::int32_t>> want;
        for (std::int32_t i = 0; i < 401; ++i) {
          const double g = static_cast<double>(predicted[static_cast<std::size_t>(i) * 2 + h]);
          if (i >= 401 - 16 || g >= tau) want.push_back({i});
        }
        CHECK(got.kept[at][h] == want);
        kept += std::ssize(want);
      }
    }
    CHECK(kept < 4 * 401);  // some entries were dropped
    CHECK(kept > 4 * 16);
  }
  fs::remove(weights);
}

TEST_CASE("kvzap_source=ridge is the linear fit on its calibration trace") {
  const RepeatTrace trace{"calibration.safetensors"};
  const fs::path weights = scratch("ridge.safetensors");
  write_surrogates(fit_surrogates({trace.path}, {}).file, weights);
  const Trace opened = Trace::open(trace.path);
  const auto run = [&](const std::string& source, const std::string& param, const fs::path& path) {
    ReplayOptions options;
    options.kept_positions = true;
    return replay(opened,
                  {{.name = "kvzap",
                    .params = {{"kvzap_source", source},
                               {param, path.string()},
                               {"window", std::int64_t{16}}},
                    .budget = Budget{.fraction = 0.5, .entries = 0}}},
                  options)
        .methods.front();
  };
  const auto ridge = run("ridge", "calibration", trace.path);
  CHECK(ridge.kept == run("surrogate", "weights", weights).kept);
  CHECK(*ridge.budget_reached == test::rel(0.5, 0.01));
  fs::remove(weights);
}

TEST_CASE("mismatched weights are refused with the file's name") {
  const RepeatTrace trace{"two-layers.safetensors"};
  const RepeatTrace deep{"three-layers.safetensors", 3};
  const RepeatTrace blind{"no-hidden.safetensors", 2, false};
  CHECK_THROWS_WITH_AS((void)fit_surrogates({blind.path}, {}),
                       doctest::Contains("not all are recorded"), InputError);
  CHECK_THROWS_WITH_AS((void)fit_surrogates({trace.path, deep.path}, {}),
                       doctest::Contains("three-layers"), InputError);
  SurrogateOptions coarse;
  coarse.block = 64;
  CHECK_THROWS_WITH_AS((void)fit_surrogates({trace.path}, coarse),
                       doctest::Contains("at least 5 blocks"), InputError);
  CHECK_THROWS_WITH_AS((void)read_surrogates(trace.path), doctest::Contains("fit-surrogate"),
                       InputError);
  const fs::path weights = scratch("other.safetensors");
  write_surrogates(fit_surrogates({deep.path}, {}).file, weights);
  const auto kvzap = [&](Params params) {
    (void)replay(Trace::open(trace.path),
                 {{.name = "kvzap", .params = std::move(params), .budget = {}}}, {});
  };
  CHECK_THROWS_WITH_AS(kvzap({{"weights", weights.string()}}), doctest::Contains("got 3 layers"),
                       InputError);
  CHECK_THROWS_WITH_AS(kvzap({{"kvzap_source", std::string{"surrogate"}}}),
                       doctest::Contains("parameter weights"), InputError);
  CHECK_THROWS_WITH_AS(kvzap({{"kvzap_source", std::string{"ridge"}}}),
                       doctest::Contains("parameter calibration"), InputError);
  fs::remove(weights);
}

}  // namespace
}  // namespace kvsim
