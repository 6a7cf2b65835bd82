// One interval per metric: the result, its tables, its page, its figures and `kvsim explain`
// contain the same two ends. `explain` accepts the metric names that tables use.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/sim/report/explained.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::explain;
using test::fresh;
using test::has;
using test::Outcome;
using test::rel;
using test::run_kvsim;
using test::write;
namespace fs = std::filesystem;

constexpr std::string_view kBatch = R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
  "stack": "vllm", "batch": 4, "prompt_tokens": 2000, "output_tokens": 64})";
constexpr std::string_view kService = R"({"kind": "serve", "model": "llama-3.1-8b",
  "gpu": "H100-80GB-SXM", "stack": "vllm", "slo": {"ttft": "1 s", "tpot": "30 ms"},
  "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 60, "prompt_tokens": 500,
  "output_tokens": 20}})";

struct Run {
  fs::path folder;
  std::string text;  // printed by `run`
  json point;
  json page;  // the point in report.html
};

Run run_of(const char* name, std::string_view scenario) {
  Run out{.folder = fresh(name), .text = {}, .point = {}, .page = {}};
  write(out.folder / "s.json", scenario);
  const Outcome ran = run_kvsim({"run", "s.json", "-o", "out", "--verbose"}, out.folder);
  REQUIRE_MESSAGE(ran.status == 0, ran.err);
  out.text = ran.out;
  out.point = json::parse(std::ifstream{out.folder / "out/result.json"}).at("points").at(0);
  std::stringstream html;
  html << std::ifstream{out.folder / "out/report.html"}.rdbuf();
  const std::string text = html.str();
  const std::string open = "<script type=\"application/json\" id=\"kvsim-report\">";
  const std::size_t from = text.find(open);
  REQUIRE(from != std::string::npos);
  const std::size_t start = from + open.size();
  const json data = json::parse(text.substr(start, text.find("</script>", start) - start));
  out.page = data.at("document").at("points").at(0);
  return out;
}

/// Metrics of a point that have an interval.
std::vector<std::string> metrics_of(const json& point) {
  std::vector<std::string> names;
  for (const auto& [key, value] : point.items()) {
    constexpr std::string_view kLow = "_low";
    if (!std::string_view{key}.ends_with(kLow) || value.is_null()) continue;
    const std::string name = key.substr(0, key.size() - kLow.size());
    if (point.contains(name + "_high")) names.push_back(name);
  }
  return names;
}

/// "A to B" of the row after the heading "90 % interval", column by column.
std::vector<std::pair<double, double>> ranges_of(const std::string& text) {
  std::istringstream lines{text.substr(text.find("90 % inter"))};
  const std::regex range{R"(([0-9.,e+-]+) to ([0-9.,e+-]+))"};
  std::string line;
  while (std::getline(lines, line)) {
    std::vector<std::pair<double, double>> found;
    for (std::sregex_iterator at{line.begin(), line.end(), range}, end; at != end; ++at) {
      const auto number = [&](std::size_t group) {
        std::string digits = (*at)[group];
        std::erase(digits, ',');
        return std::strtod(digits.c_str(), nullptr);
      };
      found.emplace_back(number(1), number(2));
    }
    if (found.size() >= 3) return found;
  }
  return {};
}

void check_explained(const Run& run, const std::map<std::string, std::string>& other_names,
                     const std::set<std::string>& without) {
  const std::vector<std::string> names = metrics_of(run.point);
  CHECK(names.size() >= 6);
  std::size_t on_page = 0;
  for (const std::string& name : names) {
    INFO(name);
    const json& low = run.point.at(name + "_low");
    const json& high = run.point.at(name + "_high");
    if (run.page.contains(name + "_low")) {  // the page omits values that it does not show
      ++on_page;
      CHECK(run.page.at(name + "_low") == low);
      CHECK(run.page.at(name + "_high") == high);
    }
    if (without.contains(name)) continue;
    const auto other = other_names.find(name);
    const json said = explain(run.folder, other == other_names.end() ? name : other->second);
    CHECK(said.at("low") == (low.is_object() ? low.at("mean") : low));
    CHECK(said.at("high") == (high.is_object() ? high.at("mean") : high));
  }
  CHECK(on_page >= 4);
}

