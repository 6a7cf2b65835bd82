#include "sim/cli/calibrate/calibrate_log.hpp"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/memory/vllm_log.hpp"
#include "sim/memory/vllm_log_pool.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A start's lines come first; a log of months of requests need not be read whole into memory.
constexpr std::size_t kLongestLog = 256U << 20U;

std::string exact(Bytes n) { return fmt::format("{} B", n.count()); }

/// What a scenario extends to take the log's figures for its own.
ordered_json overrides_of(const VllmLog& log) {
  ordered_json engine = ordered_json::object();
  const auto put = [&](const char* key, const std::optional<Bytes>& n) {
    if (is_stated(n)) engine[key] = exact(*n);
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

struct ScenarioStart {
  EngineStartup startup;
  std::int64_t block_tokens = 1;
};

/// The engine's start in the scenario's first point.
ScenarioStart start_of(const fs::path& scenario, const std::vector<Override>& overrides) {
  const Scenario read = read_scenario(scenario, overrides);
  if (read.points.empty()) {
    throw InputError{fmt::format("{}: expected a scenario with a point", scenario.string())};
  }
  const StaticSpec& spec = read.points.front().spec;
  const StaticResult result = run_static(spec);
  if (!result.startup) {
    throw InputError{
        fmt::format("{}: /stack: expected one with a paged cache, such as \"vllm\", "
                    "got \"{}\"",
                    scenario.string(), spec.stack->name)};
  }
  return {*result.startup,
          with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel})
              .block_tokens};
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
  return table.str(width);
}

/// A note on what is missing to predict the pool without a scenario, or nothing.
std::optional<std::string> pool_lacks(const VllmLog& log) {
  const std::vector<std::string> unstated = unstated_terms(log);
  if (unstated.empty() || !(is_stated(log.kv_cache) || log.tokens || log.blocks)) {
    return std::nullopt;
  }
  return fmt::format(
      "the log's KV cache is not in the overrides: the log does not state {}; name the SCENARIO of "
      "its start, whose GPU, model and stack give them",
      fmt::join(unstated, ", "));
}

/// What remains between the log's KV cache and a start with all that the log states.
std::optional<std::string> pool_misses(const VllmLog& log, const EngineStartup& after) {
  // Five figures, each to 0.01 GiB.
  constexpr std::int64_t kRoundings = (std::int64_t{5} << 30) / 100;
  if (!is_stated(log.kv_cache)) return std::nullopt;
  if (std::abs((after.kv_cache - *log.kv_cache).count()) <= kRoundings) return std::nullopt;
  return fmt::format("with the log's figures the KV cache is {} GiB, the log's own is {} GiB",
                     gib(after.kv_cache), gib(log.kv_cache));
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
  const VllmLog said = read_vllm_log(read_text_file(path, kLongestLog), path.string());
  VllmLog log = said;
  std::optional<EngineStartup> before, after;
  if (!arguments.words().empty()) {
    const fs::path scenario{arguments.words().front()};
    before = start_of(scenario, {}).startup;
    const ScenarioStart stated = start_of(scenario, as_overrides(overrides_of(said)));
    complete_from_pool(log, *before, stated.startup, stated.block_tokens, path.string(),
                       scenario.string());
    after = start_of(scenario, as_overrides(overrides_of(log))).startup;
    if (auto misses = pool_misses(log, *after)) log.warnings.push_back(*std::move(misses));
  } else if (auto lacks = pool_lacks(log)) {
    log.warnings.push_back(*std::move(lacks));
  }
  const ordered_json overrides = overrides_of(log);
  for (const std::string& warning : log.warnings) {
    write_err(clean_text(fmt::format("kvsim: {}: {}", path.string(), warning)) + "\n");
  }
  if (const auto out = arguments.value("out")) {
    write_file_atomically(*out, file_text(overrides, log));
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
    out["warnings"] = log.warnings;
    write_out(to_file_text(out));
  } else if (!arguments.has("quiet")) {
    std::string text = table_of(said, before, after, terminal_width());
    for (const std::string& note : log.notes) text += fmt::format("note: {}\n", note);
    if (const auto out = arguments.value("out")) {
      text += fmt::format("wrote {}: \"extends\" it in a scenario\n", *out);
    }
    write_out(text);
  }
  return kDone;
}

}  // namespace kvsim
