// Measured scores: reading, groups, predictions that exclude a model, savings at a bound.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/quality/quality_groups.hpp"
#include "models/quality/quality_model.hpp"
#include "models/quality/quality_ranking.hpp"
#include "models/quality/quality_rows.hpp"
#include "models/quality/quality_saving.hpp"
#include "models/quality/quality_verdict.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

namespace fs = std::filesystem;

const std::string kHeader =
    "source,model,task,metric,method,budget,budget_unit,bits,when,score,score_full,n_samples,"
    "stderr,"
    "context_tokens\n";

std::string why(const std::string& text) {
  try {
    (void)parse_quality_csv(text, "f.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// Scores of made-up methods on `models` models of one harness; "steep" loses twice as much.
std::vector<QualityRow> made_rows(int models) {
  std::string text = kHeader;
  for (int m = 0; m < models; ++m) {
    for (const double budget : {0.2, 0.4, 0.6, 0.8}) {
      for (int task = 0; task < 6; ++task) {
        for (const int slope : {1, 2}) {
          // The model and the task change a score by up to 1 %.
          const double noise = 0.01 * (((m * 7 + task * 5) % 9) / 4.0 - 1.0);
          const double score = 50.0 * (1.0 - slope * 0.2 * (1.0 - budget) + noise);
          text += fmt::format(
              "h@1 "
              "file,m{},longbench/t{},f1,{},{},fraction,16,prefill-only;question-aware,{:.4f},50,"
              "200,0.5,4096\n",
              m, task, slope == 1 ? "mild" : "steep", budget, score);
        }
      }
    }
  }
  return parse_quality_csv(text, "made.csv");
}

}  // namespace

TEST_CASE("quality: retained scores, their errors and bytes") {
  const auto rows = parse_quality_csv(
      kHeader +
          "h@1 x,m,ruler-4k/a,accuracy,snapkv,0.25,fraction,16,prefill-only,40,80,100,,4096\n"
          "\"a \"\"b\"\", c\",m,ppl/w,perplexity,kivi-2,1,fraction,2,prefill+decode,5,4,,0.1,\n"
          "h,m,longbench/q,f1,snapkv,512,tokens,16,prefill-only,9,,~50,1,<=8192\n"
          "h,m,longbench/q,f1,snapkv,512,tokens,,prefill-only,9,10,,,2048\n"
          "h,m,longbench/q,f1,full,,,16,none,10,10,,,\n",
      "f.csv");
  REQUIRE(rows.size() == 5);
  CHECK(*rows[0].retained() == rel(0.5));
  CHECK(*rows[0].retained_stderr() == rel(std::sqrt(40.0 * 60.0 / 100.0) / 80.0));
  CHECK(*rows[0].kept_bytes() == rel(0.25));
  CHECK(rows[0].harness() == "h");
  CHECK(rows[1].source == "a \"b\", c");
  CHECK(*rows[1].retained() == rel(0.8));  // a lower perplexity is better
  CHECK(*rows[1].retained_stderr() == rel(0.1 / 5.0 * 0.8));
  CHECK(*rows[1].kept_bytes() == rel(0.125));
  CHECK_FALSE(rows[2].retained());
  CHECK_FALSE(rows[2].kept_bytes());  // prompt lengths have only an upper bound
  CHECK(*rows[2].samples == 50.0);
  CHECK(*rows[3].kept_bytes() == rel(0.25));
  CHECK_FALSE(rows[3].retained_stderr());
  CHECK(*rows[4].kept_bytes() == 1.0);
}

TEST_CASE("quality: the binomial error is the same for percentages and fractions") {
  const auto stderr_of = [](const std::string& score, const std::string& full) {
    return *parse_quality_csv(
                kHeader +
                    fmt::format("h,m,a,accuracy,x,0.5,fraction,16,w,{},{},200,,\n", score, full),
                "f.csv")
                .front()
                .retained_stderr();
  };
  // sqrt(0.83 * 0.17 / 200) / 0.85
  CHECK(stderr_of("0.83", "0.85") == rel(std::sqrt(0.83 * 0.17 / 200.0) / 0.85));
  for (const auto& [score, full] : std::vector<std::pair<double, double>>{
           {83.0, 85.0}, {50.0, 100.0}, {100.0, 99.0}, {0.0, 60.0}, {2.0, 90.0}}) {
    CAPTURE(score);
    CHECK(
        stderr_of(fmt::format("{}", score), fmt::format("{}", full)) ==
        doctest::Approx(stderr_of(fmt::format("{}", score / 100), fmt::format("{}", full / 100))));
  }
  // 0.5 of 85 is half a percent; 1 of 1 is one percent, because the same source also has a 40.
  CHECK(stderr_of("0.5", "85") == rel(std::sqrt(0.5 * 99.5 / 200.0) / 85.0));
  const auto rows = parse_quality_csv(kHeader +
                                          "h@1 x,m,a,accuracy,x,0.5,fraction,16,w,1,1,200,,\n"
                                          "h@1 y,m,b,accuracy,x,0.5,fraction,16,w,40,50,200,,\n"
                                          "k,m,a,accuracy,x,0.5,fraction,16,w,1,1,200,,\n",
                                      "f.csv");
  CHECK(*rows[0].retained_stderr() == rel(std::sqrt(99.0 / 200.0)));
  CHECK(*rows[2].retained_stderr() == 0.0);
}

TEST_CASE("quality: repeated rows are one group with the error of their mean") {
  const auto rows =
      parse_quality_csv(kHeader +
                            "h,m,t/a,f1,x,0.5,fraction,16,w,40,50,,1,\n"
                            "h,m,t/a,f1,x,0.5,fraction,16,w,44,50,,1,\n"
                            "k,m,t/a,f1,x,0.5,fraction,16,w,10,50,,,\n"  // another harness
                            "h,m,t/a,f1,x,0.5,fraction,4,w,10,50,,,\n",  // another width
                        "f.csv");
  const auto groups = group_quality(rows);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].rows.size() == 2);
  CHECK(*groups[0].retained == rel(0.84));
  CHECK(*groups[0].standard_error == rel(std::sqrt(2.0) / 50.0 / 2.0));
  CHECK_FALSE(groups[1].standard_error);
}

