// Lengths of a served run whose table states only their mean, and runs that are copies of others.

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/check.hpp"
#include "validation/served/served_mapping.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_tables.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using test::rel;

struct Cells {
  std::string id = "r1", gpu = "H100-80GB-SXM", engine = "vLLM", workload = "sharegpt",
              input = "215", output = "200";
};

/// A table with a row per cells and per value.
std::vector<ServedRun> runs_of(const std::vector<std::pair<Cells, std::vector<double>>>& all) {
  std::string text =
      "run_id,source,date,gpu,gpu_count,tp,pp,ep_dp,model,weight_dtype,kv_dtype,engine,"
      "engine_version,engine_options,workload,input_tokens,input_spread,output_tokens,"
      "output_spread,arrival,rate_rps,concurrency,num_requests,seed,metric,stat,value,unit,"
      "not_stated,note\n";
  constexpr std::array kStats{"mean", "median", "p90", "p99"};
  for (const auto& [c, values] : all) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      text += fmt::format(
          "{},own/bench,2025-10,{},1,1,1,,meta-llama/Llama-3.1-8B-Instruct,bf16,auto,{},0.11.0,"
          "max_num_seqs=64,{},{},dataset,{},dataset,concurrency,,4,16,0,ttft,{},{},ms,,\n",
          c.id, c.gpu, c.engine, c.workload, c.input, c.output, kStats.at(i), values[i]);
    }
  }
  return parse_served_runs(text, "runs.csv");
}

ordered_json requests_of(const Cells& cells) {
  const MappedRun mapped = map_served_run(runs_of({{cells, {20}}}).front(), {});
  REQUIRE(mapped.is_expressed());
  return mapped.scenario.at("requests");
}

TEST_CASE("a set's prompts keep its logged shape and have the stated mean") {
  const ServedLengths* set = find_served_lengths("ShareGPT, benchmark_serving");
  REQUIRE(set != nullptr);
  REQUIRE(set->prompt_twentieths.size() == 20);
  for (const double mean : {107.5, 215.0, 430.0}) {
    Cells cells;
    cells.input = fmt::format("{}", mean);
    const ordered_json prompts = requests_of(cells).at("prompt_tokens");
    CHECK(prompts.at("kind") == "empirical");
    const auto values = prompts.at("values").get<std::vector<double>>();
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    CHECK(sum / 20 == rel(mean, 0.005));
    CHECK(values.back() / values[10] == rel(set->prompt_twentieths.back() / 111, 0.02));
  }
  // Sets with the same prompts name them instead of repeating them.
  CHECK(find_served_lengths("chat")->prompt_twentieths == set->prompt_twentieths);
  CHECK(find_served_lengths("sharegpt-style")->prompt_twentieths == set->prompt_twentieths);
}

TEST_CASE("outputs vary as the set says, and as generated answers do without a set") {
  Cells cells;
  cells.output = "100";
  const ordered_json outputs = requests_of(cells).at("output_tokens");
  CHECK(outputs.at("kind") == "lognormal");
  CHECK(outputs.at("mean").get<double>() == rel(100.0));
  CHECK(outputs.at("p99").get<double>() == rel(460.0));
  cells.workload = "my own data";
  const ordered_json own = requests_of(cells).at("output_tokens");
  CHECK(own.at("p99").get<double>() == rel(100 * generated_p99_per_mean()));
}

TEST_CASE("runs with the same values of another machine are copies and are not compared") {
  const std::vector<double> values{20.25, 19.5, 33.125, 41.75};
  Cells first, second;
  second.id = "r2";
  const auto refusals = [&](const std::vector<double>& of_second) {
    std::vector<std::string> out;
    for (const ServedRun& run : runs_of({{first, values}, {second, of_second}})) {
      out.push_back(map_served_run(run, {}).refused);
    }
    return out;
  };
  // The same run in two documents is no copy by mistake.
  CHECK(refusals(values) == std::vector<std::string>{"", ""});
  second.gpu = "A100-80GB-SXM";
  const auto copies = refusals(values);
  CHECK(copies[0].find("one is a copy") != std::string::npos);
  CHECK(copies[1] == copies[0]);
  CHECK(runs_of({{first, values}, {second, values}})[1].copy_of == "r1");
  // One other digit, or fewer values than cannot agree by chance.
  CHECK(refusals({20.25, 19.5, 33.125, 41.76}) == std::vector<std::string>{"", ""});
  const auto few = runs_of({{first, {20.25, 19.5, 33}}, {second, {20.25, 19.5, 33}}});
  CHECK(few[1].copy_of.empty());
  second.gpu = first.gpu;
  second.engine = "SGLang";
  CHECK_FALSE(refusals(values)[1].empty());
}

}  // namespace
}  // namespace kvsim
