// The tables of metrics and their readers; checks that there is no second copy.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/batch/static_metrics.hpp"
#include "sim/replay/replay_metrics.hpp"
#include "sim/report/folder/page_parts.hpp"
#include "sim/report/plan/plan_metrics.hpp"
#include "sim/report/service/serve_csv.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const fs::path kSource{KVSIM_SOURCE_DIR};

std::string text_of(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// A table in the format of docs/results.md.
template <class Result>
std::string document_table(MetricTable<Result> table) {
  std::string out = "| key | unit | interval | meaning |\n|---|---|---|---|\n";
  for (const Metric<Result>& metric : table) {
    const bool has_interval = metric.ends != nullptr || metric.info.varies_with_times;
    out += fmt::format("| `{}` | {} | {} | {} |\n", metric.info.key, metric.info.unit,
                       has_interval ? "yes" : "", metric.info.help);
  }
  return out;
}

const std::map<std::string, std::string>& document_tables() {
  static const std::map<std::string, std::string> all{
      {"static", document_table(static_metrics())},
      {"service", document_table(service_metrics())},
      {"replay", document_table(replay_metrics())},
      {"replay_cell", document_table(replay_cell_metrics())},
      {"replay_step", document_table(replay_step_metrics())},
      {"replay_paged", document_table(replay_paged_metrics())},
      {"plan", document_table(candidate_metrics())},
      {"plan_point", document_table(operating_point_metrics())}};
  return all;
}

TEST_CASE("the tables of docs/results.md are those of the metrics") {
  const fs::path file = kSource / "docs/results.md";
  const std::string text = text_of(file);
  constexpr std::string_view kMark = "<!-- metrics: ";
  std::string made;
  std::set<std::string> named;
  std::size_t from = 0;
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, from)) {
    const std::size_t begin = at + kMark.size();
    const std::string name = text.substr(begin, text.find(" -->", begin) - begin);
    REQUIRE(document_tables().contains(name));
    named.insert(name);
    const std::size_t table = text.find('\n', at) + 1;
    made += text.substr(from, table - from) + document_tables().at(name);
    from = text.find("\n\n", table - 1) + 1;
  }
  made += text.substr(from);
  if (std::getenv("KVSIM_REMAKE_GOLDEN") != nullptr) std::ofstream{file} << made;
  CHECK(made == text);
  CHECK(named.size() == document_tables().size());
}

void check_rows(const MetricInfos& metrics) {
  std::set<std::string_view> keys;
  for (const MetricInfo* info : metrics) {
    INFO(info->key);
    CHECK(keys.insert(info->key).second);
    CHECK_FALSE(info->help.empty());
    CHECK((info->sweep.place == 0 || !info->sweep.header.empty()));
    CHECK((info->page.place == 0 || !info->page.header.empty()));
  }
  for (MetricColumn MetricUse::*column :
       {&MetricUse::summary, &MetricUse::page, &MetricUse::sweep}) {
    std::set<int> places;
    for (const MetricInfo* info : shown_in(metrics, column)) {
      INFO(info->key);
      CHECK(places.insert((info->*column).place).second);
    }
  }
}

TEST_CASE("a metric has one row, a meaning, and a unique place") {
  check_rows(infos_of(static_metrics()));
  check_rows(infos_of(service_metrics()));
  check_rows(infos_of(replay_metrics()));
  check_rows(infos_of(replay_cell_metrics()));
  check_rows(infos_of(replay_step_metrics()));
  check_rows(infos_of(replay_paged_metrics()));
  check_rows(infos_of(candidate_metrics()));
  check_rows(infos_of(operating_point_metrics()));
  // Both kinds of run have a peak, and sweeps have one column for it.
  const MetricInfo* of_batches = find_info(infos_of(static_metrics()), "peak_hbm_bytes");
  const MetricInfo* of_services = find_info(infos_of(service_metrics()), "peak_hbm_bytes");
  CHECK(of_batches->sweep.place == of_services->sweep.place);
  CHECK(of_batches->words == of_services->words);
}

TEST_CASE("values of a metric as JSON") {
  using Kind = MetricKind;
  CHECK(metric_json(std::optional<double>{}, Kind::kRate).is_null());
  CHECK(metric_json(std::numeric_limits<double>::infinity(), Kind::kRate).is_null());
  CHECK(metric_json(1.5, Kind::kRate) == 1.5);
  CHECK(metric_json(1.5, Kind::kBytes) == 2);
  CHECK(metric_json(Bytes{7}, Kind::kBytes) == 7);
  CHECK(metric_json(true, Kind::kCount) == true);
  CHECK(metric_json("words", Kind::kText) == "words");
  CHECK(metric_json(Distribution{}, Kind::kLatency).at("mean").is_null());
  CHECK(metric_json(Distribution{.n = 2, .p90 = 3}, Kind::kLatency).at("p90") == 3);
  ordered_json out;
  put_metric(out, "none", Kind::kCount, NoMetric{});
  CHECK(out.is_null());
}

