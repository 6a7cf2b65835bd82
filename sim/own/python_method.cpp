#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/methods/axis_choice.hpp"
#include "models/units/error.hpp"
#include "sim/own/loaders.hpp"
#include "sim/own/python_child.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

constexpr double kMaxInteger = 9007199254740992.0;  // 2^53
constexpr double kMaxNumber = std::numeric_limits<double>::max();

std::vector<std::string> interpreters() {
  const char* chosen = std::getenv("KVSIM_PYTHON");  // NOLINT: not modified concurrently
  if (chosen != nullptr && *chosen != '\0') return {chosen};
  return {"python3", "/usr/bin/python3"};
}

ParamInfo param_of(const json& param, const std::string& file, const std::string& kind) {
  const auto name = param.at("name").get<std::string>();
  const std::string help = fmt::format("parameter of the constructor of {}", kind);
  const json& value = param.at("default");
  if (value.is_boolean()) return flag_param(name, value.get<bool>(), help, file);
  if (value.is_number_integer()) {
    return integer_param(name, "", value.get<std::int64_t>(), -kMaxInteger, kMaxInteger,
                         "an integer", help, file);
  }
  if (value.is_number()) {
    return number_param(name, "", value.get<double>(), -kMaxNumber, kMaxNumber, "a number", help,
                        file);
  }
  ParamInfo text = text_param(name, "a text", help, file);
  text.default_value = value.get<std::string>();
  return text;
}

/// The class in its process, and the names of its score()'s arguments.
struct PythonScorer {
  std::unique_ptr<PythonChild> child;
  std::string who;
  std::vector<std::string> arguments;

  [[nodiscard]] bool takes(std::string_view argument) const {
    return std::find(arguments.begin(), arguments.end(), argument) != arguments.end();
  }
  [[nodiscard]] std::vector<double> score(const Params& params, const PromptLayer& layer) const;
};

json params_json(const Params& params) {
  json out = json::object();
  for (const auto& [name, value] : params) {
    std::visit([&out, &key = name](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

/// Errors: InputError with the message if the reply is an error.
void expect_result(const json& reply, const std::string& who) {
  if (reply.contains("error")) {
    throw InputError{fmt::format("{}: {}", who, reply.at("error").get<std::string>())};
  }
}

/// Starts the first interpreter that has NumPy.
void start_python(PythonScorer& scorer, const std::string& path, const std::string& kind) {
  std::string without;
  for (const std::string& interpreter : interpreters()) {
    try {
      scorer.child = std::make_unique<PythonChild>(interpreter, path, kind, interpreter);
      expect_result(scorer.child->ask({{"op", "start"}}).first, interpreter);
      scorer.child->complain_as(scorer.who);
      return;
    } catch (const InputError& error) {
      without += fmt::format("{}{}", without.empty() ? "" : "; ", error.what());
    }
  }
  throw InputError{
      fmt::format("{}: expected a Python with NumPy ($KVSIM_PYTHON, or python3 in PATH), got {}",
                  scorer.who, without)};
}

std::vector<double> PythonScorer::score(const Params& params, const PromptLayer& layer) const {
  const LayerVectors& vectors = layer.vectors;
  const HeadVectors& any = vectors.heads.front();
  const std::int64_t prompt = layer.prompt();
  const std::int64_t d = any.head_dim;
  const auto rows = static_cast<std::size_t>(prompt * d);
  const std::int64_t n_heads = std::ssize(vectors.heads) * any.group;
  json shapes = json::array();
  std::vector<std::span<const float>> parts;
  if (takes("keys")) {
    shapes.push_back({"keys", {layer.stored_heads(), prompt, d}});
    for (std::int32_t s = 0; s < layer.stored_heads(); ++s) {
      parts.push_back(layer.head(s).keys.first(rows));
    }
  }
  if (takes("values")) {
    shapes.push_back({"values", {layer.stored_heads(), prompt, d}});
    for (std::int32_t s = 0; s < layer.stored_heads(); ++s) {
      parts.push_back(layer.head(s).values.first(rows));
    }
  }
  if (takes("queries")) {
    shapes.push_back({"queries", {n_heads, prompt, d}});
    for (const HeadVectors& head : vectors.heads) {
      for (std::int64_t g = 0; g < head.group; ++g) {
        parts.push_back(head.q.subspan(static_cast<std::size_t>(g * head.tokens * d), rows));
      }
    }
  }
  if (takes("hidden")) {
    shapes.push_back({"hidden", {prompt, vectors.d_model}});
    parts.push_back(vectors.hidden.first(static_cast<std::size_t>(prompt * vectors.d_model)));
  }
  if (takes("output_projection")) {
    shapes.push_back({"output_projection", {vectors.d_model, n_heads * d}});
    parts.push_back(vectors.output_projection);
  }
  auto [reply, scores] = child->ask({{"op", "score"},
                                     {"params", params_json(params)},
                                     {"facts",
                                      {{"layer", vectors.layer},
                                       {"n_layers", vectors.n_layers},
                                       {"scale", any.scale},
                                       {"seed", layer.seed}}},
                                     {"expected", {layer.stored_heads(), prompt}},
                                     {"arrays", std::move(shapes)}},
                                    parts);
  expect_result(reply, who);
  return std::move(scores);
}

}  // namespace

std::shared_ptr<const OwnMethod> load_python_method(const std::filesystem::path& path,
                                                    const std::string& kind,
                                                    const std::string& hash) {
  const std::string file = path.filename().string();
  auto scorer = std::make_shared<PythonScorer>();
  scorer->who = fmt::format("method \"{}:{}\"", file, kind);
  start_python(*scorer, path.string(), kind);
  const json found = scorer->child->ask({{"op", "describe"}}).first;
  expect_result(found, scorer->who);
  scorer->arguments = found.at("arguments").get<std::vector<std::string>>();
  auto method = std::make_shared<OwnMethod>();
  method->name = fmt::format("{}:{}", file, kind);
  method->summary = found.at("summary").get<std::string>();
  if (method->summary.empty()) method->summary = "a user's scorer";
  method->origin = fmt::format("scored by the user's Python file {} (FNV-1a {})", file, hash);
  for (const json& param : found.at("params")) {
    method->params.push_back(param_of(param, file, kind));
  }
  method->inputs.hidden = scorer->takes("hidden");
  method->inputs.output_projection = scorer->takes("output_projection");
  if (const json& passes = found.at("passes"); !passes.is_null()) {
    method->passes = ScorePasses{passes.at("keys").get<double>(), passes.at("values").get<double>(),
                                 passes.at("queries").get<double>()};
  }
  method->score = [scorer](const Params& params, const PromptLayer& layer) {
    return scorer->score(params, layer);
  };
  return method;
}

}  // namespace kvsim
