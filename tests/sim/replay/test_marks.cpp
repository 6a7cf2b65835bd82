// Marks of traces: end of the prompt, errors at the answer and per segment.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/retrieval.hpp"
#include "sim/replay/summary.hpp"
#include "sim/run/replay_job.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "traces/convert.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::rel;
using Metadata = std::map<std::string, std::string>;

const fs::path kSample =
    fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";

/// The sample (512 tokens, 384 of them prompt) with more metadata.
fs::path marked(const Metadata& metadata, std::optional<std::int64_t> tokens = std::nullopt) {
  static int n = 0;
  const fs::path path =
      test::scratch_folder() / fmt::format("marked-{}-{}.safetensors", ::getpid(), ++n);
  ConvertOptions options;
  options.metadata = metadata;
  options.layers = {0, 1};
  options.tokens = tokens;
  convert_trace(kSample, path, options);
  return path;
}

const Metadata kMarks{{"question_start", "400"}, {"answer_start", "450"}};
const std::vector<MethodSpec> kMethods{{"streaming-llm", {}, Budget{.fraction = 0.2}},
                                       {"full", {}, {}}};

TEST_CASE("marks: without segments they are context, question and answer") {
  const TraceInfo info = Trace::open(marked(kMarks)).info();
  CHECK(info.question_start == 400);
  CHECK(info.answer_start == 450);
  REQUIRE(info.segments.size() == 3);
  CHECK(info.segments[0].name == "context");
  CHECK(info.segments[1].start == 400);
  CHECK(info.segments[2].name == "answer");
  CHECK(info.segments[2].end == info.tokens);
  CHECK(Trace::open(kSample).info().segments.empty());
}

TEST_CASE("marks: the answer's error is a mean of its steps and segments add up") {
  ReplayOptions options;
  options.per_step = true;
  const ReplayResult replayed = run_replay_job(marked(kMarks), kMethods, options).result;
  for (const ReplayMethod& method : replayed.methods) {
    INFO(method.name);
    double all = 0;
    REQUIRE(method.answer_error_mean.has_value());
    std::int64_t steps = 0;
    for (const ReplaySegment& segment : method.segments) {
      steps += segment.steps;
      all += segment.rel_error_mean.value_or(0) * static_cast<double>(segment.steps);
    }
    CHECK(steps == 512 - 384);
    CHECK(all / static_cast<double>(steps) == rel(method.rel_error_mean, 1e-6));
  }
  CHECK(*replayed.methods[0].answer_error_mean > 0.01);
  CHECK_FALSE(run_replay_job(kSample, kMethods, {}).result.methods[0].answer_error_mean);
}

TEST_CASE("marks: queries that predict an answer are weighted by their attention to one token") {
  const Trace trace = Trace::open(marked(kMarks));
  const std::optional<RetrievalMarks> marks = retrieval_marks(trace.info());
  REQUIRE(marks);
  CHECK(marks->first == 4);
  CHECK(marks->end == 400);
  for (std::int64_t t = 0; t < 512; ++t) {
    CHECK(marks->predicts[static_cast<std::size_t>(t)] == (t >= 449 && t < 511));
  }
  CHECK_FALSE(retrieval_marks(Trace::open(kSample).info()));
  // Without a segment of that name, everything after answer_start is the answer. If an answer
  // segment is within the context, only part of the context precedes it.
  TraceInfo named = trace.info();
  named.segments = {{"reply", 450, 512}};
  CHECK(retrieval_marks(named)->predicts == marks->predicts);
  named.segments = {{"answer", 390, 410}};
  for (std::int64_t t = 0; t < 512; ++t) {
    CHECK(retrieval_marks(named)->predicts[static_cast<std::size_t>(t)] == (t >= 399 && t < 409));
  }
  // Compared with plain sums in double precision.
  const LayerBlock block{trace, 0, 1, {}, nullptr};
  const HeadVectors& head = block.layer(0).heads.front();
  constexpr std::int64_t kFirst = 440, kCount = 30;
  std::vector<double> sums;
  std::vector<float> expected;
  for (std::int64_t t = kFirst; t < kFirst + kCount; ++t) {
    for (std::int32_t g = 0; g < head.group; ++g) {
      double sum = 0, max = 0;
      for (std::int64_t j = 0; j <= t; ++j) {
        double logit = 0;
        for (std::int32_t x = 0; x < head.head_dim; ++x) {
          const auto at = static_cast<std::size_t>(x);
          logit += static_cast<double>(head.query(g, t)[at]) * static_cast<double>(head.key(j)[at]);
        }
        const double e = std::exp(logit * head.scale);
        sum += e;
        if (j >= 4 && j < 400) max = std::max(max, e);
      }
      sums.push_back(std::log(sum));
      expected.push_back(t >= 449 ? static_cast<float>(max / sum) : 0);
    }
  }
  std::vector<float> found(expected.size());
  largest_in_context(head, *marks, kFirst, kCount, sums, found);
  double total = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-4));
    total += static_cast<double>(found[i]);
  }
  CHECK(total > 0);
}

