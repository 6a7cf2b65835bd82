// A grid of replays over several traces: hand-solved means, the best of them, figures.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "sim/report/replay_sweep/replay_sweep.hpp"
#include "sim/report/replay_sweep/sweep_figures.hpp"
#include "sim/report/replay_sweep/sweep_means.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

/// zeromerge at two budgets, slots 1, 2 and 4, and two words; three traces, the last of which could
/// not run the last combination. Errors: (1, 2, 6 by trace) x (0.01, 0.03, 0.02 by slots) x (0.5 at
/// the larger budget); words have no effect.
ReplaySweep grid() {
  ReplaySweep sweep;
  sweep.methods = {"zeromerge"};
  sweep.budgets = {Budget{0.1, 0}, Budget{0.2, 0}};
  sweep.axes = {{"residual_slots", {std::int64_t{1}, std::int64_t{2}, std::int64_t{4}}},
                {"score_update", {std::string{"max"}, std::string{"sum"}}}};
  const std::vector<double> by_slots{0.01, 0.03, 0.02};
  std::vector<double> errors;
  for (const Budget& budget : sweep.budgets) {
    for (std::size_t s = 0; s < 3; ++s) {
      for (const ParamValue& word : sweep.axes[1].values) {
        const ParamValue& slots = sweep.axes[0].values[s];
        sweep.cells.push_back(
            {{"zeromerge", {{"residual_slots", slots}, {"score_update", word}}, budget},
             {slots, word}});
        errors.push_back(by_slots[s] * (budget.fraction > 0.1 ? 0.5 : 1));
      }
    }
  }
  const ReplayMethod model = test::sample_replay().methods[1];
  for (const double of_trace : {1.0, 2.0, 6.0}) {
    ReplayJob job;
    job.result = test::sample_replay();
    job.result.trace = fmt::format("trace {}", of_trace);
    job.result.methods.clear();
    for (std::size_t c = 0; c < sweep.cells.size(); ++c) {
      if (of_trace == 6.0 && c + 1 == sweep.cells.size()) {
        job.skipped.push_back({"zeromerge", "no room"});
        continue;
      }
      ReplayMethod method = model;
      method.budget = sweep.cells[c].spec.budget->fraction;
      method.rel_error_mean = errors[c] * of_trace;
      job.ran.push_back(c);
      job.result.methods.push_back(std::move(method));
    }
    sweep.jobs.push_back(std::move(job));
  }
  return sweep;
}

