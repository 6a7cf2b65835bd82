#include "validation/served/served_mapping.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "validation/served/served_text.hpp"

namespace kvsim {
namespace {

/// Whether all settings that determine times and memory are stated. Unstated settings in the table
/// may be irrelevant, such as a seed or a form factor.
bool is_complete(const ServedRun& run, const MappedRun& mapped) {
  // "default": the engine's default, determined by its release.
  constexpr std::array<std::string_view, 7> kHarmless{
      "seed", "form factor", "commit", "client tool", "tokenizer", "date", "default"};
  std::string_view rest = run.not_stated;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(';'), rest.size());
    const std::string_view item = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool harmless = std::any_of(
        kHarmless.begin(), kHarmless.end(),
        [&](std::string_view word) { return item.find(word) != std::string_view::npos; });
    if (!harmless && item.find_first_not_of(' ') != std::string_view::npos) return false;
  }
  // The spread of lengths around a stated mean is a shape, not a setting.
  const auto& lengths = mapped.workload.assumed;
  const bool stated = std::all_of(lengths.begin(), lengths.end(), [](const std::string& text) {
    return text.starts_with(kSpreadRemark);
  });
  return mapped.settings.assumed.empty() && stated;
}

}  // namespace

MappedRun map_served_run(const ServedRun& run, const ServedFolders& folders) {
  MappedRun out;
  try {
    if (run.note.find("FLAG weights_do_not_fit") != std::string::npos) {
      throw NotExpressed{"the table flags the run: its weights do not fit"};
    }
    if (!run.copy_of.empty()) {
      throw NotExpressed{
          "its values are those of a run of another machine, model or engine: one is a copy"};
    }
    const ServedEngine* engine = find_served_engine(run.engine);
    out.client = &find_served_client(run.workload, run.note, run.source,
                                     engine == nullptr ? std::string_view{} : engine->name);
    out.settings = served_settings(run, *out.client);
    out.workload = served_workload(run, *out.client, out.settings, folders);
  } catch (const NotExpressed& missing) {
    out.refused = missing.reason;
    return out;
  }
  out.scenario = {{"kind", "serve"}, {"title", run.id}};
  for (const auto& [key, value] : out.settings.keys.items()) out.scenario[key] = value;
  out.scenario["requests"] = out.workload.requests;
  out.complete = is_complete(run, out);
  return out;
}

}  // namespace kvsim