TEST_CASE("marks: the answer's error is weighted by retrieval") {
  TraceInfo info = Trace::open(marked(kMarks)).info();
  info.n_layers = 1;
  info.n_heads = info.n_kv_heads = 2;
  info.tokens = 452;
  info.prompt_tokens = 450;
  const auto method = resolve_for_trace({"full", {}, {}}, info);
  const auto series = [](std::vector<float> errors, std::vector<float> retrieved) {
    HeadSeries one;
    one.costs.resize(2);
    one.rel_error = std::move(errors);
    one.cosine = {1, 1};
    one.retained_mass = one.best_mass = {1, 1};
    one.retrieved = std::move(retrieved);
    return one;
  };
  const ReplayOptions options;  // a summary keeps references
  const StepSample steps{2};
  const auto mean = [&](std::vector<float> first, std::vector<float> second) {
    ReplaySummary summary{as_composed(*method), info, options, steps};
    summary.add_layer(
        0, {series({0.5F, 0.25F}, std::move(first)), series({1.0F, 0.0F}, std::move(second))});
    return summary.finish().answer_error_mean;
  };
  // One head that retrieves, and one that hardly does: (0.5 x 0.6 + 0.25 x 0.2 + 1 x 0.1) / 1.0.
  CHECK(*mean({0.6F, 0.2F}, {0.1F, 0.1F}) == rel(0.45, 1e-6));
  // With equal weights, or none, the result is the plain mean of the steps.
  CHECK(*mean({0.3F, 0.3F}, {0.3F, 0.3F}) == rel(1.75 / 4, 1e-6));
  CHECK(*mean({0, 0}, {0, 0}) == rel(1.75 / 4, 1e-6));
}

TEST_CASE("marks: a split ends the prompt before or after the question") {
  const fs::path path = marked(kMarks);
  const auto steps = [&](TraceSplit split) {
    ReplayOptions options;
    options.split = split;
    return run_replay_job(path, kMethods, options).result.methods[0].steps;
  };
  CHECK(steps(TraceSplit::kRecorded) == 512 - 384);
  CHECK(steps(TraceSplit::kQuestionAware) == 512 - 450);
  CHECK(steps(TraceSplit::kQuestionAgnostic) == 512 - 400);
  ReplayOptions aware;
  aware.split = TraceSplit::kQuestionAware;
  CHECK_THROWS_WITH_AS((void)run_replay_job(kSample, kMethods, aware),
                       doctest::Contains("answer_start: missing"), InputError);
  CHECK(split_of("question-aware") == TraceSplit::kQuestionAware);
  CHECK_FALSE(split_of("aware").has_value());
}

TEST_CASE("marks: segments are read in order, and a cut keeps the remaining parts") {
  const Metadata metadata{{"segments", R"([{"name": "system", "start": 0, "end": 10},
                                           {"name": "context", "start": 10, "end": 440},
                                           {"name": "note", "start": 440, "end": 480}])"},
                          {"question_start", "440"}};
  CHECK(Trace::open(marked(metadata)).info().segments.size() == 3);
  const TraceInfo cut = Trace::open(marked(metadata, 420)).info();
  CHECK_FALSE(cut.question_start.has_value());
  REQUIRE(cut.segments.size() == 2);
  CHECK(cut.segments[1].end == 420);
  for (const auto& [bad, complaint] :
       {std::pair{R"([{"name": "a", "start": 0, "end": 10}, {"name": "b", "start": 9, "end": 12}])",
                  "[10, 511]"},
        {R"([{"name": "a", "start": 0, "end": 513}])", "[1, 512]"},
        {R"([{"name": "", "start": 0, "end": 5}])", "1 to 64 characters"},
        {R"([{"name": "a", "start": 0}])", "end"},
        {"{", "segments"}}) {
    INFO(bad);
    CHECK_THROWS_WITH_AS((void)marked({{"segments", bad}}), doctest::Contains(complaint),
                         InputError);
  }
  CHECK_THROWS_AS((void)marked({{"question_start", "450"}, {"answer_start", "450"}}), InputError);
  CHECK_THROWS_AS((void)marked({{"question_start", "512"}}), InputError);
}

