#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/version.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

TEST_CASE("a run names its schema, scenario, seed, version and calibration") {
  const Scenario scenario = test::sample_scenario();
  const ordered_json run = run_document(test::sample_report(scenario));
  CHECK(run.at("schema") == "kvsim.run/1");
  CHECK(run.at("kind") == "static");
  CHECK(run.at("scenario").at("hash") == "0123456789abcdef");
  CHECK(run.at("scenario").at("seed") == 7);
  CHECK(run.at("scenario").at("echo") == scenario.echo);
  CHECK(run.at("kvsim").at("version") == kvsim_version());
  CHECK(run.at("calibration").at("provenance") == "nominal roofline, uncalibrated");
  CHECK_FALSE(run.contains("run"));  // the clock is included only on request
  CHECK(run.at("points").size() == 4);
}

TEST_CASE("a point has the scenario's keys, its metrics, and intervals that are null") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const ordered_json point = run_document(report).at("points").at(1);
  CHECK(point.at("method") == "zeromerge");
  CHECK(point.at("budget") == 18000);
  CHECK(point.at("peak_hbm_bytes") == report.results[1].peak_hbm.count());
  CHECK(point.at("peak_hbm_bytes").is_number_integer());
  CHECK(point.at("oom").is_null());
  CHECK(point.at("latency_s").get<double>() ==
        test::rel(point.at("prefill_s").get<double>() + report.results[1].decode_time->count()));
  for (const char* name : {"peak_hbm_bytes", "kv_bytes", "throughput_tok_s", "decode_tok_s",
                           "latency_s", "prefill_s"}) {
    INFO(name);
    CHECK(point.at(name).is_number());
    CHECK(point.at(std::string{name} + "_low").is_null());
    CHECK(point.at(std::string{name} + "_high").is_null());
  }
}

TEST_CASE("a point explains its peak term by term") {
  const Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  report.results[0].peak_terms = {{.owner = "weights",
                                   .what = "weights",
                                   .bytes = Bytes{26953662464},
                                   .formula = "6,738,415,616 parameters x 4 B",
                                   .source = "config.json of meta-llama/Llama-2-7b-hf"}};
  const ordered_json document = run_document(report);
  CHECK(document.at("points").at(0).at("peak_terms") ==
        ordered_json::parse(R"([{"owner": "weights", "what": "weights", "bytes": 26953662464,
                                 "formula": "6,738,415,616 parameters x 4 B",
                                 "source": "config.json of meta-llama/Llama-2-7b-hf"}])"));
  CHECK(document.at("points").at(1).at("peak_terms") == ordered_json::array());
}

TEST_CASE("a point explains the time of its steps term by term") {
  const Scenario scenario = test::sample_scenario();
  const ordered_json points = run_document(test::sample_report(scenario)).at("points");
  CHECK(points.at(0).at("time_terms") == ordered_json::array());
  const ordered_json& steps = points.at(1).at("time_terms");
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].at("step") == 0);
  CHECK(steps[0].at("step_s") == 4.2);
  CHECK(steps[0].at("step_s_low").is_null());
  CHECK(points.at(1).at("prefill_s_low").is_null());
  CHECK(steps[1].at("tokens") == 54000);
  CHECK(steps[1].at("step_s_low") == 0.03);
  CHECK(steps[1].at("step_s_high") == 0.05);
  CHECK(steps[1].at("terms").at(0) ==
        ordered_json::parse(R"x({"what": "attention of 32 layers", "family": "gemm", "layers": 32,
                                 "calls": 1, "flops": 1e12, "bytes_read": 2000000000,
                                 "bytes_written": 1000000, "launches": 32, "bound": "memory",
                                 "seconds": 0.01, "seconds_low": null, "seconds_high": null,
                                 "formula": "32 layers x (4 us + 1 B / 2 TB/s)", "basis": "stack",
                                 "source": "gpu A800-80GB-SXM: hbm_bandwidth"})x"));
}

TEST_CASE("an out-of-memory point has exactly the specified keys and null times") {
  const Scenario scenario = test::sample_scenario();
  const ordered_json point = run_document(test::sample_report(scenario)).at("points").at(0);
  const ordered_json& oom = point.at("oom");
  for (const char* key : {"step", "tokens", "requested", "free"}) {
    CHECK(oom.at(key).is_number_integer());
  }
  CHECK(oom.at("phase") == "decode");
  CHECK(oom.at("owners").at("weights").is_number_integer());
  CHECK(point.at("throughput_tok_s").is_null());
  CHECK(point.at("latency_s").is_null());
}

