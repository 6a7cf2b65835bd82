#include "validation/served/served_tables.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "models/json/embedded.hpp"
#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "validation/served/served_text.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> served_tables();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

Field table_of(std::string_view file) {
  const auto files = embedded::served_tables();
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name == file; });
  KVSIM_CHECK(found != files.end(), "no table {}", file);
  return Field::parse(found->text, fmt::format("validation/data/{}.json", file));
}

std::vector<std::string> strings_of(const Field& field) {
  std::vector<std::string> out;
  for (const Field& word : field.items()) out.push_back(word.string());
  return out;
}

EngineVersion version_of(const Field& field, std::string_view text) {
  const auto version = parse_engine_version(text);
  if (!version) field.expected("a version such as \"0.8\"");
  return *version;
}

OptionUse option_use(const Field& type) {
  static const std::vector<std::string> words{"count",  "share", "number",
                                              "switch", "not",   "choice"};
  constexpr std::array kUses{OptionUse::kCount,  OptionUse::kShare, OptionUse::kNumber,
                             OptionUse::kSwitch, OptionUse::kNot,   OptionUse::kChoice};
  const std::string word = type.choice(words);
  return kUses[static_cast<std::size_t>(std::find(words.begin(), words.end(), word) -
                                        words.begin())];
}

OptionRule read_option(const Field& field) {
  field.allow_only({"names", "key", "type", "words", "elsewhere", "no_effect", "unmodelled",
                    "refused", "unless", "from", "from_source", "before", "speculation"});
  OptionRule rule{.names = strings_of(field.at("names"))};
  if (const auto speculation = field.find("speculation")) {
    if (!speculation->boolean()) speculation->expected("true");
    rule.use = OptionUse::kSpeculation;
    return rule;
  }
  if (const auto key = field.find("key")) {
    rule.key = key->string();
    rule.use = option_use(field.at("type"));
    if (const auto words = field.find("words")) {
      for (const auto& [name, word] : words->members()) rule.words[name] = word.string();
    }
    if (const auto from = field.find("from")) rule.from = version_of(*from, from->string());
    if (const auto to = field.find("before")) rule.before = version_of(*to, to->string());
    return rule;
  }
  struct Reason {
    std::string_view key;
    OptionUse use;
  };
  for (const Reason reason :
       {Reason{"elsewhere", OptionUse::kElsewhere}, Reason{"no_effect", OptionUse::kNoEffect},
        Reason{"unmodelled", OptionUse::kUnmodelled}, Reason{"refused", OptionUse::kRefused}}) {
    if (const auto given = field.find(reason.key)) {
      rule.use = reason.use;
      rule.reason = given->string();
    }
  }
  if (const auto unless = field.find("unless")) rule.unless = unless->string();
  return rule;
}

ServedEngine read_engine(const Field& field) {
  field.allow_only(
      {"name", "words", "stacks", "releases", "releases_source", "model_samples_from", "options"});
  ServedEngine out{.name = field.at("name").string(), .words = strings_of(field.at("words"))};
  for (const Field& item : field.at("stacks").items()) {
    item.allow_only({"stack", "before"});
    ServedEngine::StackOf stack{.stack = item.at("stack").string()};
    if (const auto before = item.find("before")) {
      stack.before = version_of(*before, before->string());
    }
    out.stacks.push_back(std::move(stack));
  }
  for (const auto& [version, date] : field.at("releases").members()) {
    const auto when = parse_date(date.string());
    if (!when) date.expected("a month such as \"2025-04\"");
    out.releases.push_back({.version = version_of(date, version), .date = *when});
  }
  std::sort(out.releases.begin(), out.releases.end(),
            [](const EngineRelease& a, const EngineRelease& b) {
              return std::pair{a.date, a.version} < std::pair{b.date, b.version};
            });
  if (const auto from = field.find("model_samples_from")) {
    out.model_samples_from = version_of(*from, from->string());
  }
  for (const Field& option : field.at("options").items()) {
    out.options.push_back(read_option(option));
  }
  return out;
}

