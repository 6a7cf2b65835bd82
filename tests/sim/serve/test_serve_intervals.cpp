// Intervals of a service: the service is repeated with faster and slower times.

#include <array>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/cost/rates/calibration.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

TEST_CASE("iterations twice as long end twice as late if all requests arrive at once") {
  test::SmallService service;
  for (std::int32_t i = 0; i < 12; ++i) {
    service.trace.requests.push_back(test::request(0, 20 + i, 5 + i % 3));
  }
  const ServeResult once = service.run();
  const ServeResult twice = service.run({.factors = TimeFactors::all(2)});
  REQUIRE(once.completed == 12);
  CHECK(twice.iterations == once.iterations);
  for (std::size_t i = 0; i < once.outcomes.size(); ++i) {
    CHECK(twice.outcomes[i].finish.count() == 2 * once.outcomes[i].finish.count());
  }
}

struct Service {
  explicit Service(std::string_view stack, const Calibration* calibration) {
    auto trace = std::make_shared<RequestTrace>();
    test::Dice dice{7};
    double at = 0;
    for (int i = 0; i < 300; ++i) {
      at -= std::log(dice.uniform()) / 6;
      const std::int32_t output = dice.between(2, 200);
      trace->requests.push_back(test::request(at, dice.between(200, 1800), output));
    }
    spec = {.llm = &find_llm("llama-3.1-8b"),
            .gpu = &find_gpu("H100-80GB-SXM"),
            .stack = &find_stack(stack),
            .weight_dtype = Dtype::kBf16,
            .kv_dtype = Dtype::kBf16,
            .calibration = calibration,
            .requests = trace};
    spec.slo.ttft = Seconds{0.5};
    result = run_serve(spec);
    intervals = serve_intervals(spec, result, mean_iteration(spec, result));
  }
  ServeSpec spec;
  ServeResult result;
  std::optional<ServeIntervals> intervals;
};

TEST_CASE("the basis lists the metrics without measured runs with drafts") {
  Service s{"vllm", &builtin_calibration()};
  const std::string plain = s.intervals->basis;
  CHECK(plain.find("drafts") == std::string::npos);
  s.spec.speculation = {.proposer = Proposer::kNgram, .tokens = 3, .acceptance = 0.5};
  const ServeResult r = run_serve(s.spec);
  const std::string basis = ServeResiduals{s.spec, r, mean_iteration(s.spec, r)}.basis();
  CHECK(basis.find("TTFT, drafts: ") != std::string::npos);
  CHECK(basis.ends_with("; those of TPOT and throughput without drafts, which this service has"));
}

TEST_CASE("no first token is later than the latest last token, and decoding takes no longer") {
  for (const char* stack : {"vllm", "sglang", "trtllm"}) {
    INFO(stack);
    const Service s{stack, &builtin_calibration()};
    REQUIRE(s.intervals);
    const MetricValue first = s.intervals->ends("ttft_s").high;
    const MetricValue last = s.intervals->ends("e2e_s").high;
    const MetricValue each = s.intervals->ends("tpot_s").high;
    const Distribution& ttft = *first.distribution();
    const Distribution& e2e = *last.distribution();
    for (double Distribution::*part : {&Distribution::mean, &Distribution::p50, &Distribution::p90,
                                       &Distribution::p95, &Distribution::p99}) {
      CHECK(ttft.*part <= e2e.*part);
    }
    const double decoding = s.result.e2e.mean - s.result.ttft.mean;
    CHECK(each.distribution()->mean / s.result.tpot.mean * decoding <= e2e.mean * (1 + 1e-12));
  }
}

