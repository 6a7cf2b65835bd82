#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include "models/methods/axis_choice.hpp"
#include "models/units/error.hpp"
#include "sim/own/kvsim_method.h"
#include "sim/own/loaders.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kErrorSize = 1024;
constexpr double kMaxNumber = std::numeric_limits<double>::max();
constexpr std::size_t kMaxParams = 64;

/// Returns the function `name` of a library, or nullptr.
template <class Function>
Function* optional_function(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

template <class Function>
Function* function_of(void* library, const std::string& file, const char* name) {
  auto* found = optional_function<Function>(library, name);
  if (found == nullptr) {
    throw InputError{file, fmt::format("the function {} (kvsim_method.h)", name), "none"};
  }
  return found;
}

struct LibraryScorer {
  decltype(&kvsim_method_score) function = nullptr;
  std::string who;
  std::vector<std::string> params;  // names, in the library's order
  mutable std::mutex guard;         // only one thread calls the library at a time

  [[nodiscard]] std::vector<double> score(const Params& given, const PromptLayer& layer) const;
};

std::vector<double> LibraryScorer::score(const Params& given, const PromptLayer& layer) const {
  const LayerVectors& vectors = layer.vectors;
  const HeadVectors& any = vectors.heads.front();
  const std::int64_t prompt = layer.prompt();
  std::vector<const float*> keys, values, queries;
  for (std::int32_t s = 0; s < layer.stored_heads(); ++s) {
    keys.push_back(layer.head(s).keys.data());
    values.push_back(layer.head(s).values.data());
  }
  for (const HeadVectors& head : vectors.heads) {
    for (std::int32_t g = 0; g < head.group; ++g) queries.push_back(head.query(g, 0).data());
  }
  std::vector<double> numbers;
  for (const std::string& name : params) numbers.push_back(std::get<double>(given.at(name)));
  const kvsim_score_input input{.layer = vectors.layer,
                                .n_layers = vectors.n_layers,
                                .n_heads = static_cast<std::int32_t>(queries.size()),
                                .n_kv_heads = layer.stored_heads(),
                                .head_dim = any.head_dim,
                                .reserved = 0,
                                .tokens = prompt,
                                .scale = any.scale,
                                .ratio = std::get<double>(given.at("ratio")),
                                .seed = layer.seed,
                                .keys = keys.data(),
                                .values = values.data(),
                                .queries = queries.data(),
                                .params = numbers.data()};
  std::vector<double> scores(static_cast<std::size_t>(layer.stored_heads() * prompt),
                             std::numeric_limits<double>::quiet_NaN());
  std::array<char, kErrorSize> error{};
  int status = 0;
  {
    const std::scoped_lock lock{guard};
    status = function(&input, scores.data(), error.data(), error.size());
  }
  error.back() = '\0';
  if (status != 0) {
    throw InputError{fmt::format("{}: layer {}: {} (status {})", who, vectors.layer,
                                 error.front() != '\0' ? error.data() : "no reason given", status)};
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(scores[i])) continue;
    throw InputError{
        fmt::format("{}: layer {}, head {}, token {}", who, vectors.layer,
                    static_cast<std::int64_t>(i) / prompt, static_cast<std::int64_t>(i) % prompt),
        "a finite score", fmt::format("{}", scores[i])};
  }
  return scores;
}

}  // namespace

std::shared_ptr<const OwnMethod> load_library_method(const std::filesystem::path& path,
                                                     const std::string& hash) {
  const std::string file = path.filename().string();
  // The library stays loaded: scores may be requested until the program ends.
  void* library = ::dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw InputError{path.string(), "a shared library", ::dlerror()};
  }
  const int abi = function_of<decltype(kvsim_method_abi)>(library, file, "kvsim_method_abi")();
  if (abi != KVSIM_METHOD_ABI) {
    throw InputError{fmt::format("{}: kvsim_method_abi()", file),
                     fmt::format("{}", KVSIM_METHOD_ABI), fmt::format("{}", abi)};
  }
  const char* name = function_of<decltype(kvsim_method_name)>(library, file, "kvsim_method_name")();
  auto scorer = std::make_shared<LibraryScorer>();
  scorer->function = function_of<decltype(kvsim_method_score)>(library, file, "kvsim_method_score");
  auto method = std::make_shared<OwnMethod>();
  method->name = name == nullptr ? "" : name;
  method->summary = "a user's scorer";
  method->origin = fmt::format("scored by the user's library {} (FNV-1a {})", file, hash);
  scorer->who = fmt::format("method \"{}\" ({})", method->name, file);
  if (auto* declared =
          optional_function<decltype(kvsim_method_params)>(library, "kvsim_method_params")) {
    std::size_t count = 0;
    const kvsim_method_param* params = declared(&count);
    if (count > kMaxParams || (count > 0 && params == nullptr)) {
      throw InputError{fmt::format("{}: kvsim_method_params()", file),
                       fmt::format("at most {} parameters", kMaxParams), fmt::format("{}", count)};
    }
    for (std::size_t i = 0; i < count; ++i) {
      const kvsim_method_param& one = params[i];
      if (one.name == nullptr || *one.name == '\0' || !std::isfinite(one.default_value)) {
        throw InputError{
            fmt::format("{}: kvsim_method_params(): parameter {}", file, i),
            "a name and a finite default",
            fmt::format("\"{}\" and {}", one.name == nullptr ? "" : one.name, one.default_value)};
      }
      method->params.push_back(number_param(one.name, "", one.default_value, -kMaxNumber,
                                            kMaxNumber, "a number",
                                            one.help == nullptr ? "" : one.help, file));
      scorer->params.emplace_back(one.name);
    }
  }
  if (auto* passes = optional_function<decltype(kvsim_method_count_passes)>(
          library, "kvsim_method_count_passes")) {
    const kvsim_method_passes* found = passes();
    const auto valid = [](double x) { return x >= 0 && x < 1e6; };
    if (found == nullptr || !valid(found->keys) || !valid(found->values) ||
        !valid(found->queries)) {
      throw InputError{fmt::format("{}: kvsim_method_count_passes()", file),
                       "three numbers in [0, 1000000)", found == nullptr ? "none" : "others"};
    }
    method->passes = ScorePasses{found->keys, found->values, found->queries};
  }
  method->score = [scorer](const Params& params, const PromptLayer& layer) {
    return scorer->score(params, layer);
  };
  return method;
}

}  // namespace kvsim
