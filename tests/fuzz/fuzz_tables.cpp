// Tables of kernel timings, of published figures and of a profiler's counters.
#include "tests/fuzz/target.hpp"
#include "validation/device/profiler_csv.hpp"
#include "validation/measured/csv_table.hpp"
#include "validation/measured/measured_rows.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_text.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const auto text = fuzz::text_of(data, size);
  fuzz::expect_answer([&] { (void)read_measured(CsvTable::parse(text, "input")); });
  fuzz::expect_answer([&] {
    (void)profiler_problem(text);
    (void)read_profiler_csv(text, "input");
  });
  return fuzz::expect_answer([&] {
    for (const PublishedRow& row : parse_published_csv(text, "input")) {
      const auto prompt = parse_prompt(row.prompt_len, row.note);
      (void)parse_output(row.output_len, prompt ? 1024 : 0);
      (void)parse_batch(row.batch, row.note);
      (void)parse_format(row.dtype);
    }
  });
}
