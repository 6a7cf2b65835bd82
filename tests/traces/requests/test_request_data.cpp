// The published traces have their known statistics; a million records are read in time.

#include <chrono>
#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/check.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request_stats.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

struct Lengths {
  double mean, p50, p90, p99;
  std::int32_t max;
};

/// Known values are whole tokens.
void check_lengths(const LengthSummary& got, const Lengths& want) {
  CHECK(std::round(got.mean) == want.mean);
  CHECK(std::round(got.p50) == want.p50);
  CHECK(std::round(got.p90) == want.p90);
  CHECK(std::round(got.p99) == want.p99);
  CHECK(got.max == want.max);
}

}  // namespace

TEST_CASE("azure: counts, spans, lengths and burstiness as documented") {
  const auto data = data_dir();
  if (!data) return;
  const RequestTrace code = read_requests(*data / "requests/AzureLLMInferenceTrace_code.csv");
  CHECK(code.format == "azure");
  const RequestStats c = summarise_requests(code);
  CHECK(c.requests == 8819);
  CHECK(std::round(c.span.count()) == 3436);
  CHECK(std::abs(c.rate.value() - 2.57) < 0.005);
  CHECK(std::abs(c.inter_arrival_cv.value() - 13.2) < 0.051);
  check_lengths(c.prompt, {2048, 1469, 5188, 7436, 7437});
  check_lengths(c.output, {28, 13, 55, 251, 1899});
  const RequestStats v = summarise_requests(
      read_requests(*data / "requests/AzureLLMInferenceTrace_conv.first14000.csv"));
  CHECK(v.requests == 14000);
  CHECK(std::round(v.span.count()) == 2366);
  CHECK(std::abs(v.rate.value() - 5.92) < 0.005);
  CHECK(std::abs(v.inter_arrival_cv.value() - 1.08) < 0.005);
  check_lengths(v.prompt, {1199, 1015, 4074, 4122, 14050});
  check_lengths(v.output, {201, 115, 421, 598, 1000});
}

TEST_CASE("mooncake: lengths, the quantum and the reuse of prefixes") {
  const auto data = data_dir();
  if (!data) return;
  const RequestTrace t =
      read_requests(*data / "requests/mooncake_conversation_trace.first9000.jsonl");
  CHECK(t.format == "mooncake");
  const RequestStats s = summarise_requests(t);
  CHECK(s.requests == 9000);
  CHECK(s.span.count() == 2718.0);
  CHECK(s.distinct_arrivals == 907);
  CHECK(std::abs(s.rate.value() - 3.31) < 0.005);
  CHECK(std::abs(s.inter_arrival_cv.value() - 2.99) < 0.005);
  check_lengths(s.prompt, {12207, 7110, 27523, 87173, 124847});
  check_lengths(s.output, {347, 355, 605, 1181, 2000});
  REQUIRE(s.prefix);
  CHECK(s.prefix->blocks == 218830);
  CHECK(s.prefix->distinct == 141535);
  CHECK(std::round(1000.0 * static_cast<double>(s.prefix->reusable) / 218830.0) == 353);
  REQUIRE_FALSE(t.notes.empty());
  CHECK(t.notes.front().starts_with("arrivals are quantised to 3 s"));
}

TEST_CASE("servegen: drawn requests have the clients' rates and lengths") {
  const auto data = data_dir();
  if (!data) return;
  const auto file = *data / "requests/servegen/reason-deepseek-r1-chunk-35-trace.csv";
  const RequestStats s = summarise_requests(read_requests(file));
  CHECK(std::abs(static_cast<double>(s.requests) / 396000.0 - 1.0) < 0.01);
  CHECK(std::abs(s.prompt.p50 - 37) <= 1);
  CHECK(s.prompt.p90 == doctest::Approx(180).epsilon(0.03));
  CHECK(s.prompt.p99 == doctest::Approx(1493).epsilon(0.05));
  CHECK(s.prompt.max <= 11092);
  CHECK(s.output.p50 == doctest::Approx(1586).epsilon(0.02));
  CHECK(s.output.p90 == doctest::Approx(5811).epsilon(0.02));
  CHECK(s.output.max <= 32768);
}

TEST_CASE("a million records are read in seconds with no more memory than their requests") {
  const auto path = scratch("million.csv");
  {
    std::ofstream out{path, std::ios::binary};
    out << "arrival_s,prompt_tokens,output_tokens\n";
    std::string rows;
    for (int i = 0; i < 1'000'000; ++i)
      rows += fmt::format("{}.{:03},{},{}\n", i / 6, i % 6 * 100, i % 4000 + 1, i % 400);
    out << rows;
  }
  const auto begin = std::chrono::steady_clock::now();
  const RequestTrace t = read_requests(path);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("a million records in {:.3f} s\n", took.count());
  CHECK(t.requests.size() == 1'000'000);
  CHECK(t.requests.capacity() <= 1'600'000);
  CHECK(took.count() < 10.0);  // on a loaded machine; otherwise well below one second
  std::filesystem::remove(path);
}