std::string segments_text(const std::vector<TraceSegment>& segments) {
  std::string out;
  for (const TraceSegment& s : segments) {
    out += fmt::format(R"({}{{"name": "{}", "start": {}, "end": {}}})", out.empty() ? "" : ", ",
                       s.name, s.start, s.end);
  }
  return fmt::format("[{}]", out);
}

TEST_CASE("marks: segments without marks give the same result as with equivalent marks") {
  const std::vector<TraceSegment> segments{{"context", 0, 400},
                                           {"question", 400, 450},
                                           {"answer", 450, 460},
                                           {"question", 460, 470},
                                           {"answer", 470, 512}};
  Metadata only{{"segments", segments_text(segments)}};
  Metadata both = only;
  both.insert(kMarks.begin(), kMarks.end());
  const TraceInfo derived = Trace::open(marked(only)).info();
  CHECK(derived.question_start == 400);
  CHECK(derived.answer_start == 450);
  const ReplayResult a = run_replay_job(marked(only), kMethods, {}).result;
  const ReplayResult b = run_replay_job(marked(both), kMethods, {}).result;
  for (std::size_t i = 0; i < a.methods.size(); ++i) {
    REQUIRE(a.methods[i].answer_error_mean);
    CHECK(*a.methods[i].answer_error_mean == *b.methods[i].answer_error_mean);
  }
  // One mark from the metadata, the other from a segment.
  only["question_start"] = "460";
  CHECK(Trace::open(marked(only)).info().answer_start == 470);
  // Without a question, there is only the answer. An answer before the question is ignored.
  const auto marks = [](const std::vector<TraceSegment>& parts) {
    const TraceInfo info = Trace::open(marked({{"segments", segments_text(parts)}})).info();
    return std::pair{info.question_start.value_or(-1), info.answer_start.value_or(-1)};
  };
  CHECK(marks({{"answer", 480, 512}}) == std::pair<std::int64_t, std::int64_t>{-1, 480});
  CHECK(marks({{"answer", 10, 20}, {"question", 400, 410}}) ==
        std::pair<std::int64_t, std::int64_t>{400, -1});
  CHECK(marks({{"question", 0, 10}, {"context", 10, 512}}) ==
        std::pair<std::int64_t, std::int64_t>{-1, -1});
  CHECK(marks({{"reply", 10, 20}}) == std::pair<std::int64_t, std::int64_t>{-1, -1});
}

TEST_CASE("marks: those that contradict the segments are refused") {
  const std::vector<TraceSegment> parts{{"context", 0, 400},
                                        {"question", 400, 450},
                                        {"answer", 450, 460},
                                        {"question", 460, 470},
                                        {"answer", 470, 512}};
  const auto with = [&](const Metadata& marks, const std::vector<TraceSegment>& segments) {
    Metadata metadata = marks;
    metadata["segments"] = segments_text(segments);
    return Trace::open(marked(metadata)).info();
  };
  CHECK(with({{"question_start", "460"}, {"answer_start", "470"}}, parts).question_start == 460);
  struct Case {
    Metadata marks;
    std::vector<TraceSegment> segments;
    std::string complaint;
  };
  for (const Case& bad : {
           Case{{{"question_start", "300"}, {"answer_start", "320"}},
                parts,
                "__metadata__.question_start: expected 400, where __metadata__.segments has "
                "\"question\" start, got 300"},
           Case{{{"question_start", "400"}, {"answer_start", "470"}},
                parts,
                "__metadata__.answer_start: expected 450, where __metadata__.segments has "
                "\"answer\" start, got 470"},
           Case{{{"answer_start", "500"}}, parts, "answer_start: expected 450"},
           Case{{{"question_start", "440"}},
                {{"context", 10, 480}},
                "question_start: expected a token outside the segment \"context\" of tokens 10-480 "
                "of __metadata__.segments, got 440"},
           Case{{{"question_start", "440"}}, {{"answer", 440, 480}}, "segment \"answer\""},
           Case{{{"answer_start", "440"}}, {{"question", 400, 480}}, "segment \"question\""},
       }) {
    INFO(bad.complaint);
    CHECK_THROWS_WITH_AS((void)with(bad.marks, bad.segments),
                         doctest::Contains(bad.complaint.c_str()), InputError);
  }
}

}  // namespace
}  // namespace kvsim
