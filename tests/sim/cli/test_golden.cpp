// Golden files: the shipped scenarios and the shipped trace produce the same numbers as before.
// Changes are listed in CHANGELOG under "Results"; tests/golden/README.md describes how to
// regenerate. Errors in each would violate laws in test_static_run, test_static_anchors and
// test_replay.

#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Bytes, steps and tokens are exact. Times and errors are sums with thousands of roundings that
/// depend on the compiler: nine digits are compared for times; five digits, or 1e-6, for errors,
/// which are computed in fp32.
void check_same(const ordered_json& got, const ordered_json& want, const std::string& place) {
  INFO(place);
  REQUIRE(got.type_name() == std::string{want.type_name()});
  if (want.is_object()) {
    for (const auto& [key, value] : want.items()) {
      REQUIRE_MESSAGE(got.contains(key), place, "/", key, " is gone");
      check_same(got.at(key), value, place + "/" + key);
    }
  } else if (want.is_array()) {
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      check_same(got[i], want[i], place + "/" + std::to_string(i));
    }
  } else if (want.is_number_float()) {
    const auto has = [&place](const char* word) { return place.find(word) != std::string::npos; };
    const bool drift = has("error") || has("cosine") || has("mass");
    const double expected = want.get<double>();
    const double allowed = drift ? 1e-6 + 1e-5 * std::abs(expected) : 1e-9 * std::abs(expected);
    CHECK(std::abs(got.get<double>() - expected) <= allowed);
  } else {
    CHECK(got == want);
  }
}

/// The keys of each item of `list` that are stored in a golden file.
ordered_json pick(const ordered_json& list, const std::vector<std::string>& keys) {
  ordered_json out = ordered_json::array();
  for (const ordered_json& item : list) {
    ordered_json one = ordered_json::object();
    for (const std::string& key : keys) one[key] = item.at(key);
    out.push_back(std::move(one));
  }
  return out;
}

void compare(const std::string& name, const ordered_json& got) {
  const fs::path golden = fs::path{KVSIM_SOURCE_DIR} / "tests/golden" / (name + ".json");
  if (std::getenv("KVSIM_REMAKE_GOLDEN") != nullptr) {
    std::ofstream{golden} << got.dump(1) << '\n';
    return;
  }
  std::ifstream in{golden};
  REQUIRE_MESSAGE(in.good(), golden.string(), " is missing");
  check_same(got, ordered_json::parse(in), name);
}

ordered_json run(const std::vector<std::string>& arguments) {
  const test::Outcome outcome = test::run_kvsim(arguments, KVSIM_SOURCE_DIR);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return ordered_json::parse(outcome.out);
}

TEST_CASE("the shipped scenarios give what they gave") {
  for (const std::string name : {"zeromerge-a800", "kv-sizes", "a100-vs-h200"}) {
    const ordered_json result =
        run({"run", "scenarios/" + name + ".json", "--json", "--no-figures"});
    compare(name, pick(result.at("points"),
                       {"label", "peak_hbm_bytes", "prefill_peak_bytes", "decode_peak_bytes",
                        "kv_bytes", "throughput_tok_s", "latency_s", "oom"}));
  }
}

TEST_CASE("the shipped services give what they gave") {
  for (const std::string name : {"serve-azure-code", "serve-mooncake"}) {
    const ordered_json result = run({"run", "scenarios/" + name + ".json", "--json"});
    CHECK(result.at("kind") == "serve");
    CHECK(result.at("run").at("wall_s").get<double>() > 0);
    compare(name, pick(result.at("points"),
                       {"label", "requests", "completed", "rejected", "preemptions", "oom_events",
                        "ttft_s", "tpot_s", "e2e_s", "output_tok_s", "request_s", "goodput",
                        "kv_capacity_tokens", "peak_hbm_bytes", "bound"}));
  }
}

TEST_CASE("the shipped trace gives what it gave") {
  // Named explicitly, so that a new method in the catalogue does not change the result.
  const ordered_json result = run(
      {"replay", "--trace", "traces/samples/books-treasure-512.safetensors", "--method",
       "full,streaming-llm,h2o,zeromerge,zeromerge-paper", "--budget", "0.1,0.2,0.5", "--json"});
  compare("replay-treasure",
          pick(result.at("methods"),
               {"name", "budget", "budget_reached", "entries_held_final", "bytes_held_final",
                "side_bytes_final", "bytes_read_total", "bytes_written_total", "extra_flops_total",
                "rel_error_mean", "rel_error_p99", "cosine_mean", "retained_mass_mean",
                "closed_form_bytes_final"}));
}

}  // namespace
}  // namespace kvsim
