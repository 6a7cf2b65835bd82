#include "sim/cli/command_calibrate.hpp"

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"

namespace kvsim {
namespace {

int run_calibrate(const Arguments& arguments) {
  if (arguments.has("measured")) return calibrate_measured(arguments);
  throw InputError{"calibrate", "--measured PATH, what to fit to", "none"};
}

}  // namespace

Command calibrate_command() {
  return {.name = "calibrate",
          .summary = "fit the cost model's coefficients to measurements",
          .usage = "kvsim calibrate --measured DIR|FILE.csv -o DIR [options]",
          .examples =
              "kvsim calibrate --measured timings/ -o calibration/\n"
              "  kvsim validate measured timings/ --calibration calibration/",
          .options = {{"measured", 0, "PATH", false,
                       "kernel timings: a CSV file, or a folder of them (docs/measured-data.md)"},
                      {"out", 'o', "DIR", false,
                       "folder for the calibration files, one a GPU and operator family"},
                      {"op", 0, "OP", true, "only this operator family"},
                      {"provenance", 0, "TEXT", false, "where the timings come from"},
                      {"date", 0, "DATE", false, "date of the fit, YYYY-MM-DD (today)"},
                      {"quiet", 'q', "", false, "no table, no progress"},
                      {"json", 0, "", false, "print the calibrations as JSON"}},
          .run = run_calibrate};
}

}  // namespace kvsim
