#include "sim/scenario/read/read_scenario.hpp"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "models/units/fingerprint.hpp"
#include "sim/scenario/fields/key_value.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "sim/scenario/fields/sweep_field.hpp"
#include "sim/scenario/points/points.hpp"
#include "sim/scenario/read/published.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string text_or(const Field& scenario, std::string_view key, std::string fallback) {
  const auto field = scenario.find(key);
  return field ? field->string() : std::move(fallback);
}

TraceSplit read_split(const Field& replay) {
  const auto field = replay.find("split");
  if (!field) return TraceSplit::kRecorded;
  const std::vector<std::string> words{kTraceSplits.begin(), kTraceSplits.end()};
  return *split_of(field->choice(words));
}

std::optional<std::vector<std::string>> read_figures(const Field& field) {
  if (field.raw().is_boolean()) {
    if (field.boolean()) return std::nullopt;
    return std::vector<std::string>{};
  }
  const auto known = figure_names();
  const std::vector<std::string> names{known.begin(), known.end()};
  std::vector<std::string> wanted;
  for (const Field& item : field.one_or_more()) wanted.push_back(item.choice(names));
  return wanted;
}

/// Rejects a key that the object named `object` does not have but exactly one of its members has:
/// /requests/rate, which is /requests/arrivals/rate.
void refuse_keys_of_members(const Field& field, std::string_view object) {
  if (!field.is_object()) return;
  const std::vector<std::string> known = scenario_key_names(object);
  for (const auto& [name, value] : field.members()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::vector<const ScenarioKey*> members;
    for (const ScenarioKey& member : scenario_object(object).keys) {
      if (member.type.kind != KeyType::Kind::kObject || member.values == KeyValues::kList) continue;
      for (const ScenarioKey& key : scenario_object(member.type.words).keys) {
        if (key.name == name && key.alias_of.empty()) members.push_back(&member);
      }
    }
    if (members.size() != 1) continue;
    std::string with;  // names that the member requires: {"kind": "poisson", "rate": …}
    for (const ScenarioKey& key : scenario_object(members.front()->type.words).keys) {
      const std::vector<std::string> words = names_of(key.type);
      if (key.name == name || key.default_text != "required" || words.empty()) continue;
      with += fmt::format(R"("{}": "{}", )", key.name, words.front());
    }
    value.fail(fmt::format(R"(unknown key; it is a key of "{0}": write "{0}": {{{1}"{2}": …}})",
                           members.front()->name, with, name));
  }
}

/// Checks a single file before it is merged with others.
void check_form(const Field& file, const fs::path& folder) {
  refuse_keys_of_members(file, "scenario");
  if (const auto requests = file.find("requests")) {
    for (const Field& one : requests->one_or_more()) refuse_keys_of_members(one, "requests");
  }
  if (const auto plan = file.find("plan")) refuse_keys_of_members(*plan, "plan");
  file.allow_only(scenario_key_names("scenario"));
  if (const auto schema = file.find("schema"); schema && schema->raw() != "kvsim.scenario/1") {
    schema->expected("\"kvsim.scenario/1\"");
  }
  for (const char* key : {"title", "description"}) (void)text_or(file, key, "");
  if (const auto kind = file.find("kind"))
    (void)kind->choice(std::vector<std::string>{"static", "serve"});
  if (const auto seed = file.find("seed")) (void)read_integer(*seed, "scenario", "seed");
  check_point_keys(file, folder);
  if (const auto points = file.find("points")) {
    for (const Field& point : points->items()) {
      point.allow_only(scenario_key_names("point"));
      check_point_keys(point, folder);
    }
  }
  if (const auto replay = file.find("replay")) {
    replay->allow_only(scenario_key_names("replay"));
    if (const auto trace = replay->find("trace")) (void)trace->string();
    if (const auto methods = replay->find("methods")) (void)read_replay_methods(*methods);
    for (const char* key : {"per_step", "per_head"}) {
      if (const auto flag = replay->find(key)) (void)flag->boolean();
    }
    (void)read_split(*replay);
    (void)read_sample_size(*replay);
  }
  if (const auto sweep = file.find("sweep")) (void)read_sweep(*sweep);
  if (const auto plan = file.find("plan")) (void)read_plan(*plan, folder);
  if (const auto published = file.find("published")) {
    for (const Field& entry : published->items()) check_published(entry);
  }
  if (const auto figures = file.find("figures")) (void)read_figures(*figures);
}

void check_file(const Field& file) { check_form(file, fs::path{file.file()}.parent_path()); }

/// Keys of the other kind are errors, wherever they are set.
void check_kind(const Field& root, bool serves) {
  const auto check = [&](const Field& keys) {
    for (const std::string_view key : keys_of_kind(!serves)) {
      const auto field = keys.find(key);
      if (!field) continue;
      field->fail(fmt::format("needs \"kind\": \"{}\", and this scenario is \"{}\"",
                              serves ? "static" : "serve", serves ? "serve" : "static"));
    }
  };
  check(root);
  if (const auto points = root.find("points")) {
    for (const Field& point : points->items()) check(point);
  }
}

