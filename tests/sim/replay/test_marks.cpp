// Marks of traces: where the prompt ends, errors at the answer and by segment.

#include <filesystem>

#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
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

TEST_CASE("marks: the answer's error is the mean of its steps and segments add up") {
  ReplayOptions options;
  options.per_step = true;
  const ReplayResult replayed = run_replay_job(marked(kMarks), kMethods, options).result;
  for (const ReplayMethod& method : replayed.methods) {
    INFO(method.name);
    double answer = 0, all = 0;
    for (const ReplayStep& step : method.series) {
      if (step.tokens > 450) answer += step.rel_error;
    }
    REQUIRE(method.answer_error_mean.has_value());
    CHECK(*method.answer_error_mean == rel(answer / (512 - 450), 1e-12));
    std::int64_t steps = 0;
    for (const ReplaySegment& segment : method.segments) {
      steps += segment.steps;
      all += segment.rel_error_mean.value_or(0) * static_cast<double>(segment.steps);
    }
    CHECK(steps == 512 - 384);
    CHECK(all / static_cast<double>(steps) == rel(method.rel_error_mean, 1e-6));
    CHECK(*method.answer_error_mean == *method.segments.back().rel_error_mean);
  }
  CHECK(*replayed.methods[0].answer_error_mean > 0.01);
  CHECK_FALSE(run_replay_job(kSample, kMethods, {}).result.methods[0].answer_error_mean);
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

TEST_CASE("marks: segments are read in order, and a cut keeps what is left of them") {
  const Metadata metadata{{"segments", R"([{"name": "system", "start": 0, "end": 10},
                                           {"name": "context", "start": 10, "end": 480}])"},
                          {"question_start", "440"}};
  CHECK(Trace::open(marked(metadata)).info().segments.size() == 2);
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

}  // namespace
}  // namespace kvsim
