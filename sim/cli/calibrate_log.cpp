#include "sim/cli/calibrate_log.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/memory/vllm_log.hpp"
#include "sim/report/atomic_file.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/startup_report.hpp"
#include "sim/report/table.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/serve/static_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  if (!in) throw InputError{fmt::format("{}: cannot be read", path.string())};
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::string exact(Bytes n) { return fmt::format("{} B", n.count()); }

/// What a scenario extends to take the log's figures for its own.
ordered_json overrides_of(const VllmLog& log) {
  ordered_json engine = ordered_json::object();
  const auto put = [&](const char* key, const std::optional<Bytes>& n) {
    // A negative figure is what another process freed meanwhile; it overrides nothing.
    if (n && *n >= Bytes{}) engine[key] = exact(*n);
  };
  if (log.max_model_len) engine["max_model_len"] = *log.max_model_len;
  if (log.memory_fraction) engine["memory_fraction"] = *log.memory_fraction;
  put("weights", log.weights);
  put("non_torch", log.non_torch);
  put("activation", log.activation);
  put("graphs", log.graphs);
  ordered_json out = ordered_json::object();
  if (log.total) out["memory"] = {{"usable_hbm", exact(*log.total)}};
  out["engine"] = engine;
  return out;
}

/// The engine's start in the scenario's first point, as far as nothing else is asked.
EngineStartup startup_of(const fs::path& scenario, const std::vector<Override>& overrides) {
  const Scenario read = read_scenario(scenario, overrides);
  if (read.points.empty()) {
    throw InputError{fmt::format("{}: expected a scenario with a point", scenario.string())};
  }
  const StaticResult result = run_static(read.points.front().spec);
  if (!result.startup) {
    throw InputError{
        fmt::format("{}: /stack: expected one with a paged cache, such as \"vllm\", "
                    "got \"{}\"",
                    scenario.string(), read.points.front().spec.stack->name)};
  }
  return *result.startup;
}

std::vector<Override> as_overrides(const ordered_json& file) {
  std::vector<Override> out;
  for (const auto& object : file.items()) {
    for (const auto& entry : object.value().items()) {
      out.push_back({fmt::format("/{}/{}", object.key(), entry.key()), entry.value().dump()});
    }
  }
  return out;
}

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
  std::string out = table.str(width);
  for (const std::string& note : log.notes) out += fmt::format("note: {}\n", note);
  return out;
}

}  // namespace

int calibrate_from_log(const Arguments& arguments) {
  arguments.expect_words(0, 1, "SCENARIO");
  const fs::path path{*arguments.value("from-log")};
  const VllmLog log = read_vllm_log(read_text(path), path.string());
  const ordered_json overrides = overrides_of(log);
  std::optional<EngineStartup> before, after;
  if (!arguments.words().empty()) {
    const fs::path scenario{arguments.words().front()};
    before = startup_of(scenario, {});
    after = startup_of(scenario, as_overrides(overrides));
  }
  if (const auto out = arguments.value("out")) {
    write_file_atomically(*out, to_file_text(overrides));
  }
  if (arguments.has("json")) {
    ordered_json out{{"schema", "kvsim.calibrate-log/1"}, {"overrides", overrides}};
    if (log.kv_cache) out["log_kv_cache_bytes"] = log.kv_cache->count();
    if (log.tokens) out["log_tokens"] = *log.tokens;
    if (before) {
      out["predicted"] = startup_json(*before);
      out["with_overrides"] = startup_json(*after);
    }
    out["notes"] = log.notes;
    write_out(to_file_text(out));
  } else if (!arguments.has("quiet")) {
    std::string text = table_of(log, before, after, terminal_width());
    if (const auto out = arguments.value("out")) {
      text += fmt::format("wrote {}: \"extends\" it in a scenario\n", *out);
    }
    write_out(text);
  }
  return kDone;
}

}  // namespace kvsim