TEST_CASE("quality: a budget in tokens keeps different bytes of different prompts") {
  const auto rows = parse_quality_csv(kHeader +
                                          "h,m,t/a,f1,x,512,tokens,16,w,40,50,,1,1024\n"
                                          "h,m,t/a,f1,x,512,tokens,16,w,30,50,,1,8192\n"
                                          "h,m,t/a,f1,x,512,tokens,16,w,42,50,,1,1024\n"
                                          "h,m,t/a,f1,x,512,tokens,16,w,20,50,,1,<=8192\n"
                                          "h,m,t/a,f1,y,0.5,fraction,16,w,40,50,,1,1024\n"
                                          "h,m,t/a,f1,y,0.5,fraction,16,w,30,50,,1,8192\n",
                                      "f.csv");
  const auto groups = group_quality(rows);
  REQUIRE(groups.size() == 4);
  CHECK(*groups[0].kept_bytes == rel(512.0 / 1024.0));
  CHECK(*groups[0].retained == rel(0.82));
  CHECK(*groups[1].kept_bytes == rel(512.0 / 8192.0));
  CHECK_FALSE(groups[2].kept_bytes);
  CHECK(groups[3].rows.size() == 2);  // a share is independent of the length
  for (const QualityGroup& group : groups) {
    for (const std::size_t i : group.rows) CHECK(rows[i].kept_bytes() == group.kept_bytes);
  }
}

TEST_CASE("quality: broken tables are refused with line, column and value") {
  CHECK(why("") == "f.csv: expected a table of measured scores, got an empty file");
  CHECK(why("model,task\n").starts_with("f.csv:1: expected a column \"method\", got none"));
  CHECK(why(kHeader) == "f.csv: expected at least one row after the header, got none");
  CHECK(why(kHeader + "h,m,t,f1,x,0.5,fraction,16,w,forty,50,,,\n") ==
        "f.csv:2: score: expected a number in [-1e+09, 1e+09] or nothing, got \"forty\"");
  CHECK(why(kHeader + "h,m,t,f1,x,0.5,fraction,16,w,,50,,,\n") ==
        "f.csv:2: score: expected a number, got \"\"");
  CHECK(why(kHeader + "h,m,t,f1,x,1.5,fraction,16,w,4,50,,,\n") ==
        "f.csv:2: budget: expected a fraction in (0, 1], got \"1.5\"");
  CHECK(why(kHeader + "h,m,t,f1,x,0.5,fractoin,16,w,4,50,,,\n") ==
        "f.csv:2: budget_unit: expected fraction, tokens, fraction of bytes or nothing, got "
        "\"fractoin\"");
  CHECK(why(kHeader + "h,m,t,f1,x,0.5,,16,w,4,50,,,\n").empty());  // the size is unknown
  CHECK(why(kHeader + "h,,t,f1,x,1,fraction,16,w,4,50,,,\n") ==
        "f.csv:2: model: expected a name, got \"\"");
  CHECK(why(kHeader + "h,m,t\n") == "f.csv:2: expected 14 cells as in the header, got 3");
  CHECK(why(kHeader + "h,\"m\n").find("a quoted cell that ends") != std::string::npos);
  CHECK(why("model,model,task,method,score,score_full\n").find("twice") != std::string::npos);
}