TEST_CASE("a published value is next to the prediction with the miss") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const ordered_json published = run_document(report).at("published");
  CHECK(published.at(0).at("predicted") == report.results[0].oom->tokens);
  // decode_peak / 46e9 - 1
  CHECK(published.at(1).at("miss").get<double>() ==
        test::rel(static_cast<double>(report.results[1].decode_peak.count()) / 46e9 - 1));
  Scenario other = scenario;
  other.published = {{1, "oom_tokens", 54000, "", "", ""}, {1, "no_such", 1, "", "", ""}};
  RunReport of_other = report;
  of_other.scenario = &other;
  const ordered_json none = run_document(of_other).at("published");
  CHECK(none.at(0).at("predicted").is_null());
  CHECK(none.at(1).at("miss").is_null());
}

TEST_CASE("published yes or no, and the cache bytes that would be needed") {
  Scenario scenario = test::sample_scenario();
  scenario.published = {{0, "oom", 1, "yes", "", ""},
                        {1, "oom", 1, "yes", "", ""},
                        {0, "kv_bytes_wanted", 57e9, "57 GB", "", ""}};
  scenario.notes = {"of the scenario"};
  RunReport report = test::sample_report(scenario);
  report.notes = {"of the run"};
  const ordered_json run = run_document(report);
  CHECK(run.at("published").at(0).at("predicted") == true);
  CHECK(run.at("published").at(1).at("predicted") == false);
  CHECK(run.at("published").at(2).at("predicted").get<double>() ==
        test::rel(static_cast<double>(scenario.points[0].kv_bytes_wanted->count())));
  CHECK(run.at("notes").dump() == R"(["of the scenario","of the run"])");
}

TEST_CASE("a replay has the contract's keys and missing values are null") {
  ReplayResult replay = test::sample_replay();
  replay.methods[1].closed_form_bytes_final.reset();
  const ordered_json document = replay_document(replay, {{"kvzap", "no hidden states"}});
  CHECK(document.at("schema") == "kvsim.replay/1");
  CHECK(document.at("skipped").at(0).at("reason") == "no hidden states");
  const ordered_json& method = document.at("methods").at(1);
  for (const char* key :
       {"name", "params", "trace", "budget", "budget_reached", "steps", "entries_held_final",
        "bytes_held_final", "bytes_full_final", "side_bytes_final", "bytes_read_total",
        "bytes_written_total", "extra_flops_total", "rel_error_mean", "rel_error_p99",
        "cosine_mean", "retained_mass_mean", "closed_form_bytes_final", "layers"}) {
    INFO(key);
    CHECK(method.contains(key));
  }
  CHECK(method.at("retained_mass_mean").is_null());
  CHECK(method.at("closed_form_bytes_final").is_null());
  CHECK(method.at("params").at("budget").is_number_integer());
  CHECK(method.at("per_step").size() == 256);
  CHECK_FALSE(method.contains("per_head"));
  replay.methods[1].series.clear();
  CHECK_FALSE(replay_document(replay).at("methods").at(1).contains("per_step"));
}

TEST_CASE("kept positions: a merged entry lists its members") {
  ReplayResult replay = test::sample_replay();
  const ordered_json one = kept_document(replay, replay.methods[1]);
  CHECK(one.at("kept").dump() == "[[[0,1,[7,9]],[0,5]]]");
  CHECK(one.at("method") == "zeromerge");
  CHECK(kept_document(replay).is_array());
  replay.methods.resize(1);
  CHECK(kept_document(replay).at("method") == "full");
  CHECK(kept_document(replay).at("budget").is_null());
}

TEST_CASE("documents are the same bytes each time and read back completely") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const std::string text = to_file_text(run_document(report));
  CHECK(text == to_file_text(run_document(test::sample_report(scenario))));
  CHECK(text.ends_with("}\n"));
  CHECK(ordered_json::parse(text) == run_document(report));
  CHECK_NOTHROW((void)Field::parse(text, "result.json"));  // kvsim's own reader also accepts it
}

TEST_CASE("broken text and non-finite numbers do not break a document") {
  Scenario scenario = test::sample_scenario();
  scenario.title = "bad \xff bytes \"quoted\"";
  scenario.points[0].keys["\xfe"] = "x";
  RunReport report = test::sample_report(scenario);
  report.results[1].decode_tok_s = std::nan("");
  const std::string text = to_file_text(run_document(report));
  const auto back = ordered_json::parse(text);
  CHECK(back.at("points").at(1).at("decode_tok_s").is_null());
  CHECK(back.at("scenario").at("title") == "bad \xEF\xBF\xBD bytes \"quoted\"");
}

TEST_CASE("a report without one result per point is a contract violation") {
  const Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  report.results.pop_back();
  CHECK_THROWS_AS((void)run_document(report), ContractError);
}

}  // namespace
}  // namespace kvsim
