// Statistics of attention: closed forms, and the numbers recorded with the project's traces.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "tests/support/check.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/check.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

TraceInfo info_of(std::int64_t tokens, std::int32_t heads, std::int32_t kv_heads) {
  TraceInfo info;
  info.n_layers = 1;
  info.n_heads = heads;
  info.n_kv_heads = kv_heads;
  info.head_dim = 2;
  info.tokens = tokens;
  info.softmax_scale = 1;
  return info;
}

TraceLayer zeros(const TraceInfo& info) {
  const auto size = static_cast<std::size_t>(info.tokens * info.head_dim);
  return {.q = std::vector<float>(size * static_cast<std::size_t>(info.n_heads)),
          .k = std::vector<float>(size * static_cast<std::size_t>(info.n_kv_heads)),
          .v = {}};
}

}  // namespace

TEST_CASE("check: the order of heads changes nothing and progress ends at the end") {
  const Trace trace = Trace::open(sample_trace());
  const TraceCheck plain = check_trace(trace, 64);
  CheckWork work;
  work.for_each = [](std::size_t count, const std::function<void(std::size_t)>& task) {
    for (std::size_t i = count; i-- > 0;) task(i);
  };
  std::vector<double> reported;
  work.progress = [&](double done) { reported.push_back(done); };
  const TraceCheck other = check_trace(trace, 64, work);
  REQUIRE(other.layers.size() == plain.layers.size());
  for (std::size_t i = 0; i < plain.layers.size(); ++i) {
    CHECK(other.layers[i].entropy.mean == plain.layers[i].entropy.mean);
    CHECK(other.layers[i].heavy20.high == plain.layers[i].heavy20.high);
    CHECK(other.layers[i].worst_row_sum == plain.layers[i].worst_row_sum);
  }
  CHECK(std::is_sorted(reported.begin(), reported.end()));
  CHECK(std::ssize(reported) == trace.info().n_layers * trace.info().n_heads);
  CHECK(reported.back() == 1);
}

TEST_CASE("check: uniform attention has closed forms") {
  // Zero logits: row t assigns 1 / (t + 1) to each of its t + 1 tokens. 64 tokens, rows 32 … 63.
  const TraceInfo info = info_of(64, 2, 1);
  const LayerCheck check = check_layer(info, zeros(info));
  double first = 0, last = 0, entropy = 0, top5 = 0, top20 = 0;
  for (int n = 33; n <= 64; ++n) {
    first += 1.0 / n / 32;
    last += 32.0 / n / 32;
    entropy += std::log(n) / 32;
    top5 += std::ceil(0.05 * n) / n / 32;
    top20 += std::ceil(0.2 * n) / n / 32;
  }
  CHECK(check.first_token.mean == rel(first));
  CHECK(check.last32.mean == rel(last));
  CHECK(check.entropy.mean == rel(entropy));
  CHECK(check.entropy_norm.mean == rel(1));
  CHECK(check.top5.mean == rel(top5));
  CHECK(check.top20.mean == rel(top20));
  CHECK(check.first_token.low == check.first_token.high);
  CHECK(check.worst_row_sum < 1e-14);
}

TEST_CASE("check: a pure sink in one of two heads") {
  // Head 0's queries have logit 40 at key 0 and 0 at all others; head 1 has zeros.
  const TraceInfo info = info_of(40, 2, 1);
  TraceLayer layer = zeros(info);
  layer.k[0] = 40;
  for (std::size_t t = 0; t < 40; ++t) layer.q[2 * t] = 1;
  const LayerCheck check = check_layer(info, layer);
  CHECK(check.first_token.high == rel(1, 1e-9));
  CHECK(check.first_token.low < 0.05);
  CHECK(check.first_token.mean == rel((check.first_token.low + check.first_token.high) / 2));
  CHECK(check.top5.high == rel(1, 1e-9));
  CHECK(check.heavy20.high == rel(1, 1e-9));
  CHECK(check.entropy.low < 1e-9);
}

TEST_CASE("check: a trace with one token") {
  const TraceInfo info = info_of(1, 1, 1);
  const LayerCheck check = check_layer(info, zeros(info));
  CHECK(check.first_token.mean == 1);
  CHECK(check.last32.mean == 1);
  CHECK(check.entropy.mean == 0);
  CHECK(check.heavy20.mean == 1);
}

TEST_CASE("check: long traces use a sample of evenly spaced rows") {
  const Trace trace = Trace::open(sample_trace());
  const TraceCheck all = check_trace(trace);
  const TraceCheck some = check_trace(trace, 128);
  CHECK(all.rows_used == 512);
  CHECK(all.late_rows_used == 256);
  CHECK(some.rows_used == 128);
  CHECK(some.late_rows_used == 64);
  CHECK(all.tokens == 512);
  CHECK(some.layers.size() == 6);
  CHECK(all.uniform_last32 == doctest::Approx(0.087).epsilon(0.01));
  for (std::size_t i = 0; i < all.layers.size(); ++i) {
    CHECK(std::abs(all.layers[i].last32.mean - some.layers[i].last32.mean) < 0.05);
    CHECK(std::abs(all.layers[i].top20.mean - some.layers[i].top20.mean) < 0.02);
  }
  CHECK_THROWS_AS((void)check_trace(trace, 1), ContractError);
}

TEST_CASE("check: the shipped sample has the statistics of its README") {
  const TraceCheck check = check_trace(Trace::open(sample_trace()));
  const LayerCheck& layer = check.layers[0];
  CHECK(std::abs(layer.first_token.mean - 0.0639) < 6e-5);
  CHECK(std::abs(layer.first_token.high - 0.0924) < 6e-5);
  CHECK(std::abs(layer.last32.mean - 0.3747) < 6e-5);
  CHECK(std::abs(layer.entropy.mean - 3.1948) < 6e-5);
  CHECK(std::abs(layer.heavy20.mean - 0.5044) < 6e-5);
}

TEST_CASE("check: recorded statistics of the data folder's traces") {
  const auto data = data_dir();
  if (!data) return;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator{*data / "attention"}) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".stats.json")) continue;
    ++files;
    const Field stats = Field::read_file(entry.path());
    const TraceCheck check =
        check_trace(Trace::open(entry.path().parent_path() / stats.at("file").string()));
    const auto layers = stats.at("layers").items();
    REQUIRE(layers.size() == check.layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      INFO(name, " layer ", i);
      const LayerCheck& got = check.layers[i];
      const auto holds = [&](const char* key, double value) {
        INFO(key);
        // Recorded to four decimals.
        CHECK(std::abs(layers[i].at(key).number(0, 100) - value) < 6e-5);
      };
      holds("sink", got.first_token.mean);
      holds("sink_head_max", got.first_token.high);
      holds("last32", got.last32.mean);
      holds("last32_head_min", got.last32.low);
      holds("last32_head_max", got.last32.high);
      holds("entropy", got.entropy.mean);
      holds("entropy_norm", got.entropy_norm.mean);
      holds("top5", got.top5.mean);
      holds("top5_head_min", got.top5.low);
      holds("top20", got.top20.mean);
      holds("hh20", got.heavy20.mean);
    }
  }
  CHECK(files >= 1);
}
