// Scenario files: comments, form, keys, points.
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  return fuzz::expect_answer([&] {
    const auto path = fuzz::as_file(fuzz::text_of(data, size));
    const nlohmann::json document = scenario_document(path, {});
    (void)scenario_of(document, path, "input", true);
  });
}
