// Results read back: by `kvsim compare`, and metric by metric by `kvsim explain`.
#include <string>

#include "models/json/field.hpp"
#include "sim/cli/explain/compare_results.hpp"
#include "sim/cli/explain/explain_result.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::expect_answer([&] {
    const ResultItems items = read_result_items(fuzz::as_file(text));
    (void)compare_results(items, items, 0.0);
  });
  return fuzz::expect_answer([&] {
    const Field result = Field::parse(text, "input");
    static const std::vector<std::string> keys = explained_keys();
    for (const std::string& key : keys) {
      if (key == "kept") continue;  // in a separate file: fuzz_figures
      for (const char* which : {"0", "1"}) {
        fuzz::expect_answer([&] { (void)explain_result(result, {.key = key, .which = which}); });
      }
    }
  });
}
