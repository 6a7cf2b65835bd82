// The suite of `kvsim validate kernels`: every registered kernel, in the simulator.

#include <set>

#include "kernels/suite/cases/cases.hpp"
#include "models/cost/op.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using kernels::KernelResult;
using kernels::SuiteOptions;

TEST_CASE("every kernel of the suite agrees with its reference and its formula of traffic") {
  for (const std::uint64_t seed : {0U, 1U}) {
    const auto results = kernels::run_suite_in_simulator({.seed = seed});
    std::set<std::string> seen;
    for (const KernelResult& r : results) {
      INFO(r.name, ", ", r.shape, ", ", r.dtype, ": error ", r.error, " of ", r.allowed, "; ",
           r.problem);
      CHECK(r.pass);
      CHECK(r.error <= r.allowed);
      REQUIRE(r.counted);
      CHECK(*r.counted == r.model);
      CHECK_FALSE(r.timing);
      seen.insert(r.name);
    }
    for (const std::string& name : kernels::suite_kernels()) {
      INFO(name);
      CHECK(seen.count(name) == 1);
    }
  }
}

TEST_CASE("the suite names families of the cost model") {
  std::set<std::string_view> families;
  for (std::size_t i = 0; i < kOpFamilies; ++i) families.insert(name_of(static_cast<OpFamily>(i)));
  for (const KernelResult& r : kernels::run_suite_in_simulator({})) {
    INFO(r.name, ": ", r.family);
    CHECK(families.count(r.family) == 1);
  }
}

TEST_CASE("the suite: single kernels, equal inputs for equal seeds, unknown kernels are refused") {
  const SuiteOptions options{.seed = 3, .only = "update_scores"};
  const auto once = kernels::run_suite_in_simulator(options);
  const auto again = kernels::run_suite_in_simulator(options);
  REQUIRE_FALSE(once.empty());
  REQUIRE(once.size() == again.size());
  for (std::size_t i = 0; i < once.size(); ++i) {
    CHECK(once[i].name == "update_scores");
    CHECK(once[i].error == again[i].error);
  }
  CHECK_THROWS((void)kernels::run_suite_in_simulator({.only = "no_such_kernel"}));
}

/// Runs one case of a kernel that copies `n` numbers, or the variant of `body`.
template <class Body>
KernelResult one_case(Body body) {
  std::vector<KernelResult> results;
  const SuiteOptions options;
  on_sim::Bench bench{options, "planted", "elementwise", results};
  bench.add("a shape", "fp32", body);
  REQUIRE(results.size() == 1);
  return results.front();
}

KVSIM_KERNEL copy_but_last(std::int64_t n, on_sim::Span<const float> in, on_sim::Span<float> out) {
  namespace kv = on_sim::kv;
  using on_sim::threadIdx;
  if (threadIdx.x + 1 < n) kv::store(out, threadIdx.x, kv::load(in, threadIdx.x));
}

TEST_CASE("the suite finds a wrong value, a NaN, wrong traffic and an unwritten output") {
  using on_sim::Case;
  const kernels::KernelTraffic none{Bytes{0}, Bytes{0}, 0, 0};
  const auto wrong = one_case([](Case& c) {
    c.compare("x", std::vector<float>{1.0F, 2.0F}, std::vector<double>{1.0, 2.5}, 0.1);
  });
  CHECK_FALSE(wrong.pass);
  CHECK(wrong.error == doctest::Approx(0.2));
  const auto nan = one_case([](Case& c) {
    c.compare("x", std::vector<float>{std::nanf(""), 2.0F}, std::vector<double>{1.0, 2.0}, 0.1);
  });
  CHECK_FALSE(nan.pass);
  CHECK_FALSE(one_case([](Case& c) {
                c.compare("x", std::vector<float>{}, std::vector<double>{1.0}, 0.1);
              }).pass);
  CHECK_FALSE(one_case([&](Case& c) {
                c.run({Bytes{4}, Bytes{0}, 0, 0}, [](on_sim::Stream) {});
              }).pass);
  CHECK(one_case([&](Case& c) { c.run(none, [](on_sim::Stream) {}); }).pass);
  const auto unwritten = one_case([](Case& c) {
    const auto in = c.numbers<float>("in", c.draw(8)).span();
    auto& out = c.output<float>("out", 8);
    c.run({Bytes{28}, Bytes{28}, 0, 1}, [=, to = out.span()](on_sim::Stream s) {
      on_sim::launch(s, "copy_but_last", {1}, {8}, 0, copy_but_last, 8, in, to);
    });
    (void)out.download(0, 8);
  });
  CHECK_FALSE(unwritten.pass);
  CHECK(unwritten.problem.find("\"out\"") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