TEST_CASE("every metric of a service is between its ends and slower is never better") {
  const Service s{"vllm", &builtin_calibration()};
  REQUIRE(s.intervals);
  CHECK(s.intervals->faster.run.decode < 1);
  CHECK(s.intervals->slower.run.decode > 1);
  // The basis contains the classes of TTFT, TPOT and throughput, and the number of documents of
  // each.
  for (const char* part : {"TTFT", "TPOT", "throughput", "document"}) {
    CHECK(s.intervals->basis.find(part) != std::string::npos);
  }
  const auto ends = [&](std::string_view key) { return s.intervals->ends(key); };
  for (const Metric<ServeResult>& metric : service_metrics()) {
    INFO(metric.info.key);
    const MetricEnds of = ends(metric.info.key);
    const MetricValue here = metric.value(s.result);
    const bool is_null = std::holds_alternative<MetricValue::Null>(of.low.any());
    CHECK(is_null != metric.info.varies_with_times);
    if (is_null) continue;
    if (metric.info.kind == MetricKind::kLatency) {
      for (const double Distribution::*x :
           {&Distribution::mean, &Distribution::p50, &Distribution::p90, &Distribution::p99}) {
        CHECK(of.low.distribution()->*x <= here.distribution()->*x);
        CHECK(here.distribution()->*x <= of.high.distribution()->*x);
      }
      // At each end, percentiles are in increasing order, although tails have different classes.
      for (const MetricValue* end : {&of.low, &of.high}) {
        const Distribution& d = *end->distribution();
        CHECK(d.p50 <= d.p90);
        CHECK(d.p90 <= d.p95);
        CHECK(d.p95 <= d.p99);
      }
      continue;
    }
    CHECK(*of.low.number() <= *here.number());
    CHECK(*here.number() <= *of.high.number());
  }
  const Distribution& tpot = s.result.tpot;
  CHECK(ends("tpot_s").low.distribution()->mean < tpot.mean);
  CHECK(ends("tpot_s").high.distribution()->mean > tpot.mean);
  for (const char* key : {"output_tok_s", "makespan_s", "mfu", "mbu", "busy"}) {
    INFO(key);
    CHECK(*ends(key).low.number() < *ends(key).high.number());
  }
  REQUIRE(s.intervals->slo_probability);
  CHECK(*s.intervals->slo_probability >= 0);
  CHECK(*s.intervals->slo_probability <= 1);
}

TEST_CASE("draws of the factors reproduce the exponents of power laws, for times and rates") {
  std::array<double, kServeDraws> drawn{};
  for (const double power : {1.0, 0.5, 3.0, -2.0, 0.0}) {
    for (std::size_t i = 0; i < kServeDraws; ++i) {
      drawn[i] = 7 * std::pow(serve_draws()[i].decode, power);
    }
    INFO(power);
    REQUIRE(response(7, drawn));
    CHECK(response(7, drawn)->slope() == doctest::Approx(std::abs(power)).epsilon(1e-9));
    for (const double error : {-0.3, -0.1, 0.1, 0.3}) {
      CHECK(response(7, drawn)->change(error, 0) ==
            doctest::Approx(std::abs(power) * error).epsilon(1e-9));
    }
  }
  drawn[0] = 0;
  CHECK_FALSE(response(7, drawn));
}

TEST_CASE("a value near saturation grows at most in proportion to times beyond the draws") {
  // Ten times as long if all times are 16 % longer, 20 times if they are 57 % longer.
  const std::array<double, kServeDraws> drawn{0.9, 10, 20};
  const std::optional<Response> moves = response(1, drawn);
  REQUIRE(moves);
  CHECK(std::exp(moves->change(0.15, 0)) == doctest::Approx(10).epsilon(1e-9));
  CHECK(std::exp(moves->change(0.45, 0)) == doctest::Approx(20).epsilon(1e-9));
  CHECK(std::exp(moves->change(1.45, 0)) < 20 * std::exp(1.0) * (1 + 1e-9));
  CHECK(std::exp(moves->change(-0.3, 0)) == doctest::Approx(0.9).epsilon(1e-9));
  for (const double error : {-0.8, -0.2, 0.01, 0.2, 0.44, 2.0}) {
    CHECK(moves->error(moves->change(error, 0.3), 0.3) == doctest::Approx(error).epsilon(1e-9));
  }
}

TEST_CASE("the probability of meeting bounds falls with the time needed") {
  const Service s{"vllm", &builtin_calibration()};
  const ServeResiduals residuals{s.spec, s.result, mean_iteration(s.spec, s.result)};
  REQUIRE(residuals.known());
  double last = 1;
  for (const double need : {0.01, 0.5, 0.9, 1.0, 1.1, 2.0, 100.0}) {
    std::array<double, kServeDraws> drawn{};
    for (std::size_t i = 0; i < kServeDraws; ++i) drawn[i] = need * serve_draws()[i].decode;
    const double now = slo_probability(residuals, need, drawn);
    INFO(need);
    CHECK(now <= last);
    CHECK(now >= 0);
    last = now;
  }
  CHECK(last < 0.05);
  // Very loose bounds are met, and bounds that no request meets are not.
  ServeSpec easy = s.spec;
  easy.slo = {.ttft = Seconds{1e4}, .tpot = {}, .e2e = {}};
  CHECK(*serve_intervals(easy, s.result, mean_iteration(easy, s.result))->slo_probability > 0.98);
  easy.slo.ttft = Seconds{1e-9};
  CHECK(*serve_intervals(easy, s.result, mean_iteration(easy, s.result))->slo_probability < 0.02);
}