TEST_CASE("quality: kvpress results, as folders and as files") {
  const fs::path folder = fresh("kvpress");
  const auto put = [&](const std::string& name, const std::string& text) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream{folder / name} << text;
  };
  put("ruler__4096__meta-llama--Llama-3.1-8B-Instruct__no_press__0.00/metrics.json",
      R"({"niah_single_1": {"string_match": 100.0}, "vt": {"string_match": 80.0}})");
  put("ruler__4096__meta-llama--Llama-3.1-8B-Instruct__knorm__0.50/metrics.json",
      R"({"niah_single_1": {"string_match": 50.0}, "vt": {"string_match": NaN}})");
  CHECK_THROWS_AS((void)read_quality(folder), InputError);  // NaN is not a score
  put("ruler__4096__meta-llama--Llama-3.1-8B-Instruct__knorm__0.50/metrics.json",
      R"({"niah_single_1": {"string_match": 50.0}, "vt": {"string_match": 60.0}})");
  put("longbench__qasper__org--m__snapkv__0.25.json", "12.5");
  const auto rows = read_quality(folder);
  REQUIRE(rows.size() == 5);
  const auto found = std::find_if(rows.begin(), rows.end(), [](const QualityRow& row) {
    return row.method == "knorm" && row.task == "ruler-4096/vt";
  });
  REQUIRE(found != rows.end());
  CHECK(found->model == "Llama-3.1-8B-Instruct");
  CHECK(*found->budget == rel(0.5));
  CHECK(*found->retained() == rel(0.75));
  CHECK(found->when == "prefill-only;question-agnostic");
  const auto alone = std::find_if(rows.begin(), rows.end(),
                                  [](const QualityRow& row) { return row.method == "snapkv"; });
  CHECK_FALSE(alone->retained());  // no full-cache score on that data
  CHECK(*alone->budget == rel(0.75));
  CHECK_THROWS_AS((void)read_quality(fresh("empty")), InputError);
}

TEST_CASE("quality: full scores of kvpress runs with suffixes") {
  const fs::path folder = fresh("kvpress-suffixes");
  const auto put = [&](const std::string& run, double score) {
    fs::create_directories(folder / ("ruler__4096__org--m__" + run));
    std::ofstream{folder / ("ruler__4096__org--m__" + run) / "metrics.json"}
        << fmt::format(R"({{"vt": {{"string_match": {}}}}})", score);
  };
  const auto full_of = [&](const std::string& press, const std::string& when) {
    for (const QualityRow& row : read_quality(folder)) {
      if (row.setting == press && row.when.ends_with(when)) return row.score_full.value_or(-1.0);
    }
    return -2.0;
  };
  put("no_press__0.00", 80);
  put("snapkv__0.50__query_aware", 60);
  put("knorm__0.50__compressed_questions", 40);
  put("tova__0.50__fraction0.100", 50);
  CHECK(full_of("snapkv", "question-aware") == 80);
  CHECK(full_of("knorm", "question-aware") == 80);
  CHECK(full_of("tova", "question-agnostic") == -1);  // the scores of other samples differ
  // A run with the same suffix comes first.
  put("no_press__0.00__query_aware", 90);
  CHECK(full_of("snapkv", "question-aware") == 90);
  put("no_press__0.00__fraction0.100", 70);
  put("tova__0.50__fraction0.100__query_aware", 50);
  CHECK(full_of("tova", "question-agnostic") == 70);
  CHECK(full_of("tova", "question-aware") == 70);
}

TEST_CASE("quality: predictions do not use scores of the model that is left out") {
  std::vector<QualityRow> rows = made_rows(8);
  const QualityModel model{rows};
  // A model's own scores do not change its prediction.
  std::vector<QualityRow> other = rows;
  for (QualityRow& row : other) {
    if (row.model == "m3") row.score = 1.0;
  }
  const QualityModel changed{other};
  for (const QualityRow& row : rows) {
    if (row.model != "m3") continue;
    const auto a = model.predict_without(row, LeaveOut::kPair);
    const auto b = changed.predict_without(row, LeaveOut::kPair);
    REQUIRE(a.has_value());
    CHECK(a->supported);
    CHECK(a->retained == b->retained);
    CHECK(a->retained == doctest::Approx(*row.retained()).epsilon(0.06));
  }
  const LeaveOutError error = model.leave_out_error(LeaveOut::kPair, QualityKind::kEviction);
  CHECK(error.rows == rows.size());
  CHECK(error.pairs == 8);
  CHECK(*error.mean_absolute < 0.03);
  CHECK(*error.coverage > 0.8);
  // A method without measurements of another model has no support and no interval.
  QualityRow lone = rows.front();
  lone.method = "unheard-of";
  const auto p = model.predict(lone);
  REQUIRE(p.has_value());
  CHECK_FALSE(p->supported);
  CHECK_FALSE(p->low);
  // No measured row has this kind, so there is no prediction.
  lone.when = "prefill compute only (cache whole)";
  CHECK_FALSE(model.predict(lone));
}

