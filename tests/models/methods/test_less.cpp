// LESS: its gradient, a reference, weights read from a file.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "models/math/counter_random.hpp"
#include "models/math/low_rank/low_rank_kernel.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/merging_run.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

using test::clustered_head;
using test::distance;
using test::rel;
using test::sample;
using test::Vec;
using Run = test::MethodRun;

constexpr std::int32_t kDim = 16;

// --- LESS ---

LowRankTask small_task(test::Normal& normal, std::size_t n, std::size_t m, std::size_t d) {
  LowRankTask task;
  const auto fill = [&](std::vector<double>& to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to.push_back(normal());
  };
  fill(task.queries, n * d);
  fill(task.keys, m * d);
  fill(task.values, m * d);
  fill(task.kept_out, n * d);
  fill(task.target, n * d);
  for (std::size_t i = 0; i < n * m; ++i) task.visible.push_back(i % 5 == 0 ? 0.0 : 1.0);
  for (std::size_t i = 0; i < n; ++i) {
    task.kept_sum.push_back(1.0 + std::abs(normal()));
    task.shift.push_back(0.3 * normal());
  }
  return task;
}

TEST_CASE("less: the gradient equals finite differences and a fit lowers the loss") {
  test::Normal normal{13};
  for (const auto& [d, hidden, rank] : {std::tuple{5, 7, 3}, {1, 1, 1}, {8, 16, 2}}) {
    LowRankKernel kernel{{.head_dim = d, .hidden = hidden, .rank = rank}, 99};
    const LowRankTask task = small_task(normal, 6, 11, static_cast<std::size_t>(d));
    // Away from the start, where the state is almost zero.
    for (double& x : kernel.parameters()) x += 0.4 * normal();
    std::vector<double> gradient(kernel.shape().parameters());
    const double loss = low_rank_loss(kernel, task, gradient);
    CHECK(loss == low_rank_loss(kernel, task, {}));
    double largest = 0;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    REQUIRE(largest > 1e-4);
    constexpr double kStep = 1e-6;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      double& x = kernel.parameters()[i];
      const double at = x;
      x = at + kStep;
      const double above = low_rank_loss(kernel, task, {});
      x = at - kStep;
      const double below = low_rank_loss(kernel, task, {});
      x = at;
      CHECK(std::abs((above - below) / (2 * kStep) - gradient[i]) < 1e-5 * std::max(1.0, largest));
    }
    const auto [before, after] = fit_low_rank(kernel, task, 50, 0.01);
    CHECK(before == loss);
    CHECK(after < before);
    CHECK(low_rank_loss(kernel, task, {}) == after);
  }
}

TEST_CASE("less: the output equals a reference of kept entries and a state") {
  const auto head = clustered_head(2, kDim, 120, 80, 33);
  const Params params{{"fit_steps", std::int64_t{0}}, {"hidden", std::int64_t{9}}};
  Run run{"less", head.view, 20, params};
  // Its maps after initialisation: from the seed, for layer and head 0.
  const LowRankKernel kernel{{.head_dim = kDim, .hidden = 9, .rank = 8}, counter_key({0, 0, 0})};
  double largest = 0;
  for (std::int64_t t = 80; t < 120; ++t) {
    std::set<std::int32_t> held(run.session.entries().ids().begin(),
                                run.session.entries().ids().end());
    held.insert(static_cast<std::int32_t>(t));
    run.step(t);
    for (std::int32_t g = 0; g < 2; ++g) {
      const Vec q = test::to_vec(head.view.query(g, t));
      const std::vector<double> phi = kernel.phi(q);
      Vec out(kDim, 0.0);
      double sum = 0;
      double state = 0;
      for (std::int32_t id = 0; id <= t; ++id) {
        const Vec k = test::to_vec(head.view.key(id));
        double w = 0;
        if (held.contains(id)) {
          w = std::exp(head.view.scale * test::inner(q, k));
        } else {
          w = test::inner(phi, kernel.psi(k));
          state += w;
        }
        sum += w;
        for (std::size_t j = 0; j < kDim; ++j) {
          out[j] += w * static_cast<double>(head.view.value(id)[j]);
        }
      }
      for (double& x : out) x /= sum;
      largest = std::max(largest, state / sum);
      const auto got = run.session.output(0).subspan(static_cast<std::size_t>(g) * kDim, kDim);
      CHECK(distance({got.begin(), got.end()}, out) < 1e-9);
      CHECK(run.session.log_sum(0, g) == rel(std::log(sum), 1e-9));
    }
  }
  CHECK(largest > 1e-5);  // the state had an effect
  CHECK(run.session.counts().at("less_taken_in") == 100);
}