TEST_CASE("a row of services is in documents, CSV files and pages") {
  ServeResult result;
  result.tpot = {.n = 1, .mean = 0.5};
  const ordered_json json = service_metrics_json(result, std::nullopt);
  const std::string csv = serve_points_csv({{"points", {json}}});
  const std::string columns = "," + csv.substr(0, csv.find('\n')) + ",";
  const ordered_json page = page_columns(infos_of(service_metrics()));
  std::size_t shown = 0;
  for (const Metric<ServeResult>& metric : service_metrics()) {
    const std::string key{metric.info.key};
    INFO(key);
    const bool has_key = metric.value(result).has_key();
    CHECK(json.contains(key) == has_key);
    const bool has_ends = metric.ends != nullptr || metric.info.varies_with_times;
    CHECK(json.contains(key + "_low") == (has_ends || key == "kv_pool_bytes" || key == "blocks"));
    const bool latency = metric.info.kind == MetricKind::kLatency;
    CHECK((columns.find("," + key + (latency ? "_p90," : ",")) != std::string::npos) == has_key);
    if (metric.info.page.place > 0) ++shown;
  }
  CHECK(std::count_if(page.begin(), page.end(), [](const ordered_json& column) {
          return column.at("place") > 0;
        }) == static_cast<std::ptrdiff_t>(shown));
  // An additional row requires no other change.
  std::vector<Metric<ServeResult>> more{service_metrics().begin(), service_metrics().end()};
  more.emplace_back(
      MetricKind::kRate, "tokens_per_watt", "tok/J", "a metric of a test",
      [](const ServeResult& r) -> MetricValue { return 2 * r.tpot.mean; },
      MetricUse{.page = {9, "tokens/W"}},
      [](const ServeResult& /*r*/) -> MetricEnds {
        return {0.5, 2.0};
      });
  ordered_json out;
  put_metrics(out, MetricTable<ServeResult>{more}, result);
  CHECK(out.at("tokens_per_watt") == 1);
  CHECK(out.at("tokens_per_watt_high") == 2);
  CHECK(page_columns(infos_of(MetricTable<ServeResult>{more})).back().at("header") == "tokens/W");
}

/// Sources that contain `key` as a whole string.
std::vector<std::string> files_that_spell(std::string_view key) {
  static const std::map<std::string, std::string> sources = [] {
    std::map<std::string, std::string> all;
    for (const char* folder : {"sim", "validation"}) {
      for (const auto& entry : fs::recursive_directory_iterator{kSource / folder}) {
        const std::string extension = entry.path().extension();
        if (extension != ".cpp" && extension != ".hpp" && extension != ".js") continue;
        all[entry.path().lexically_relative(kSource).generic_string()] = text_of(entry.path());
      }
    }
    return all;
  }();
  std::vector<std::string> files;
  for (const auto& [file, text] : sources) {
    for (const char quote : {'"', '\''}) {
      if (text.find(fmt::format("{}{}{}", quote, key, quote)) == std::string::npos) continue;
      files.push_back(file);
      break;
    }
  }
  return files;
}

TEST_CASE("a metric of services touches two files: its row and the place of its computation") {
  // Metrics without a figure or explanation, like a new metric.
  for (const char* key :
       {"oom_events", "output_tok_s_per_gpu", "output_tok_s_per_user", "cut_short", "link_wait",
        "prefix_hit_tokens", "kv_dropped_bytes", "peak_blocks"}) {
    INFO(key);
    CHECK(files_that_spell(key) ==
          std::vector<std::string>{"sim/serve/account/service_metrics.cpp"});
  }
  // Code that writes all metrics contains none of their names.
  for (const Metric<ServeResult>& metric : service_metrics()) {
    INFO(metric.info.key);
    const std::vector<std::string> files = files_that_spell(metric.info.key);
    for (const char* file :
         {"sim/sweep/serve_point.cpp", "sim/report/sweep/scenario_sweep.cpp",
          "sim/report/sweep/scenario_sweep_page.cpp", "sim/serve/account/serve_intervals.cpp",
          "sim/cli/explain/compare_results.cpp"}) {
      CHECK(std::find(files.begin(), files.end(), file) == files.end());
    }
  }
}

}  // namespace
}  // namespace kvsim