TEST_CASE("quality: the largest saving at a bound, with its evidence") {
  const std::vector<QualityRow> rows = made_rows(8);
  const QualityModel model{rows};
  SavingQuery query{.max_loss = 0.06, .context = 5000.0};
  const auto savings = largest_savings(rows, model, query);
  REQUIRE(savings.size() == 2);
  // mild loses 0.04 at 0.8 kept and 0.08 at 0.6; steep loses 0.08 at 0.8.
  CHECK(savings[0].method == "mild");
  REQUIRE(savings[0].certain.has_value());
  CHECK(*savings[0].certain == rel(0.2));
  CHECK(*savings[0].possible >= *savings[0].certain);
  CHECK(savings[0].rows == 8 * 4 * 6);
  CHECK(savings[0].models.size() == 8);
  CHECK(*savings[0].nearest_context == 4096.0);
  CHECK_FALSE(savings[1].certain);
  // A larger permitted loss never reduces the saving.
  double before = 0.0;
  for (const double loss : {0.01, 0.05, 0.1, 0.2, 0.5}) {
    query.max_loss = loss;
    const auto all = largest_savings(rows, model, query);
    const double now = all[0].certain.value_or(0.0);
    CHECK(now >= before);
    before = now;
  }
  // A model without measurements is predicted, and the answer reports that it is.
  query.max_loss = 0.2;
  query.models = {"another-model"};
  const auto predicted = largest_savings(rows, model, query);
  REQUIRE(predicted.size() == 2);
  CHECK(predicted[0].basis == SavingBasis::kPredicted);
  CHECK(predicted[0].points.front().has_interval);
  query.methods = {"unheard-of"};
  CHECK(largest_savings(rows, model, query).empty());
}

TEST_CASE("quality: verdicts on planned methods state their evidence") {
  const std::vector<QualityRow> rows = made_rows(8);
  const QualityModel model{rows};
  const auto judge = [&](const std::string& method, std::optional<double> kept,
                         const std::string& name = "m1") {
    return judge_quality(rows, model,
                         {.method = method, .kept_entries = kept, .model = name, .context = 4000.0},
                         0.06)
        .front();
  };
  using Answer = QualityVerdict::Answer;
  CHECK(judge("full", {}).answer == Answer::kHolds);
  CHECK(judge("mild", 0.8).answer == Answer::kHolds);
  CHECK(judge("mild", 0.9).answer == Answer::kHolds);  // more than a sufficient budget
  CHECK(judge("mild", 0.4).answer == Answer::kFails);
  CHECK(judge("mild", 0.1).answer == Answer::kUnknown);  // less than any measured budget
  CHECK(judge("mild", 0.8).basis.find("24 rows of m1 (h)") != std::string::npos);
  CHECK(judge("mild", 0.8, "Meta-M1-Instruct").basis.find("measured") != std::string::npos);
  CHECK(judge("mild", 0.8, "new").basis.find("predicted from") != std::string::npos);
  CHECK(judge("unheard-of", 0.5).answer == Answer::kUnknown);
}

TEST_CASE("quality: a replay ranks methods, with its rank correlation") {
  CHECK(*rank_correlation(std::vector<double>{1, 2, 3, 4}, std::vector<double>{2, 4, 9, 10}) ==
        rel(1.0));
  CHECK(*rank_correlation(std::vector<double>{1, 2, 3}, std::vector<double>{3, 2, 1}) == rel(-1.0));
  // Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
  CHECK(*rank_correlation(std::vector<double>{1, 2, 2, 3}, std::vector<double>{1, 2, 3, 4}) ==
        rel(4.5 / std::sqrt(4.5 * 5.0)));
  CHECK_FALSE(rank_correlation(std::vector<double>{1, 2}, std::vector<double>{1, 2}));
  CHECK_FALSE(rank_correlation(std::vector<double>{1, 1, 1}, std::vector<double>{1, 2, 3}));
  const std::vector<QualityRow> rows = made_rows(2);
  const ReplayRanking ranking = rank_replays({{.method = "steep", .kept = 0.2, .rel_error = 0.5},
                                              {.method = "mild", .kept = 0.8, .rel_error = 0.1},
                                              {.method = "mild", .kept = 0.2, .rel_error = 0.3},
                                              {.method = "other", .rel_error = 0.2}},
                                             rows);
  CHECK(ranking.measured == 3);
  CHECK(*ranking.correlation == rel(1.0));
  CHECK(ranking.errors.front().method == "mild");
}

