// Sweeps: axes of the command line, the scenario's lists and its "sweep", and the points file that
// --resume continues. The first line of the input is an axis, the second a scenario, all others are
// points without the checksums that kvsim writes before them.
#include <fstream>
#include <string>

#include "models/json/field.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/sweep/resumed_points.hpp"
#include "tests/fuzz/target.hpp"

namespace {

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

/// Adds valid checksums to the lines, so that the reader accepts them.
std::string summed(std::string_view lines) {
  std::string out;
  while (!lines.empty()) {
    const std::string_view line = take_line(lines);
    const bool object = line.size() > 2 && line.front() == '{' && line.back() == '}';
    out += object ? kvsim::summed_line(line) : std::string{line} + "\n";
  }
  return out;
}

kvsim::SweepPlan plan_of(std::string_view scenario, const kvsim::SweepChanges& changes) {
  const auto path = kvsim::fuzz::as_file(scenario);
  return {kvsim::scenario_document(path, {}), path, changes};
}

/// A plan that matches a valid header.
const kvsim::SweepPlan& kept_plan() {
  static const kvsim::SweepPlan plan = plan_of(
      R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "prompt_tokens": 8, "output_tokens": 1,
          "batch": [1, 2, 3]})",
      {});
  return plan;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  std::string_view rest = fuzz::text_of(data, size);
  SweepChanges changes;
  const std::string axis{take_line(rest)};
  const std::string_view scenario = take_line(rest);
  fuzz::expect_answer([&] { changes.vary.push_back(axis_of_text(axis)); });
  fuzz::expect_answer([&] {
    const SweepPlan plan = plan_of(scenario, changes);
    (void)plan.values(plan.size() - 1);
    (void)plan.document(plan.size() - 1);
  });
  // Once as it is, and once after a matching header: points are read only after such a header.
  const SweepPlan& plan = kept_plan();
  const std::string header = Field::wrap({{"schema", "kvsim.sweep-points/1"},
                                          {"kvsim", "1"},
                                          {"hash", plan.hash()},
                                          {"points", plan.size()},
                                          {"sweep", plan.echo()}},
                                         "header")
                                 .raw()
                                 .dump();
  for (const std::string& before : {std::string{}, summed_line(header)}) {
    fuzz::expect_answer([&] {
      const auto path = fuzz::as_file(before + summed(rest));
      const auto content = read_points_file(path);
      if (content) (void)resumed_points(*content, plan, "1", path);
    });
  }
  return 0;
}
