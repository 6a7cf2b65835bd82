// kvsim schema: the JSON Schema of scenario files, for editors and other programs.

#include <nlohmann/json.hpp>

#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/scenario/fields/schema.hpp"

namespace kvsim {
namespace {

int run_schema(const Arguments& arguments) {
  arguments.expect_words(0, 0, "nothing");
  write_out(to_file_text(scenario_schema()));
  return kDone;
}

}  // namespace

Command schema_command() {
  return {.name = "schema",
          .summary = "print the JSON Schema of scenario files",
          .usage = "kvsim schema",
          .examples = "kvsim schema > scenario.schema.json",
          .options = {},
          .run = run_schema};
}

}  // namespace kvsim
