// kvsim calibrate: measurements that replace predictions of the models. Each source of measurements
// has its own file.

#include "sim/cli/calibrate/command_calibrate.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "sim/cli/calibrate/calibrate_bench.hpp"
#include "sim/cli/calibrate/calibrate_log.hpp"
#include "sim/cli/options/command.hpp"

namespace kvsim {
namespace {

int run_calibrate(const Arguments& arguments) {
  int sources = 0;
  for (const char* source : {"measured", "from-log", "from-bench", "device", "residuals"})
    sources += arguments.has(source);
  if (sources > 1) {
    throw InputError{"calibrate",
                     "one of --measured, --from-log, --from-bench, --device and --residuals",
                     "several"};
  }
  const auto only_with = [&](const char* option, std::string_view words,
                             std::initializer_list<const char*> of) {
    if (!arguments.has(option) || sources == 0) return;
    if (std::none_of(of.begin(), of.end(), [&](const char* s) { return arguments.has(s); })) {
      throw InputError{fmt::format("--{}", option), fmt::format("together with {}", words),
                       "another source of measurements"};
    }
  };
  only_with("op", "--measured", {"measured"});
  only_with("provenance", "--measured or --residuals", {"measured", "residuals"});
  only_with("date", "--measured or --residuals", {"measured", "residuals"});
  if (arguments.has("device")) return calibrate_on_device(arguments);
  if (arguments.has("measured")) return calibrate_measured(arguments);
  if (arguments.has("residuals")) return calibrate_residuals(arguments);
  if (arguments.has("from-bench")) return calibrate_from_bench(arguments);
  if (arguments.has("from-log")) return calibrate_from_log(arguments);
  throw InputError{
      "calibrate",
      "a source of measurements: --measured PATH, --from-log FILE, --from-bench FILE, --residuals "
      "RUNS.csv or --device cuda",
      "none"};
}

/// Whether `text` is a valid date in the form YYYY-MM-DD.
bool is_date(const std::string& text) {
  constexpr std::string_view kForm = "dddd-dd-dd";
  if (text.size() != kForm.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == 'd' ? !is_digit : text[i] != kForm[i]) return false;
  }
  const auto number = [&](std::size_t at, std::size_t size) {
    return std::stoi(text.substr(at, size));
  };
  return std::chrono::year_month_day{std::chrono::year{number(0, 4)},
                                     std::chrono::month{static_cast<unsigned>(number(5, 2))},
                                     std::chrono::day{static_cast<unsigned>(number(8, 2))}}
      .ok();
}

std::string today() {
  const auto day = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date{day};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

}  // namespace

std::optional<std::string> checked_date(const Arguments& arguments) {
  auto date = arguments.value("date");
  if (date && !is_date(*date)) {
    throw InputError{"--date", "a day as YYYY-MM-DD", fmt::format("\"{}\"", excerpt(*date))};
  }
  return date;
}

std::string date_of(const Arguments& arguments) {
  return checked_date(arguments).value_or(today());
}

Command calibrate_command() {
  return {.name = "calibrate",
          .summary = "use your measurements instead of the models: kernel timings, start-up logs",
          .usage =
              "kvsim calibrate --measured DIR|FILE.csv -o DIR [options]\n"
              "kvsim calibrate --from-log FILE [SCENARIO] [-o OVERRIDES] [options]\n"
              "kvsim calibrate --from-bench FILE... SCENARIO [-o OVERRIDES] [options]\n"
              "kvsim calibrate --residuals TABLE.csv... -o DIR [options]\n"
              "kvsim calibrate --device cuda -o FILE",
          .examples =
              "kvsim calibrate --measured timings/ -o calibration/\n"
              "  kvsim validate measured timings/ --calibration calibration/\n"
              "  kvsim calibrate --from-log vllm.log scenario.json -o measured.json",
          .options =
              {{"measured", 0, "PATH", false,
                "kernel timings: a CSV file, or a folder of them (docs/measured-data.md)"},
               {"from-log", 0, "FILE", false, "a vLLM start-up log (V0 or V1)"},
               {"from-bench", 0, "FILE", true,
                "results of a service's benchmark: vllm bench serve, SGLang, AIPerf, "
                "GuideLLM, inference-perf (docs/howto/calibrate.md)"},
               {"device", 0, "WHERE", false, "cuda: time kvsim's kernels on the first GPU"},
               {"residuals", 0, "TABLE.csv", true,
                "measured runs: intervals by kind of metric, from the errors of `kvsim validate "
                "served` or `published` (the columns of the table decide)"},
               {"threads", 'j', "N", false, "for services: threads (0: all of the machine)"},
               {"out", 'o', "PATH", false,
                "folder for calibration files, one per GPU and operator family; for a log or a "
                "benchmark: overrides to write, for a scenario's extends; for a device: the file"},
               {"op", 0, "OP", true, "for timings: only this operator family"},
               {"provenance", 0, "TEXT", false, "for timings: their source"},
               {"date", 0, "DATE", false, "date of the fit, YYYY-MM-DD (today)"},
               {"quiet", 'q', "", false, "no table, no progress"},
               {"json", 0, "", false,
                "print JSON (schema kvsim.calibrate/1, kvsim.calibrate-log/1, "
                "kvsim.calibrate-bench/1)"}},
          .run = run_calibrate};
}

}  // namespace kvsim
