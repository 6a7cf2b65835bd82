// Methods in shared libraries: the example of examples/own_method, and libraries that break
// kvsim_method.h.

#include <cmath>
#include <filesystem>
#include <string>

#include "models/methods/resolve/own_methods.hpp"
#include "models/units/error.hpp"
#include "sim/own/own_method.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::has;

const fs::path kRoot{KVSIM_SOURCE_DIR};
const fs::path kLibraries{KVSIM_LIBRARIES};

const Trace& sample() {
  static const Trace trace = Trace::open(kRoot / "traces/samples/books-treasure-512.safetensors");
  return trace;
}

std::string complaint(const std::string& file, const Params& params = {}) {
  try {
    const std::string name = method_of_user(file, kLibraries);
    (void)replay(sample(), {{name, params, Budget{.fraction = 0.2}}}, {.threads = 2});
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST_CASE("own library: the example keeps the first tokens and those with the largest values") {
  const std::string name = method_of_user("own_value_norm.so", kLibraries);
  CHECK(name == "value-norm");
  CHECK(method_of_user("own_value_norm.so+int8", kLibraries) == "value-norm+int8");
  const ReplayResult result =
      replay(sample(), {{name, {{"sinks", std::int64_t{2}}}, Budget{.entries = 30}}},
             {.threads = 3, .kept_positions = true});
  const TraceLayer rows = sample().read_layer(4);
  const std::size_t d = 32, tokens = 512, prompt = 384;
  for (std::size_t head = 0; head < 2; ++head) {
    std::vector<std::pair<double, std::int32_t>> order;
    for (std::size_t t = 2; t < prompt; ++t) {
      double sum = 0;
      for (std::size_t i = 0; i < d; ++i) {
        const double x = rows.v[(head * tokens + t) * d + i];
        sum += x * x;
      }
      order.emplace_back(-std::sqrt(sum), static_cast<std::int32_t>(t));
    }
    std::sort(order.begin(), order.end());
    std::vector<std::int32_t> wanted{0, 1};
    for (std::size_t i = 0; i < 28; ++i) wanted.push_back(order[i].second);
    std::sort(wanted.begin(), wanted.end());
    std::vector<std::int32_t> kept;
    for (const auto& entry : result.methods[0].kept[4][head]) {
      if (entry.front() < static_cast<std::int32_t>(prompt)) kept.push_back(entry.front());
    }
    CHECK(kept == wanted);
  }
  CHECK(has(result.methods[0].notes.front(),
            "scored by the user's library own_value_norm.so (FNV-1a "));
  CHECK(has(result.methods[0].notes.front(), "0 x keys, 1 x values, 0 x queries"));
}

TEST_CASE("own library: violations of the interface are reported") {
  CHECK(complaint("own_abi.so") == "own_abi.so: kvsim_method_abi(): expected 1, got 7");
  CHECK(complaint("own_clash.so") ==
        "own method \"snapkv\": kvsim already has a method with this name");
  CHECK(has(complaint("own_no_name.so"), "expected the function kvsim_method_name"));
  CHECK(has(complaint("own_no_score.so"), "expected the function kvsim_method_score"));
  CHECK(complaint("own_not_finite.so") ==
        "method \"broken\" (own_not_finite.so): layer 0, head 1, token 2: expected a finite "
        "score, got nan");
  CHECK(complaint("own_value_norm.so", {{"sinks", std::int64_t{-1}}}) ==
        "method \"value-norm\" (own_value_norm.so): layer 0: sinks: expected at least 0, got -1 "
        "(status 1)");
  CHECK(has(complaint("own_value_norm.so", {{"sinks", std::string{"few"}}}),
            "parameter sinks: expected a number (own_value_norm.so), got few"));
  CHECK(has(complaint("no_such.so"), "no such file: "));
  const fs::path folder = test::fresh("own_library");
  test::write(folder / "text.so", "no library");
  CHECK(has(complaint((folder / "text.so").string()), "text.so: expected a shared library, got "));
}

}  // namespace
}  // namespace kvsim
