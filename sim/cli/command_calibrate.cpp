// kvsim calibrate: measurements that stand in for what the models give. Each source of
// measurements has a file of its own: calibrate_log.cpp.

#include "models/units/error.hpp"
#include "sim/cli/calibrate_log.hpp"
#include "sim/cli/command.hpp"

namespace kvsim {
namespace {

int run_calibrate(const Arguments& arguments) {
  if (arguments.has("from-log")) return calibrate_from_log(arguments);
  throw InputError{"calibrate", "a source of measurements: --from-log FILE", "none"};
}

}  // namespace

Command calibrate_command() {
  return {.name = "calibrate",
          .summary = "take a vLLM start-up log's figures for a scenario's own",
          .usage = "kvsim calibrate --from-log FILE [SCENARIO] [-o OVERRIDES] [options]",
          .examples = "kvsim calibrate --from-log vllm.log scenario.json -o measured.json",
          .options = {{"from-log", 0, "FILE", false, "a vLLM start-up log (V0 or V1)"},
                      {"out", 'o', "FILE", false, "overrides to write, for a scenario's extends"},
                      {"quiet", 'q', "", false, "no table"},
                      {"json", 0, "", false, "print JSON (schema kvsim.calibrate-log/1)"}},
          .run = run_calibrate};
}

}  // namespace kvsim