TEST_CASE("a static batch has one interval per metric in every output") {
  const Run run = run_of("one_interval_batch", kBatch);
  check_explained(run, {{"oom_tokens", "oom"}}, {});
  const json& p = run.point;
  // Steps: the prefill step, the first and the last decode step.
  const json& prefill = p.at("time_terms").at(0);
  CHECK(prefill.at("step_s_low") == p.at("prefill_s_low"));
  CHECK(prefill.at("step_s_high") == p.at("prefill_s_high"));
  const json& last = p.at("time_terms").back();
  const json step = explain(run.folder, "step_s");
  CHECK(step.at("low") == last.at("step_s_low"));
  CHECK(step.at("high") == last.at("step_s_high"));
  CHECK(last.at("step_s_low") < last.at("step_s"));
  CHECK(last.at("step_s_high") > last.at("step_s"));

  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  constexpr double kDigits = 0.05;  // tables print at least two digits
  const auto ranges = ranges_of(run.text);
  REQUIRE(ranges.size() >= 3);
  const auto same = [&](const std::pair<double, double>& said, double low, double high) {
    CHECK(said.first == rel(low, kDigits));
    CHECK(said.second == rel(high, kDigits));
  };
  same(ranges[0], p.at("peak_hbm_bytes_low").get<double>() / kGiB,
       p.at("peak_hbm_bytes_high").get<double>() / kGiB);
  same(ranges[1], p.at("prefill_s_low").get<double>(), p.at("prefill_s_high").get<double>());
  same(ranges[2], 1e3 * last.at("step_s_low").get<double>(),
       1e3 * last.at("step_s_high").get<double>());
}

TEST_CASE("a service has one interval per metric in every output") {
  const Run run = run_of("one_interval_service", kService);
  check_explained(run, {{"kv_pool_bytes", "kv_cache_bytes"}}, {"busy"});
  const json& p = run.point;
  // Iterations are scaled with the factors of the repeated runs.
  const json& mean = p.at("mean_iteration");
  const double step = mean.at("step_s").get<double>();
  const json& ends = p.at("intervals");
  CHECK(mean.at("step_s_low").get<double>() / step ==
        rel(ends.at("time_factor_low").get<double>(), 1e-12));
  CHECK(mean.at("step_s_high").get<double>() / step ==
        rel(ends.at("time_factor_high").get<double>(), 1e-12));
  const json iteration = explain(run.folder, "iteration_s");
  CHECK(iteration.at("low") == mean.at("step_s_low"));
  CHECK(iteration.at("high") == mean.at("step_s_high"));
  CHECK(iteration.at("interval_basis") == ends.at("basis"));

  const auto ranges = ranges_of(run.text);
  REQUIRE(ranges.size() >= 4);
  const auto same = [&](const std::pair<double, double>& said, const char* key, double unit) {
    constexpr double kDigits = 0.05;  // tables print at least two digits
    CHECK(said.first ==
          rel(unit * p.at(std::string{key} + "_low").at("p50").get<double>(), kDigits));
    CHECK(said.second ==
          rel(unit * p.at(std::string{key} + "_high").at("p50").get<double>(), kDigits));
  };
  same(ranges[0], "ttft_s", 1);
  same(ranges[1], "tpot_s", 1e3);
  same(ranges[2], "e2e_s", 1);
}