TEST_CASE("quality: a replay's budget in entries is a share of its prompt") {
  const fs::path path = scratch_folder() / "entries.json";
  std::ofstream{path} << R"({"schema": "kvsim.replay/1", "methods": [
    {"name": "mild", "budget": 200, "prompt_tokens": 1000, "rel_error_mean": 0.4},
    {"name": "mild", "budget": 2000, "prompt_tokens": 1000, "rel_error_mean": 0},
    {"name": "mild", "budget": 200, "rel_error_mean": 0.4},
    {"name": "mild", "budget": 0.2, "prompt_tokens": 1000, "rel_error_mean": 0.4},
    {"name": "mild", "budget": null, "prompt_tokens": 1000, "rel_error_mean": 0.4}]})";
  const std::vector<ReplayError> errors = read_replay_errors(path);
  REQUIRE(errors.size() == 5);
  CHECK(errors[0].kept == 0.2);
  CHECK(errors[1].kept == 1.0);
  // 2 models of 6 tasks at each of 4 budgets.
  const auto rows_of = [&](std::size_t i) {
    return rank_replays({errors[i]}, made_rows(2)).errors.front();
  };
  CHECK(rows_of(0).rows == 12);
  CHECK(rows_of(0).retained == rows_of(3).retained);
  CHECK(rows_of(1).rows == 0);
  CHECK(rows_of(2).rows == 0);
  CHECK_FALSE(rows_of(2).retained);
  CHECK(rows_of(2).reason.find("200 entries") != std::string::npos);
  CHECK(rows_of(4).rows == 48);  // a method without a budget
}

TEST_CASE("quality: a replay of a marked trace ranks by its errors at the answers") {
  const fs::path path = scratch_folder() / "ranked.json";
  std::ofstream{path} << R"({"schema": "kvsim.replay/1", "methods": [
    {"name": "a", "budget": 0.2, "rel_error_mean": 0.4, "answer_error_mean": 0.9},
    {"name": "b", "budget": 0.2, "rel_error_mean": 0.6, "answer_error_mean": null},
    {"name": "c", "budget": 300, "rel_error_mean": 0.5}]})";
  const std::vector<ReplayError> errors = read_replay_errors(path);
  REQUIRE(errors.size() == 3);
  CHECK(errors[0].rel_error == 0.4);
  CHECK(errors[0].answer_error == 0.9);
  CHECK(errors[0].kept == 0.2);
  CHECK_FALSE(errors[1].answer_error);
  // A budget in entries for a prompt of unknown length equals no measured budget.
  CHECK_FALSE(errors[2].kept);
  CHECK(errors[2].entries == 300.0);
  CHECK(errors[2].reason ==
        "the result does not state the number of tokens of which 300 entries are kept");
  // All methods are ranked by one kind of error, because not every method has the other kind.
  const ReplayRanking mixed = rank_replays(errors, {});
  CHECK_FALSE(mixed.at_answers);
  CHECK(mixed.errors.front().method == "a");
  const ReplayRanking marked =
      rank_replays({{.method = "a", .rel_error = 0.4, .answer_error = 0.9},
                    {.method = "b", .rel_error = 0.6, .answer_error = 0.2}},
                   {});
  CHECK(marked.at_answers);
  CHECK(marked.errors.front().method == "b");
}

TEST_CASE("published scores: errors when a model is left out, and coverage of intervals") {
  const auto data = data_dir();
  if (!data) return;
  const auto rows = read_quality(*data / "quality/results.csv");
  CHECK(rows.size() > 3000);
  const QualityModel model{rows};
  for (const QualityKind kind : {QualityKind::kEviction, QualityKind::kFormat}) {
    INFO(name_of(kind));
    const LeaveOutError error = model.leave_out_error(LeaveOut::kModel, kind);
    CHECK(error.rows > 200);
    CHECK(*error.mean_absolute < (kind == QualityKind::kEviction ? 0.08 : 0.14));
    CHECK(*error.coverage > 0.87);
    CHECK(*error.coverage < 0.93);
  }
}
