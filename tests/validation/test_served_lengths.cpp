// Lengths of served runs whose table states only their mean, and runs that are copies of others.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/check.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/requests/random_stream.hpp"
#include "validation/served/served_lengths.hpp"
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

/// A table with one row per run and value.
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

std::vector<double> values_of(const ordered_json& lengths) {
  CHECK(lengths.at("kind") == "empirical");
  return lengths.at("values").get<std::vector<double>>();
}
double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST_CASE("a set's lengths keep their logged shape and have the stated means") {
  const ServedLengths* set = find_served_lengths("ShareGPT, benchmark_serving");
  REQUIRE(set != nullptr);
  REQUIRE(set->prompt_twentieths.size() == 20);
  CHECK(mean_of(set->prompt_twentieths) == rel(set->prompt_tokens, 0.002));
  for (const double scale : {0.85, 1.0, 1.2}) {
    Cells cells;
    cells.input = fmt::format("{}", 215 * scale);
    cells.output = fmt::format("{}", 200 * scale);
    const ordered_json requests = requests_of(cells);
    const auto prompts = values_of(requests.at("prompt_tokens"));
    CHECK(mean_of(prompts) == rel(215 * scale, 0.005));
    CHECK(prompts.back() / prompts[10] ==
          rel(set->prompt_twentieths.back() / set->prompt_twentieths[10], 0.02));
    CHECK(mean_of(values_of(requests.at("output_tokens"))) == rel(200 * scale, 0.005));
  }
  // Data sets with the same prompts refer to them instead of repeating them; their outputs are
  // generated.
  CHECK(find_served_lengths("chat")->prompt_twentieths == set->prompt_twentieths);
  CHECK(find_served_lengths("sharegpt-style")->prompt_twentieths == set->prompt_twentieths);
  CHECK_FALSE(find_served_lengths("chat")->outputs_as_prompts);
}

TEST_CASE("other selections of a set, and other sets, vary like generated answers") {
  Cells cells;
  cells.output = "281";  // 1.4 times the sampled set's
  const auto check = [&] {
    const ordered_json outputs = requests_of(cells).at("output_tokens");
    CHECK(outputs.at("kind") == "lognormal");
    CHECK(outputs.at("mean").get<double>() == rel(281.0));
    CHECK(outputs.at("p99").get<double>() == rel(281 * generated_p99_per_mean()));
  };
  check();
  CHECK(requests_of(cells).at("prompt_tokens").at("kind") == "lognormal");
  cells.workload = "my own data";
  check();
}

TEST_CASE("generated outputs truncated by a cap keep the stated mean") {
  // exp(N(mu, sigma)) truncated at 1,000, by 200,000 equal shares.
  const double p99 = 3.5;
  for (const double stated : {50.0, 300.0, 480.0, 800.0, 950.0}) {
    const double before = mean_before_cap(stated, p99, 1000);
    CHECK(before >= stated);
    const LognormalShape shape = lognormal_of(before, before * p99);
    constexpr int kShares = 200'000;
    double sum = 0;
    for (int i = 0; i < kShares; ++i) {
      const double z = normal_quantile((i + 0.5) / kShares);
      sum += std::min(1000.0, std::exp(shape.mu + shape.sigma * z));
    }
    CHECK(sum / kShares == rel(stated, 1e-3));
  }
  CHECK(mean_before_cap(50, p99, 100'000) == rel(50.0, 1e-6));
  CHECK(mean_before_cap(1000, p99, 1000) == rel(20'000.0));
}

TEST_CASE("runs with values copied from another machine are not compared") {
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
  // The same run in two documents is not an erroneous copy.
  CHECK(refusals(values) == std::vector<std::string>{"", ""});
  second.gpu = "A100-80GB-SXM";
  const auto copies = refusals(values);
  CHECK(copies[0].find("one is a copy") != std::string::npos);
  CHECK(copies[1] == copies[0]);
  CHECK(runs_of({{first, values}, {second, values}})[1].copy_of == "r1");
  // Values that differ in one digit, or too few values to exclude equality by chance.
  CHECK(refusals({20.25, 19.5, 33.125, 41.76}) == std::vector<std::string>{"", ""});
  const auto few = runs_of({{first, {20.25, 19.5, 33}}, {second, {20.25, 19.5, 33}}});
  CHECK(few[1].copy_of.empty());
  second.gpu = first.gpu;
  second.engine = "SGLang";
  CHECK_FALSE(refusals(values)[1].empty());
}

}  // namespace
}  // namespace kvsim