TEST_CASE("sweep: means over traces by hand") {
  const ReplaySweep sweep = grid();
  const auto means = sweep_means(sweep);
  REQUIRE(means.size() == 12);
  // 0.01 x (1, 2, 6): mean 0.03, sd 0.01 sqrt 7, t of 2 degrees 4.303.
  const Spread& first = *means[0].over.rel_error;
  CHECK(first.n == 3);
  CHECK(first.mean == test::rel(0.03));
  CHECK(*first.sd == test::rel(0.01 * std::sqrt(7.0)));
  CHECK(*first.high == test::rel(0.03 + 4.303 * 0.01 * std::sqrt(7.0 / 3)));
  // A combination skipped in one trace is the mean of two, and is never the best: 0.5 x 0.02 x (1,
  // 2).
  const AggregateRow& last = means[11].over;
  CHECK(last.traces == std::vector<std::string>{"trace 1", "trace 2"});
  CHECK(last.rel_error->mean == test::rel(0.015));
  // The smallest of each budget; of equal means, the first (the words have no effect).
  CHECK(best_means(sweep, means) == std::vector<std::size_t>{0, 6});
  ReplaySweep tempting = sweep;
  for (std::size_t j = 0; j < 2; ++j) tempting.jobs[j].result.methods[11].rel_error_mean = 1e-9;
  CHECK(best_means(tempting, sweep_means(tempting)) == std::vector<std::size_t>{0, 6});

  const auto document = sweep_document(sweep);
  REQUIRE(document.at("means").size() == 12);
  CHECK(document.at("means").at(2).at("values").dump() ==
        R"({"residual_slots":2,"score_update":"max"})");
  CHECK(document.at("means").at(2).at("rel_error").at("mean").get<double>() == test::rel(0.09));
  CHECK(document.at("best_means").at(1).at("mean") == 6);
  const std::string csv = sweep_means_csv(sweep);
  CHECK(csv.starts_with("method,budget,residual_slots,score_update,traces,rel_error_mean,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 13);
  const auto fields = [](const std::string& line) {
    return std::count(line.begin(), line.end(), ',');
  };
  std::size_t from = 0;
  for (std::size_t end = csv.find('\n'); end != std::string::npos; end = csv.find('\n', from)) {
    CHECK(fields(csv.substr(from, end - from)) == 4 + 8 * 4);
    from = end + 1;
  }
  const std::string text = sweep_summary(sweep, nullptr, 200);
  CHECK(text.find("Means over the 3 traces.") != std::string::npos);
  CHECK(text.find("best mean error at budget 10 % holding ") != std::string::npos);
  CHECK(text.find("of the bytes: 0.03, residual_slots 1, score_update max") != std::string::npos);
}

/// grid() with these errors per cell; the other cells have an error of 1.
ReplaySweep grid_with(const std::map<std::size_t, double>& errors) {
  ReplaySweep sweep = grid();
  for (ReplayJob& job : sweep.jobs) {
    for (std::size_t m = 0; m < job.ran.size(); ++m) {
      const auto found = errors.find(job.ran[m]);
      job.result.methods[m].rel_error_mean = found == errors.end() ? 1 : found->second;
    }
  }
  return sweep;
}

TEST_CASE("sweep: the finding names the common settings of the best including ties") {
  // The words are tied everywhere, so only the slots are named.
  const ReplaySweep sweep = grid();
  const std::string finding =
      "At equal bytes residual_slots 1 has the least error in 6 of 6 comparisons.";
  CHECK(replay_sweep_finding(sweep) == finding);
  CHECK(sweep_summary(sweep, nullptr, 200).find("\nFinding: " + finding) != std::string::npos);
  CHECK(sweep_document(sweep).at("finding") == finding);
  // Cells: two budgets x (1 max, 1 sum, 2 max, 2 sum, 4 max, 4 sum).
  CHECK(replay_sweep_finding(grid_with({{1, 0.5}, {7, 0.5}})) ==
        "At equal bytes residual_slots 1, score_update sum has the least error in 6 of 6 "
        "comparisons.");
  CHECK(replay_sweep_finding(grid_with({{0, 0.5}, {3, 0.5}, {8, 0.5}, {7, 0.5}})) ==
        "No value leads in most of the 6 comparisons at equal bytes.");
  CHECK(replay_sweep_finding(grid_with({{0, 0.96}})) ==
        "The varied parameters change nothing here: at equal bytes all errors are within 5 %.");
  ReplaySweep one = grid_with({{0, 0.5}, {1, 0.5}});
  one.jobs.resize(1);
  one.jobs[0].ran.resize(6);
  one.jobs[0].result.methods.resize(6);
  CHECK(replay_sweep_finding(one).starts_with("Of the combinations that hold "));
  CHECK(replay_sweep_finding(one).ends_with(
      "residual_slots 1 has the least error (0.50; the largest is 1.00)."));
  one.jobs[0].ran.resize(1);
  one.jobs[0].result.methods.resize(1);
  CHECK(replay_sweep_finding(one) ==
        "No two combinations hold equal bytes here, so their errors are not comparable.");
}

TEST_CASE("sweep: errors that are not numbers are neither printed nor the best") {
  ReplaySweep sweep = grid();
  const auto lose = [&](std::size_t cell) {
    for (ReplayJob& job : sweep.jobs) {
      for (std::size_t m = 0; m < job.ran.size(); ++m) {
        if (job.ran[m] != cell) continue;
        job.result.methods[m].rel_error_mean = std::numeric_limits<double>::quiet_NaN();
        job.result.methods[m].rel_error_p99 = std::numeric_limits<double>::quiet_NaN();
      }
    }
  };
  // Slots 1, which have the smallest errors at each budget, are the first two cells of six.
  for (const std::size_t cell : {0U, 1U, 6U, 7U}) lose(cell);
  const std::string some = sweep_summary(sweep, nullptr, 200);
  CHECK(some.find("nan") == std::string::npos);
  CHECK(some.find("best mean error at budget 10 %") != std::string::npos);
  CHECK(replay_sweep_finding(sweep) ==
        "At equal bytes residual_slots 4 has the least error in 5 of 6 comparisons.");
  for (std::size_t cell = 0; cell < sweep.cells.size(); ++cell) lose(cell);
  const std::string none = sweep_summary(sweep, nullptr, 200);
  CHECK(none.find("nan") == std::string::npos);
  CHECK(none.find("best mean error") == std::string::npos);
  CHECK(replay_sweep_finding(sweep) ==
        "No two combinations with finite errors hold equal bytes here, so their errors are "
        "not comparable.");
  for (const Figure& figure : sweep_figures(sweep).figures) {
    INFO(figure.name);
    CHECK(figure.csv.find("nan") == std::string::npos);
  }
}

TEST_CASE("sweep: values of any length and many reasons keep the screen short") {
  ReplaySweep sweep = grid();
  const std::string value(50'000, 'x');
  sweep.axes[1].values[0] = value;
  for (SweepCell& cell : sweep.cells) {
    if (cell.values[1] == ParamValue{std::string{"max"}}) cell.values[1] = value;
  }
  sweep.jobs[2].skipped.clear();
  sweep.jobs[2].ran.clear();
  sweep.jobs[2].result.methods.clear();
  for (std::size_t c = 0; c < sweep.cells.size(); ++c) {
    sweep.jobs[2].skipped.push_back({"zeromerge", fmt::format("reason {}", c)});
  }
  const std::string text = sweep_summary(sweep, nullptr, 80);
  CHECK(text.size() < 8000);
  CHECK(text.find("and 7 more reasons\n") != std::string::npos);
}

TEST_CASE("sweep: one trace has no means and no bars") {
  ReplaySweep sweep = grid();
  sweep.jobs.resize(1);
  CHECK(sweep_document(sweep).at("means").empty());
  CHECK(sweep_document(sweep).at("best_means").empty());
  CHECK(sweep_summary(sweep, nullptr, 100).find("Means over") == std::string::npos);
  for (const Figure& figure : sweep_figures(sweep).figures) {
    CHECK(figure.script.find("$spreads") == std::string::npos);
  }
}

TEST_CASE("sweep: figures of error against bytes and against each parameter") {
  const ReplaySweep sweep = grid();
  const FigureSet set = sweep_figures(sweep);
  REQUIRE(set.figures.size() == 3);
  CHECK(set.notes.empty());
  CHECK(set.figures[0].name == "error_vs_bytes");
  CHECK(set.figures[0].title.find("means over 3 traces") != std::string::npos);
  // One line per combination over the budgets: 6 lines of 2 points each.
  const auto rows = [](const Figure& figure) {
    return std::count(figure.csv.begin(), figure.csv.end(), '\n') - 1;
  };
  CHECK(rows(set.figures[0]) == 12);
  CHECK(set.figures[0].csv.find("\"residual_slots 4, score_update max\"") != std::string::npos);
  // Four lines (budget, word) over three numbers; each point includes the ends of its bar.
  const Figure& slots = set.figures[1];
  CHECK(slots.name == "error_vs_residual_slots");
  CHECK(slots.script.find("set xlabel 'residual_slots of zeromerge (") != std::string::npos);
  CHECK(rows(slots) == 4 * 3 * 3);
  CHECK(slots.csv.find("0,0,1,0.03,") != std::string::npos);
  CHECK(slots.script.find("with vectors nohead") != std::string::npos);
  // Words are drawn as bars, not as a line.
  CHECK(set.figures[2].name == "error_vs_score_update");
  CHECK(set.figures[2].csv.find("max") != std::string::npos);
}

TEST_CASE("sweep: many lines are reduced to those through the best point of each budget") {
  ReplaySweep sweep = grid();
  // A third parameter with 5 values produces 20 slices of residual_slots.
  std::vector<ParamValue> alphas;
  for (std::int64_t i = 1; i <= 5; ++i) alphas.emplace_back(i);
  const ReplaySweep before = sweep;
  sweep.axes.push_back({"alpha", alphas});
  sweep.cells.clear();
  for (ReplayJob& job : sweep.jobs) {
    job.ran.clear();
    job.skipped.clear();
    job.result.methods.clear();
  }
  for (std::size_t c = 0; c < before.cells.size(); ++c) {
    for (const ParamValue& alpha : alphas) {
      SweepCell cell = before.cells[c];
      cell.values.emplace_back(alpha);
      cell.spec.params["alpha"] = alpha;
      for (ReplayJob& job : sweep.jobs) {
        ReplayMethod method = before.jobs[0].result.methods[c];
        // alpha 3 is the best everywhere.
        method.rel_error_mean += std::abs(static_cast<double>(std::get<std::int64_t>(alpha)) - 3);
        job.ran.push_back(sweep.cells.size());
        job.result.methods.push_back(std::move(method));
      }
      sweep.cells.push_back(std::move(cell));
    }
  }
  const FigureSet set = sweep_figures(sweep);
  REQUIRE(set.figures.size() == 4);
  const Figure& slots = set.figures[1];
  CHECK(slots.title.find("others as in each budget's best") != std::string::npos);
  CHECK(slots.csv.find("\"budget 10 %, score_update max, alpha 3\"") != std::string::npos);
  CHECK(slots.csv.find("\"budget 20 %, score_update max, alpha 3\"") != std::string::npos);
  CHECK(slots.csv.find("alpha 2") == std::string::npos);
}

}  // namespace
}  // namespace kvsim