TEST_CASE("less: weights from a file are used and a wrong file is named") {
  const auto head = clustered_head(1, kDim, 90, 60, 35);
  LowRankKernel kernel{{.head_dim = kDim, .hidden = 5, .rank = 2}, 1234};
  for (double& x : kernel.parameters()) x = static_cast<double>(static_cast<float>(3 * x));
  const auto path = test::scratch_folder() / "low-rank.bin";
  const auto write = [&](const std::string& line, std::size_t heads) {
    std::ofstream file{path, std::ios::binary};
    file << line << '\n';
    for (std::size_t h = 0; h < heads; ++h) {
      for (const double x : kernel.parameters()) {
        const auto each = static_cast<float>(x);
        file.write(reinterpret_cast<const char*>(&each), sizeof each);
      }
    }
  };
  const auto resolve = [&] {
    return make_method({"less", {{"weights", path.string()}}, Budget{0, 20}}, 60,
                       {.recorded = Dtype::kFp32,
                        .shape = {.n_heads = 1, .n_kv_heads = 1, .head_dim = kDim},
                        .windows = {},
                        .n_layers = 1});
  };
  write("kvsim-low-rank 1 1 1 16 5 2", 1);
  test::SessionRun run{resolve(), head.view};
  std::vector<std::int32_t> gone;
  for (std::int32_t id = 0; id < 60; ++id) {
    if (run.session.entries().slot_of(id) < 0) gone.push_back(id);
  }
  run.step(60);
  const Vec q = test::to_vec(head.view.query(0, 60));
  double sum = 0;
  for (std::int32_t id = 0; id <= 60; ++id) {
    const Vec k = test::to_vec(head.view.key(id));
    const bool left = std::find(gone.begin(), gone.end(), id) != gone.end();
    sum += left ? test::inner(kernel.phi(q), kernel.psi(k))
                : std::exp(head.view.scale * test::inner(q, k));
  }
  CHECK(gone.size() == 40);
  CHECK(run.session.log_sum(0, 0) == rel(std::log(sum), 1e-9));
  const auto says = [&](std::string_view why) {
    try {
      static_cast<void>(resolve());
    } catch (const InputError& error) {
      INFO(error.what());
      CHECK(std::string{error.what()}.find(why) != std::string::npos);
      return;
    }
    FAIL("accepted");
  };
  write("kvsim-low-rank 1 1 1 16 5 2", 2);
  says("bytes of numbers");
  write("kvsim-low-rank 1 1 1 16 5 2", 0);
  says("bytes of numbers");
  write("kvsim-low-rank 1 1 2 16 5 2", 2);
  says("weights are for 1 layers, 2 heads");
  write("other 1 1 1 16 5 2", 1);
  says("expected a first line");
  write("kvsim-low-rank 1 1 1 16 -5 2", 1);
  says("expected a first line");
  std::filesystem::remove(path);
  says("cannot be read");
}

TEST_CASE(
    "less: constant state, unused while all tokens fit, and a helpful fit on recorded heads") {
  const auto head = test::random_head(1, kDim, 90, 40, 3);
  Run roomy{"less", head.view, 200};
  Run full{"full", head.view, std::nullopt};
  roomy.to_the_end();
  full.to_the_end();
  CHECK(distance({roomy.session.output(0).begin(), roomy.session.output(0).end()},
                 {full.session.output(0).begin(), full.session.output(0).end()}) == 0);
  const Trace trace = Trace::open(sample());
  const auto result =
      replay(trace, {{"less", {}, Budget{0.1, 0}}, {"h2o", {}, Budget{0.1, 0}}}, {});
  const ReplayMethod& less = result.methods[0];
  const ReplayMethod& h2o = result.methods[1];
  CHECK(less.rel_error_mean < 0.9 * h2o.rel_error_mean);
  CHECK(less.side_bytes_final - h2o.side_bytes_final == 12 * 8 * 33 * 4);
  CHECK(*less.closed_form_bytes_final == less.bytes_held_final);
  CHECK(less.counts.at("less_fit_loss_after") < less.counts.at("less_fit_loss_before"));
}

}  // namespace
}  // namespace kvsim