TEST_CASE("a calibrated service has the values and intervals of its benchmark") {
  const Service s{"vllm", &builtin_calibration()};
  ServeSpec calibrated = s.spec;
  calibrated.calibrated = ServiceCalibration{.times = {.decode = 1.3,
                                                       .prefill = 1.2,
                                                       .front_end = 1,
                                                       .request = Seconds{0.02},
                                                       .sequence = Seconds{2e-5}},
                                             .ttft_error = 0.05,
                                             .tpot_error = 0.02,
                                             .e2e_error = 0.02,
                                             .throughput_error = 0.01,
                                             .runs = 2};
  const ServeResult result = run_serve(calibrated);
  CHECK(result.tpot.mean > 1.25 * s.result.tpot.mean);
  CHECK(result.ttft.p50 > s.result.ttft.p50 + 0.02);
  // Values that options add are included.
  const ServeResult same = run_serve(s.spec, {.factors = calibrated.calibrated->times});
  CHECK(same.tpot.mean == test::rel(result.tpot.mean, 1e-12));
  const auto intervals = serve_intervals(calibrated, result, mean_iteration(calibrated, result));
  REQUIRE(intervals);
  const auto width = [](const ServeIntervals& of) {
    const MetricEnds ends = of.ends("tpot_s");
    return ends.high.distribution()->mean / ends.low.distribution()->mean;
  };
  CHECK(width(*intervals) < width(*s.intervals));
  CHECK(intervals->basis.find("benchmark of this service") != std::string::npos);
}

TEST_CASE("time per sequence never reduces an iteration to zero") {
  const TimeFactors fast{
      .decode = 1, .prefill = 1, .front_end = 1, .request = Seconds{}, .sequence = Seconds{-1.0}};
  CHECK(fast.iteration(Seconds{0.01}, false, 100) == Seconds{0.001});
  CHECK(fast.iteration(Seconds{0.01}, false, 0) == Seconds{0.01});
}

TEST_CASE("every metric that varies with times has its ends in the JSON of a service") {
  const Service s{"vllm", &builtin_calibration()};
  REQUIRE(s.intervals);
  const auto metrics = service_metrics_json(s.result, s.intervals);
  const auto none = service_metrics_json(s.result, std::nullopt);
  for (const Metric<ServeResult>& metric : service_metrics()) {
    if (!metric.info.varies_with_times) continue;
    const std::string name{metric.info.key};
    INFO(name);
    CHECK(none.at(name + "_low").is_null());
    CHECK(none.at(name + "_high").is_null());
    if (metric.info.kind == MetricKind::kLatency) continue;
    const double value = metrics.at(name).get<double>();
    CHECK(metrics.at(name + "_low").get<double>() <= value);
    CHECK(value <= metrics.at(name + "_high").get<double>());
  }
  CHECK(metrics.at("makespan_s_low") == *s.intervals->ends("makespan_s").low.number());
  CHECK(metrics.at("mfu_high") == *s.intervals->ends("mfu").high.number());
}

TEST_CASE("a service without known errors of times has no interval") {
  CHECK_FALSE(Service("vllm", nullptr).intervals);
  CHECK_FALSE(Service("hf-sdpa", &builtin_calibration()).intervals);  // static batches
}

TEST_CASE("a model that does not fit reports the shortage and a sufficient number of GPUs") {
  auto trace = std::make_shared<RequestTrace>();
  trace->requests.push_back(test::request(0, 100, 10));
  const ServeSpec spec{.llm = &find_llm("llama-3.1-405b"),
                       .gpu = &find_gpu("H100-80GB-SXM"),
                       .stack = &find_stack("vllm"),
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = Dtype::kBf16,
                       .requests = trace};
  const ServeResult result = run_serve(spec);
  CHECK(result.rejected == 1);
  REQUIRE(result.ooms.size() == 1);
  // 756 GiB of weights: 8 GPUs hold 71.3 of 94.5 GiB each; the next divisor of its 128 heads is 16.
  CHECK(result.ooms[0].what.find("are missing") != std::string::npos);
  CHECK(result.ooms[0].what.find("it starts on 16 GPUs") != std::string::npos);
  ServeSpec wide = spec;
  wide.tensor_parallel = 16;
  CHECK(run_serve(wide).completed == 1);
}

}  // namespace
}  // namespace kvsim
