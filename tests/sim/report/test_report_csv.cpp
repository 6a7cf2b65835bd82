#include <limits>

#include "sim/report/batch/static_csv.hpp"
#include "sim/report/replay/replay_csv.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST_CASE("fields are quoted as in RFC 4180") {
  CHECK(csv_field("plain name") == "plain name");
  CHECK(csv_field("a,b") == "\"a,b\"");
  CHECK(csv_field("say \"x\"") == "\"say \"\"x\"\"\"");
  CHECK(csv_field("two\nlines") == "\"two\nlines\"");
}

TEST_CASE("numbers read back to the same bits") {
  for (const double value : {0.1, 1.0 / 3.0, 1e-300, 54321.0, 1e22}) {
    CHECK(std::stod(csv_number(value)) == value);
  }
  CHECK(csv_number(2.0) == "2");
  CHECK(csv_number(std::numeric_limits<double>::quiet_NaN()).empty());
}

TEST_CASE("every table has its header and a line per item") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const std::string timeline = timeline_csv(report);
  CHECK(timeline.starts_with(
      "point,label,step,tokens,peak_bytes,held_bytes,kv_bytes,step_s,tok_s\n0,full,0,20000,"));
  std::size_t samples = 1;
  for (const StaticResult& result : report.results) samples += result.timeline.size();
  CHECK(lines(timeline) == samples);
  const std::string points = points_csv(run_document(report));
  CHECK(lines(points) == 1 + scenario.points.size());
  CHECK(points.starts_with("point,model,gpu,stack,method,dtype,batch,prompt_tokens,"));
  CHECK(points.find(",oom_step,oom_tokens,oom_phase,oom_requested_bytes,oom_free_bytes\n") !=
        std::string::npos);
  CHECK(points.find("peak_terms") == std::string::npos);  // a list, which is in result.json
  CHECK(points.find("time_terms") == std::string::npos);
  CHECK(lines(time_terms_csv(report)) == 1 + 4);
  CHECK(time_terms_csv(report).find("\n1,zeromerge budget 18000,0,20000,\"query, \"\"up\"\" of 32 "
                                    "layers\",gemm,32,1,1e+12,2000000000,1000000,32,compute,"
                                    "3.15\n") != std::string::npos);
  CHECK(lines(layers_csv(report)) == 1 + 4 * 32);
  CHECK(lines(replay_steps_csv(*report.replay)) == 1 + 4 * 256);
  CHECK(lines(replay_layers_csv(*report.replay)) == 1 + 4 * 6);
  CHECK(owners_csv(report).find("\n0,full,decode,kv_cache,") != std::string::npos);
}

TEST_CASE("every line of a table has as many fields as its header") {
  const Scenario scenario = test::sample_scenario();  // no commas in these labels
  const RunReport report = test::sample_report(scenario);
  for (const std::string& table :
       {timeline_csv(report), points_csv(run_document(report)), owners_csv(report),
        layers_csv(report), replay_steps_csv(*report.replay), replay_layers_csv(*report.replay)}) {
    const auto commas = [&](std::size_t from) {
      return std::count(table.begin() + static_cast<std::ptrdiff_t>(from),
                        table.begin() + static_cast<std::ptrdiff_t>(table.find('\n', from)), ',');
    };
    const auto wanted = commas(0);
    for (std::size_t at = 0; at < table.size(); at = table.find('\n', at) + 1) {
      CHECK(commas(at) == wanted);
    }
  }
}

}  // namespace
}  // namespace kvsim
