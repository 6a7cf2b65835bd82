#include "sim/launch/launch.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/launch/engine_command.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/availability.hpp"
#include "models/units/error.hpp"
#include "sim/launch/launch_parts.hpp"
#include "sim/scenario/fields/serve_field.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// The Hugging Face checkpoint of a catalogue model; otherwise the model's name.
std::string checkpoint_of(const ScenarioPoint& point, const Llm& llm) {
  const ordered_json& key = point.keys.at("model");
  if (key.is_object() && key.contains("config")) {
    const std::filesystem::path config = key.at("config").get<std::string>();
    return config.parent_path().empty() ? "." : config.parent_path().string();
  }
  constexpr std::string_view kOf = "config.json of ";
  const std::string_view source = llm.source;
  if (source.starts_with(kOf)) {
    const std::string_view name =
        source.substr(kOf.size(), source.find_first_of(" ,;", kOf.size()) - kOf.size());
    if (name.find('/') != std::string_view::npos) return std::string{name};
  }
  for (const std::string& alias : llm_aliases(llm.name)) {
    if (alias.find('/') != std::string::npos) return alias;
  }
  return llm.name;
}

/// The weights plus 10 % for the tokenizer and a second copy of small files, in whole GiB.
std::int64_t checkpoint_gib(const LaunchInput& in) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  Bytes weights = loaded_weight_bytes(*in.llm, WeightStore{in.weight_dtype, in.weight_format});
  if (in.llm->vision) weights += Bytes{2 * vision_parameters(*in.llm->vision)};  // in 16 bits
  return static_cast<std::int64_t>(std::ceil(1.1 * static_cast<double>(weights.count()) / kGiB));
}

LaunchInput input_of(const ScenarioPoint& point, const LaunchChoice& choice) {
  LaunchInput in;
  const auto take = [&](const auto& spec, const EngineSite& site) {
    in.llm = spec.llm;
    in.gpu = spec.gpu;
    in.stack = with_options(*spec.stack, spec.options, site);
    in.options = spec.options;
    in.weight_dtype = spec.weight_dtype;
    in.kv_dtype = spec.kv_dtype;
    in.weight_format = spec.weight_format;
    in.tensor_parallel = spec.tensor_parallel;
  };
  if (point.serve) {
    take(*point.serve, engine_site(*point.serve));
    in.pipeline_parallel = point.serve->pipeline_parallel;
    in.scheduler = point.serve->scheduler;
    in.cluster = point.serve->cluster;
    in.speculation = point.serve->speculation;
    in.host_memory = point.serve->host_memory;
    if (point.serve->requests) {
      for (const Request& r : point.serve->requests->requests) {
        in.longest_prompt = std::max<std::int64_t>(in.longest_prompt, r.prompt_tokens);
      }
    }
    if (in.options.max_model_len || in.options.longest_request) {
      in.max_model_len = in.options.max_model_len.value_or(std::int64_t{point.spec.prompt_tokens} +
                                                           point.spec.output_tokens);
    } else if (choice.sequence_tokens) {
      in.max_model_len = *choice.sequence_tokens;
    }
  } else {
    take(point.spec, {point.spec.gpu, point.spec.llm, point.spec.tensor_parallel});
    in.max_model_len = choice.sequence_tokens.value_or(std::int64_t{point.spec.prompt_tokens} +
                                                       point.spec.output_tokens);
    if (in.options.max_model_len) in.max_model_len = *in.options.max_model_len;
    in.longest_prompt = *in.max_model_len - point.spec.output_tokens;
  }
  in.method = choice.method.value_or(point.method);
  in.copies = choice.copies;
  in.model = checkpoint_of(point, *in.llm);
  return in;
}

}  // namespace

Launch launch_of(const ScenarioPoint& point, const LaunchChoice& choice) {
  const LaunchInput in = input_of(point, choice);
  const EngineFlags* engine = find_engine_flags(in.stack.name);
  if (engine == nullptr) {
    std::vector<std::string> known;
    for (const EngineFlags& one : builtin_engine_flags()) known.push_back(one.stack);
    throw InputError{fmt::format(
        "launch command: stack \"{}\" is not a server with known arguments; expected one of {}",
        in.stack.name, fmt::join(known, ", "))};
  }
  const auto version = parse_engine_version(in.stack.version);
  if (!version || engine->is_too_old(*version)) {
    throw InputError{fmt::format("launch command: the arguments of {} are known from {}, got {}",
                                 engine->engine, engine->lists.front().version, in.stack.version)};
  }
  Launch out{.engine = engine,
             .version = in.stack.version,
             .model = in.model,
             .gpu = in.gpu->name,
             .router = {},
             .checkpoint_gib = checkpoint_gib(in),
             .roles = {},
             .notes = {}};
  const bool is_split = in.cluster.prefill_replicas > 0;
  const std::int64_t gpus = std::int64_t{in.tensor_parallel} * in.pipeline_parallel *
                            in.options.prefill_context.value_or(1);
  const std::vector<std::pair<std::string, std::int64_t>> roles =
      is_split ? std::vector<std::pair<std::string, std::int64_t>>{{"prefill",
                                                                    in.cluster.prefill_replicas},
                                                                   {"decode", in.cluster.replicas}}
               : std::vector<std::pair<std::string, std::int64_t>>{{"server", in.cluster.replicas}};
  for (const auto& [name, replicas] : roles) {
    LaunchWriter writer{*engine, *version, in, name};
    LaunchRole role = writer.role();
    role.replicas = replicas * in.copies / role.replicas;
    role.gpus *= gpus;
    for (const std::string& note : writer.notes()) {
      if (std::find(out.notes.begin(), out.notes.end(), note) == out.notes.end()) {
        out.notes.push_back(note);
      }
    }
    out.roles.push_back(std::move(role));
  }
  std::int64_t engines = 0;
  for (const LaunchRole& role : out.roles) engines += role.replicas;
  if (engines > 1) out.router = std::string{name_of(in.cluster.router)};
  // Printed commands must be valid for the engine's argument list.
  for (const LaunchRole& role : out.roles) {
    (void)parse_engine_command(role.words, *version, "launch command", true);
  }
  return out;
}

}  // namespace kvsim