ServedClient read_client(const Field& field) {
  field.allow_only({"name",
                    "words",
                    "sources",
                    "engine",
                    "comes_with_engine",
                    "source",
                    "window",
                    "declares",
                    "constant_gaps",
                    "in_process",
                    "engine_options",
                    "engine_usages",
                    "engine_versions",
                    "step_time_per_further_gpu",
                    "counts",
                    "tpot_of_iterations",
                    "times_role",
                    "ignores_eos",
                    "repeats_prompts",
                    "full_engine",
                    "fp8_recipe",
                    "requests_per_user",
                    "sampling",
                    "server_samples_from",
                    "send_time",
                    "turn_time",
                    "time_out"});
  static const std::vector<std::string> windows{"all", "steady", "queued"};
  static const std::vector<std::string> declared{"output", "cap"};
  static const std::vector<std::string> gaps{"exponential"};
  static const std::vector<std::string> sampling{"greedy", "server", "cutoff"};
  ServedClient out{.name = field.at("name").string(),
                   .words = strings_of(field.at("words")),
                   .source = field.at("source").string()};
  if (const auto sources = field.find("sources")) out.sources = strings_of(*sources);
  if (const auto engine = field.find("engine")) out.engine = engine->string();
  const auto window = std::find(windows.begin(), windows.end(), field.at("window").choice(windows));
  out.window = static_cast<MeasureWindow>(window - windows.begin());
  out.declares_output = field.at("declares").choice(declared) == "output";
  if (const auto gap = field.find("constant_gaps")) {
    out.exponential_constant = gap->choice(gaps) == "exponential";
  }
  if (const auto given = field.find("sampling")) {
    const auto word = std::find(sampling.begin(), sampling.end(), given->choice(sampling));
    out.sampling = static_cast<ClientSampling>(word - sampling.begin());
  }
  if (const auto from = field.find("server_samples_from")) {
    out.server_samples_from = version_of(*from, from->string());
  }
  const auto flag = [&](std::string_view key) {
    const auto given = field.find(key);
    return given && given->boolean();
  };
  out.comes_with_engine = flag("comes_with_engine");
  out.in_process = flag("in_process");
  if (const auto options = field.find("engine_options")) {
    for (const auto& [engine, of] : options->members()) out.engine_options[engine] = of.string();
  }
  if (const auto usages = field.find("engine_usages")) {
    for (const auto& [engine, of] : usages->members()) out.engine_usages[engine] = of.string();
  }
  if (const auto versions = field.find("engine_versions")) {
    for (const auto& [engine, of] : versions->members()) {
      out.engine_versions[engine] = version_of(of, of.string());
    }
  }
  if (const auto counts = field.find("counts")) {
    for (const Field& item : counts->items()) {
      item.allow_only({"workload", "gpu", "requests"});
      ServedCount& count = out.counts.emplace_back();
      if (const auto word = item.find("workload")) count.workload = word->string();
      if (const auto word = item.find("gpu")) count.gpu = word->string();
      count.requests = item.at("requests").integer(1, 1'000'000);
    }
  }
  out.tpot_of_iterations = flag("tpot_of_iterations");
  out.times_role = flag("times_role");
  out.ignores_eos = flag("ignores_eos");
  out.repeats_prompts = flag("repeats_prompts");
  out.full_engine = flag("full_engine");
  out.fp8_recipe = flag("fp8_recipe");
  if (const auto n = field.find("requests_per_user")) out.requests_per_user = n->integer(1, 1000);
  if (const auto time = field.find("step_time_per_further_gpu")) {
    out.step_time_per_further_gpu = time->duration();
  }
  if (const auto time = field.find("send_time")) out.send_time = time->duration();
  if (const auto time = field.find("turn_time")) out.turn_time = time->duration();
  if (const auto limit = field.find("time_out")) out.time_out = limit->duration();
  return out;
}

ServedLengths read_set(const Field& field) {
  field.allow_only({"words", "file", "bounds", "prompt_tokens", "prompt_p99", "prompt_twentieths",
                    "prompts_of", "output_tokens", "output_p99", "outputs_as_prompts", "cap",
                    "source"});
  constexpr std::int64_t kMax = 1 << 24;
  ServedLengths out{.words = strings_of(field.at("words")), .source = field.at("source").string()};
  if (const auto file = field.find("file")) out.file = file->string();
  const auto length = [&](std::string_view key, double& value) {
    if (const auto given = field.find(key)) value = given->number(1, static_cast<double>(kMax));
  };
  length("prompt_tokens", out.prompt_tokens);
  length("prompt_p99", out.prompt_p99);
  length("output_tokens", out.output_tokens);
  length("output_p99", out.output_p99);
  if (const auto same = field.find("outputs_as_prompts")) out.outputs_as_prompts = same->boolean();
  if (const auto parts = field.find("prompt_twentieths")) {
    for (const Field& part : parts->items()) {
      out.prompt_twentieths.push_back(part.number(1, static_cast<double>(kMax)));
    }
    KVSIM_CHECK(out.prompt_twentieths.size() == 20, "not 20 shares of prompts");
  }
  if (const auto cap = field.find("cap")) out.cap = cap->integer(1, kMax);
  if (const auto bounds = field.find("bounds")) {
    for (const auto& [key, bound] : bounds->members()) out.bounds[key] = bound.integer(1, kMax);
  }
  return out;
}

struct Tables {
  std::vector<ServedEngine> engines;
  std::vector<ServedClient> clients;
  std::vector<ServedLengths> lengths;
  std::vector<ServedReason> reasons;
  std::vector<ServedAcceptance> acceptances;
  std::vector<std::string> cutoff_models;
  double p99_per_mean = 1, stopping_share = 0;
};