ReplaySection read_replay(const Field& replay, const fs::path& folder,
                          const std::vector<ScenarioPoint>& points) {
  ReplaySection section;
  const Field trace = replay.at("trace");
  section.trace = (folder / trace.string()).lexically_normal();
  if (std::error_code status; !fs::is_regular_file(section.trace, status)) {
    trace.fail(fmt::format("no such file: {}", section.trace.string()));
  }
  if (const auto methods = replay.find("methods")) section.methods = read_replay_methods(*methods);
  if (section.methods.empty()) {
    // The distinct methods of the points, in their order.
    std::vector<ordered_json> seen;
    for (const ScenarioPoint& point : points) {
      ordered_json requested{point.keys.at("method"), point.keys.at("budget"),
                             point.keys.at("method_params")};
      if (std::find(seen.begin(), seen.end(), requested) != seen.end()) continue;
      seen.push_back(std::move(requested));
      section.methods.push_back(point.method);
    }
    if (section.methods.empty()) replay.fail("\"methods\" is missing and no point names one");
  }
  if (const auto flag = replay.find("per_step")) section.per_step = flag->boolean();
  if (const auto flag = replay.find("per_head")) section.per_head = flag->boolean();
  section.split = read_split(replay);
  section.sample = read_sample_size(replay);
  return section;
}

void read_all_published(const Field& root, bool overridden, Scenario& scenario) {
  const auto published = root.find("published");
  if (!published) return;
  for (const Field& entry : published->items()) {
    if (auto value = read_published(entry, scenario.points)) {
      scenario.published.push_back(std::move(*value));
    } else if (overridden) {
      scenario.notes.push_back(fmt::format("{}: matches no point after --set", entry.pointer()));
    } else {
      entry.find("where").value_or(entry).fail("picks no point of the scenario");
    }
  }
}

/// Returns the document in the order of the key table, without removed keys.
ordered_json echo_of(const json& document) {
  ordered_json echo = ordered_json::object();
  for (const std::string& key : scenario_key_names("scenario")) {
    if (document.contains(key) && !document[key].is_null()) echo[key] = document[key];
  }
  return echo;
}

}  // namespace

json scenario_document(const fs::path& file, const std::vector<Override>& overrides) {
  json document = merged_document(file, check_file);
  for (const Override& change : overrides) apply_override(document, change);
  return document;
}

json scenario_document_of(std::string_view text, const fs::path& file,
                          const std::vector<Override>& overrides) {
  json document = merged_document(Field::parse(text, file.string()), check_file);
  for (const Override& change : overrides) apply_override(document, change);
  return document;
}

void check_scenario_form(const json& document, const fs::path& file, const std::string& place) {
  check_form(Field::wrap(document, place), file.parent_path());
}

SampleSize read_sample_size(const Field& replay) {
  const KeyReader keys{replay, "replay"};
  const auto count = [&](std::string_view key) { return keys.integer(key).value_or(0); };
  return {.layers = static_cast<std::int32_t>(count("layers")),
          .heads = static_cast<std::int32_t>(count("heads")),
          .steps = count("steps")};
}

Scenario read_scenario(const fs::path& file, const std::vector<Override>& overrides) {
  const json document = scenario_document(file, overrides);
  const std::string place =
      file.lexically_normal().string() + (overrides.empty() ? "" : " (after --set)");
  return scenario_of(document, file, place, !overrides.empty());
}

Scenario scenario_of(const json& document, const fs::path& file, const std::string& place,
                     bool changed) {
  const fs::path folder = file.parent_path();
  const Field root = Field::wrap(document, place);
  if (changed) check_form(root, folder);

  Scenario scenario;
  scenario.name = file.stem().string();
  scenario.title = text_or(root, "title", scenario.name);
  scenario.description = text_or(root, "description", "");
  scenario.kind = text_or(root, "kind", "static");
  if (const auto seed = root.find("seed")) {
    scenario.seed = static_cast<std::uint64_t>(read_integer(*seed, "scenario", "seed"));
  }
  InlineDefinitions own;
  const bool serves = scenario.kind == "serve";
  check_kind(root, serves);
  if (const auto plan = root.find("plan")) {
    scenario.plan = read_plan(*plan, folder);
    for (const PlanQuestion question : scenario.plan->questions) {
      if (is_of_services(question) == serves) continue;
      plan->at("questions")
          .fail(fmt::format("{} applies only to \"kind\": \"{}\", and this scenario is \"{}\"",
                            name_of(question), serves ? "static" : "serve", scenario.kind));
    }
    if (scenario.plan->layouts && !serves) {
      plan->at("layouts").fail("applies only to services (\"kind\": \"serve\")");
    }
  }
  const bool finds_prompts =
      scenario.plan &&
      std::all_of(scenario.plan->questions.begin(), scenario.plan->questions.end(),
                  [](PlanQuestion question) { return question == PlanQuestion::kLongestContext; });
  scenario.points = read_points(root,
                                {.folder = folder,
                                 .serves = serves,
                                 .seed = scenario.seed,
                                 .finds_prompts = finds_prompts,
                                 .plans = scenario.plan.has_value(),
                                 .layouts = scenario.plan ? scenario.plan->layouts : std::nullopt},
                                own);
  scenario.own_models = std::move(own.models);
  scenario.own_gpus = std::move(own.gpus);
  scenario.own_calibrations = std::move(own.calibrations);
  scenario.notes = std::move(own.notes);
  if (const auto replay = root.find("replay")) {
    scenario.replay = read_replay(*replay, folder, scenario.points);
  }
  read_all_published(root, changed, scenario);
  if (const auto figures = root.find("figures")) scenario.figures = read_figures(*figures);
  scenario.echo = echo_of(document);
  scenario.hash = fingerprint(json(scenario.echo).dump());
  return scenario;
}

}  // namespace kvsim
