#include "sim/report/batch/startup_report.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string gib(Bytes bytes) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return fmt::format("{:.2f}", static_cast<double>(bytes.count()) / kGiB);
}

}  // namespace

ordered_json settings_json(const EngineSettings& settings) {
  ordered_json out{{"name", settings.engine},
                   {"version", settings.version},
                   {"usage", settings.usage},
                   {"flags", settings.flags()},
                   {"settings", ordered_json::array()}};
  for (const EngineSetting& s : settings.settings) {
    out["settings"].push_back({{"key", s.key},
                               {"option", s.option},
                               {"value", s.value},
                               {"by_user", s.by_user},
                               {"from", s.origin},
                               {"source", s.source}});
  }
  return out;
}

std::string settings_text(const EngineSettings& settings, std::size_t width) {
  std::string out =
      paragraph(fmt::format("{} {}{}: {}", settings.engine, settings.version,
                            settings.usage == word_of(EngineUsage::kServer)
                                ? ""
                                : fmt::format(", {}", display_name(*usage_of(settings.usage))),
                            settings.flags()),
                width);
  // One line per source of values.
  std::vector<std::pair<std::string, std::vector<std::string>>> origins;
  for (const EngineSetting& s : settings.settings) {
    const std::string name = s.option.empty() ? s.key : s.option;
    const auto found = std::find_if(origins.begin(), origins.end(),
                                    [&](const auto& one) { return one.first == s.origin; });
    if (found == origins.end()) {
      origins.push_back({s.origin, {name}});
    } else {
      found->second.push_back(name);
    }
  }
  for (const auto& [origin, names] : origins) {
    out += fmt::format("- {}",
                       paragraph(fmt::format("{}: {}", fmt::join(names, ", "), origin), width, 2));
  }
  return out;
}

nlohmann::ordered_json startup_json(const EngineStartup& s) {
  ordered_json out{{"total_bytes", s.total.count()},
                   {"memory_fraction", s.fraction},
                   {"fraction_of", word_of(s.fraction_of)},
                   {"usable_bytes", s.usable.count()},
                   {"weights_bytes", s.weights.count()},
                   {"non_torch_bytes", s.non_torch.count()},
                   {"activation_bytes", s.activation.count()},
                   {"layer_activation_bytes", s.layer_activation.count()},
                   {"sampling_activation_bytes", s.sampling_activation.count()},
                   {"vision_activation_bytes", s.vision_activation.count()},
                   {"vision_outputs_bytes", s.vision_outputs.count()},
                   {"graphs_bytes", s.graphs.count()},
                   {"counts_graphs", s.counts_graphs || s.fraction_of == FractionOf::kFree},
                   {"kv_cache_bytes", s.kv_cache.count()},
                   {"missing_bytes", s.missing.count()},
                   {"lacking_bytes", s.shortage().count()},
                   {"blocks", s.blocks},
                   {"tokens", s.tokens},
                   {"max_model_len", s.max_model_len},
                   {"max_concurrency", s.max_concurrency},
                   {"serves", s.serves()}};
  if (s.draft_cache > Bytes{}) out["draft_cache_bytes"] = s.draft_cache.count();
  if (s.groups) {
    out["block_bytes"] = s.groups->block_id.count();
    out["request_blocks"] = s.groups->request_blocks;
    out["groups"] = ordered_json::array();
    for (const VllmGroup& group : s.groups->groups) {
      out["groups"].push_back({{"kind", group.kind},
                               {"layers", group.layers},
                               {"padding", group.padding},
                               {"block_tokens", s.groups->tokens_of(group)},
                               {"request_blocks", group.request_blocks}});
    }
  }
  if (s.pools) {
    out["pools"] = ordered_json::array();
    for (const EnginePool& pool : s.pools->pools) {
      out["pools"].push_back({{"kind", pool.kind},
                              {"layers", pool.layers},
                              {pool.holds_states ? "slots" : "tokens", pool.capacity},
                              {"bytes", pool.bytes().count()},
                              {"request", pool.request(s.max_model_len, s.pools->slots)}});
    }
  }
  if (s.settings) out["engine"] = settings_json(*s.settings);
  return out;
}

ordered_json log_start_json(const LogStart& start) {
  ordered_json out{{"schema", "kvsim.calibrate-log/1"}, {"overrides", start.overrides}};
  if (start.log.kv_cache) out["log_kv_cache_bytes"] = start.log.kv_cache->count();
  if (start.log.tokens) out["log_tokens"] = *start.log.tokens;
  if (start.before) {
    out["predicted"] = startup_json(*start.before);
    out["with_overrides"] = startup_json(*start.after);
  }
  out["notes"] = start.log.notes;
  out["warnings"] = start.log.warnings;
  return out;
}

std::string startup_text(const EngineStartup& s, std::size_t width) {
  Table table{{{"engine start, one GPU", Table::Align::kLeft}, {"GiB"}}};
  const bool of_all = s.fraction_of == FractionOf::kAll;
  table.add_row({of_all ? "memory fraction of the GPU" : "memory of the GPU", gib(s.usable)});
  table.add_row({"weights", gib(s.weights)});
  table.add_row({"non-torch", gib(s.non_torch)});
  table.add_row({"activation peak", gib(s.activation)});
  table.add_row({"KV cache", gib(s.kv_cache)});
  table.add_row(
      {of_all && !s.counts_graphs ? "CUDA graphs, beyond these" : "CUDA graphs", gib(s.graphs)});
  std::string out = fmt::format("\n{}", table.str(width));
  if (s.settings) out += settings_text(*s.settings, width);
  out += fmt::format("GPU KV cache size: {} tokens ({} blocks)\n", with_commas(s.tokens),
                     with_commas(s.blocks));
  if (s.groups) {
    for (const VllmGroup& group : s.groups->groups) {
      out += fmt::format("- {} {} layers, blocks of {} tokens: {} per request\n", group.layers,
                         group.kind, with_commas(s.groups->tokens_of(group)),
                         with_commas(group.request_blocks));
    }
  }
  if (s.pools) {
    for (const EnginePool& pool : s.pools->pools) {
      out += fmt::format("- {} {} layers: {} {}, {} per request\n", pool.layers, pool.kind,
                         with_commas(pool.capacity), pool.holds_states ? "slots" : "tokens",
                         with_commas(pool.request(s.max_model_len, s.pools->slots)));
    }
  }
  if (s.missing > Bytes{}) {
    out += fmt::format("It does not start: {} GiB are missing before any cache.\n", gib(s.missing));
  } else if (s.shortage() > Bytes{}) {
    out += fmt::format(
        "It does not start: the pool leaves {} GiB less than activations and CUDA graphs need.\n",
        gib(s.shortage()));
  } else if (!s.serves()) {
    out += fmt::format("It does not start: a sequence of {} tokens does not fit the cache.\n",
                       with_commas(s.max_model_len));
  } else {
    out += fmt::format("Maximum concurrency for {} tokens per request: {:.2f}x\n",
                       with_commas(s.max_model_len), s.max_concurrency);
    if (const std::string limit = state_limit_text(s); !limit.empty()) {
      out += paragraph(fmt::format("Highest: {}", limit), width);
    }
  }
  return out;
}

}  // namespace kvsim