TEST_CASE("figures and comparisons give the intervals of the result") {
  const fs::path folder = fresh("one_interval_figures");
  write(folder / "s.json", R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "hf-sdpa", "batch": 4, "prompt_tokens": 2000, "output_tokens": 2000,
    "method": ["full", "snapkv"]})");
  REQUIRE(run_kvsim({"run", "s.json", "-o", "a"}, folder).status == 0);
  REQUIRE(run_kvsim({"run", "s.json", "--set", "/batch=8", "-o", "b"}, folder).status == 0);
  const auto points_of = [&](const char* name) {
    return json::parse(std::ifstream{folder / name / "result.json"}).at("points");
  };
  const json a = points_of("a"), b = points_of("b");

  std::size_t bands = 0;
  for (const auto& file : fs::directory_iterator{folder / "a/figures"}) {
    const std::string name = file.path().filename().string();
    if (!name.starts_with("memory_vs_length") || !name.ends_with(".figure.json")) continue;
    const json lines = json::parse(std::ifstream{file.path()}).at("lines");
    REQUIRE(lines.size() == a.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      // The cache grows or stays constant: the peak is at the last step.
      REQUIRE(a[i].at("peak_phase") == "decode");
      CHECK(lines[i].at("points").back().at(1) == a[i].at("peak_hbm_bytes"));
      CHECK(lines[i].at("band").back().at(1) == a[i].at("peak_hbm_bytes_low"));
      CHECK(lines[i].at("band").back().at(2) == a[i].at("peak_hbm_bytes_high"));
      ++bands;
    }
  }
  CHECK(bands == 2);

  const Outcome compared = run_kvsim({"compare", "a", "b", "--all", "--json"}, folder);
  REQUIRE_MESSAGE(compared.status == 0, compared.err);
  std::map<std::string, json> changes;  // "POINT METRIC"
  const json changed = json::parse(compared.out).at("comparisons").at(0).at("changed");
  for (const json& point : changed) {
    for (const json& change : point.at("figures")) {
      changes[point.at("point").get<std::string>() + " " + change.at("figure").get<std::string>()] =
          change;
    }
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const std::string& metric : metrics_of(a[i])) {
      for (const std::string end : {"_low", "_high"}) {
        INFO(metric, end);
        const json before = a[i].at(metric + end), after = b[i].at(metric + end);
        if (before == after) continue;
        const auto found = changes.find(a[i].at("label").get<std::string>() + " " + metric + end);
        REQUIRE(found != changes.end());
        CHECK(found->second.at("before") == before);
        CHECK(found->second.at("after") == after);
      }
    }
  }
}

/// Column names of every line of `text` that begins with one of `firsts`.
std::set<std::string> columns_of(const std::string& text, const std::vector<std::string>& firsts) {
  std::set<std::string> out;
  std::istringstream lines{text};
  std::string line;
  while (std::getline(lines, line)) {
    for (const std::string& first : firsts) {
      if (!line.starts_with(first + "  ")) continue;
      const std::regex gap{" {2,}"};
      const std::string rest = line.substr(first.size());
      for (std::sregex_token_iterator at{rest.begin(), rest.end(), gap, -1}, end; at != end; ++at) {
        if (at->length() > 0) out.insert(*at);
      }
    }
  }
  return out;
}

TEST_CASE("explain accepts the names of table columns") {
  for (const auto& [name, scenario] :
       {std::pair{"names_batch", kBatch}, std::pair{"names_service", kService}}) {
    const Run run = run_of(name, scenario);
    const std::set<std::string> columns =
        columns_of(run.text, {"point", "90 % interval", "what requests see", "the service"});
    CHECK(columns.size() >= 8);
    for (const std::string& column : columns) {
      INFO(name, ": ", column);
      const Outcome said = run_kvsim({"explain", "out", column, "--json"}, run.folder);
      CHECK_MESSAGE(said.status == 0, said.err);
    }
  }
  const fs::path batch = fresh("names");
  write(batch / "s.json", kBatch);
  REQUIRE(run_kvsim({"run", "s.json", "-o", "out", "--no-figures"}, batch).status == 0);
  const json prefill = explain(batch, "prefill_s");
  for (const char* word : {"ttft", "TTFT", "ttft_s", "Time to first token", "TTFT s"}) {
    CHECK(explain(batch, word) == prefill);
  }
  for (const char* word : {"TPOT", "itl", "step ms"}) {
    CHECK(explain(batch, word) == explain(batch, "step_s"));
  }
  CHECK(explain(batch, "decode tok/s") == explain(batch, "decode_tok_s"));
  CHECK(explain(batch, "tok/s") == explain(batch, "decode_tok_s"));
  CHECK(explain(batch, "KV") == explain(batch, "kv_bytes"));
  CHECK(explain(batch, "fewest").at("value") == 1);
  CHECK(has(test::complaint({"explain", "out", "ttfr_s"}, batch), "unknown figure"));
}

}  // namespace
}  // namespace kvsim