Tables read_tables() {
  Tables out;
  const Field engines = table_of("served-engines");
  engines.allow_only({"schema", "engines", "acceptances"});
  for (const Field& item : engines.at("engines").items()) out.engines.push_back(read_engine(item));
  for (const Field& item : engines.at("acceptances").items()) {
    item.allow_only({"draft", "acceptance", "source"});
    out.acceptances.push_back({.draft = item.at("draft").string(),
                               .acceptance = item.at("acceptance").number(0, 1),
                               .source = item.at("source").string()});
  }
  const Field clients = table_of("served-clients");
  clients.allow_only({"schema", "clients", "cutoff_models", "cutoff_models_source", "lengths",
                      "generated_p99_per_mean", "stopping_share", "stopping_share_source"});
  out.stopping_share = clients.at("stopping_share").number(0, 0.5);
  out.cutoff_models = strings_of(clients.at("cutoff_models"));
  for (const Field& item : clients.at("clients").items()) out.clients.push_back(read_client(item));
  for (const Field& item : clients.at("lengths").items()) out.lengths.push_back(read_set(item));
  std::size_t i = 0;
  for (const Field& item : clients.at("lengths").items()) {
    if (const auto of = item.find("prompts_of")) {
      const auto& sets = out.lengths;
      const auto same = std::find_if(sets.begin(), sets.end(), [&](const ServedLengths& set) {
        return std::find(set.words.begin(), set.words.end(), of->string()) != set.words.end();
      });
      KVSIM_CHECK(same != sets.end(), "prompts of an unknown set");
      out.lengths[i].prompt_twentieths = same->prompt_twentieths;
    }
    ++i;
  }
  const Field reasons = table_of("served-reasons");
  reasons.allow_only({"schema", "reasons"});
  for (const Field& item : reasons.at("reasons").items()) {
    item.allow_only({"source", "metrics", "reason"});
    out.reasons.push_back({.source = item.at("source").string(),
                           .metrics = strings_of(item.at("metrics")),
                           .reason = item.at("reason").string()});
  }
  out.p99_per_mean = clients.at("generated_p99_per_mean").number(1, 14);
  KVSIM_CHECK(!out.clients.empty(), "no clients");
  return out;
}

const Tables& tables() {
  static const Tables kTables = read_tables();
  return kTables;
}

bool has_any(std::string_view text, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return text.find(word) != std::string_view::npos;
  });
}

std::string lower(std::string_view text) {
  std::string out{text};
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

}  // namespace

const OptionRule* ServedEngine::find_option(std::string_view option) const {
  for (const OptionRule& rule : options) {
    if (std::find(rule.names.begin(), rule.names.end(), option) != rule.names.end()) return &rule;
  }
  return nullptr;
}

std::span<const ServedEngine> served_engines() { return tables().engines; }

const ServedEngine* find_served_engine(std::string_view cell) {
  const std::string text = lower(cell);
  for (const ServedEngine& engine : tables().engines) {
    if (has_any(text, engine.words)) return &engine;
  }
  return nullptr;
}

bool is_named(const ServedClient& client, std::string_view workload, std::string_view note) {
  return has_any(lower(workload) + " " + lower(note), client.words);
}

const ServedClient& find_served_client(std::string_view workload, std::string_view note,
                                       std::string_view source, std::string_view engine) {
  for (const ServedClient& client : tables().clients) {
    if (!client.engine.empty() && client.engine != engine) continue;
    if (is_named(client, workload, note)) return client;
  }
  for (const ServedClient& client : tables().clients) {
    if (has_any(lower(source), client.sources)) return client;
  }
  for (const ServedClient& client : tables().clients) {
    if (client.comes_with_engine && client.engine == engine) return client;
  }
  return tables().clients.back();
}

const ServedLengths* find_served_lengths(std::string_view workload) {
  const std::string text = lower(workload);
  for (const ServedLengths& set : tables().lengths) {
    if (has_any(text, set.words)) return &set;
  }
  return nullptr;
}

const ServedAcceptance* find_served_acceptance(std::string_view draft) {
  for (const ServedAcceptance& one : tables().acceptances) {
    if (one.draft == draft) return &one;
  }
  return nullptr;
}

const ServedReason* find_served_reason(std::string_view source, std::string_view metric) {
  for (const ServedReason& reason : tables().reasons) {
    if (reason.source != source) continue;
    const auto& of = reason.metrics;
    if (of.empty() || std::find(of.begin(), of.end(), metric) != of.end()) return &reason;
  }
  return nullptr;
}

bool is_published_with_cutoff(std::string_view name) {
  const std::vector<std::string>& models = tables().cutoff_models;
  return std::any_of(models.begin(), models.end(),
                     [&](const std::string& model) { return name.starts_with(model); });
}

double stopping_share() { return tables().stopping_share; }

double generated_p99_per_mean() { return tables().p99_per_mean; }

}  // namespace kvsim
