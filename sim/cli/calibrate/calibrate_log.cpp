#include "sim/cli/calibrate/calibrate_log.hpp"

#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/text_file.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/read/log_start.hpp"
#include "sim/scenario/read/read_scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string gib(const std::optional<Bytes>& n) {
  if (!n) return "-";
  return fmt::format("{:.2f}", static_cast<double>(n->count()) / (1024.0 * 1024.0 * 1024.0));
}
std::string count(const std::optional<std::int64_t>& n) { return n ? with_commas(*n) : "-"; }

std::string table_of(const VllmLog& log, const std::optional<EngineStartup>& before,
                     const std::optional<EngineStartup>& after, std::size_t width) {
  std::vector<Table::Column> columns{{"GiB of one GPU", Table::Align::kLeft}, {"log"}};
  if (before) columns.insert(columns.end(), {{"predicted"}, {"with the log's"}});
  Table table{columns};
  const auto row = [&](const char* name, const std::optional<Bytes>& said,
                       Bytes EngineStartup::*term) {
    std::vector<std::string> cells{name, gib(said)};
    if (before) {
      cells.push_back(gib((*before).*term));
      cells.push_back(gib((*after).*term));
    }
    table.add_row(cells);
  };
  row("memory of the GPU", log.total, &EngineStartup::total);
  row("weights", log.weights, &EngineStartup::weights);
  row("non-torch", log.non_torch, &EngineStartup::non_torch);
  row("activation peak", log.activation, &EngineStartup::activation);
  row("CUDA graphs", log.graphs, &EngineStartup::graphs);
  row("KV cache", log.kv_cache, &EngineStartup::kv_cache);
  std::vector<std::string> tokens{"tokens", count(log.tokens)};
  if (before) tokens.insert(tokens.end(), {count(before->tokens), count(after->tokens)});
  table.add_row(tokens);
  return table.str(width);
}

/// Derived values and contradictions are comments in the file.
std::string file_text(const ordered_json& overrides, const VllmLog& log) {
  std::string out;
  for (const auto* lines : {&log.notes, &log.warnings}) {
    for (const std::string& line : *lines) out += fmt::format("// {}\n", line);
  }
  return out + to_file_text(overrides);
}

}  // namespace

int calibrate_from_log(const Arguments& arguments) {
  arguments.expect_words(0, 1, "SCENARIO");
  const fs::path path{*arguments.value("from-log")};
  std::optional<ScenarioSource> scenario;
  if (!arguments.words().empty()) {
    const std::string file = arguments.words().front();
    scenario = {.name = file, .read = [file](const std::vector<Override>& overrides) {
                  return read_scenario(file, overrides);
                }};
  }
  const LogStart start = start_of_log(read_text_file(path, kLongestLog), path.string(), scenario);
  for (const std::string& warning : start.log.warnings) {
    write_err(clean_text(fmt::format("kvsim: {}: {}", path.string(), warning)) + "\n");
  }
  if (const auto out = arguments.value("out")) {
    write_file_atomically(*out, file_text(start.overrides, start.log));
  }
  if (arguments.has("json")) {
    write_out(to_file_text(log_start_json(start)));
  } else if (!arguments.has("quiet")) {
    std::string text = table_of(start.said, start.before, start.after, terminal_width());
    for (const std::string& note : start.log.notes) text += fmt::format("note: {}\n", note);
    if (const auto out = arguments.value("out")) {
      text += fmt::format("wrote {}: name it in \"extends\" of a scenario\n", *out);
    }
    write_out(text);
  }
  return kDone;
}

}  // namespace kvsim
