#include "sim/replay/surrogates.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/methods/learn/oracle.hpp"
#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFormat = "kvsim-surrogate";
constexpr std::int64_t kParts = 5;  // of which one chooses and one is held out

/// Samples of one layer, by what they are for.
struct Split {
  SurrogateSamples train, validation, held_out;
};

void add_samples(Split& split, const LayerBlock& block, const TraceInfo& info,
                 const LayerVectors& layer, const OracleSettings& oracle, std::int64_t length) {
  const auto s = static_cast<std::size_t>(info.prompt_tokens);
  const auto heads = static_cast<std::size_t>(info.n_kv_heads);
  const auto d = static_cast<std::size_t>(info.d_model);
  std::vector<std::vector<double>> columns;
  for (std::int32_t h = 0; h < info.n_kv_heads; ++h) {
    const DecisionUnit unit{.layer = block.first(), .heads = {{block.first(), h, -1}}};
    const PromptScores scores{block.vectors(unit), h, layer};
    columns.push_back(oracle_scores(scores, oracle));
  }
  for (std::size_t i = 0; i < s; ++i) {
    const std::int64_t part = static_cast<std::int64_t>(i) / length % kParts;
    SurrogateSamples& into = part == kParts - 1   ? split.held_out
                             : part == kParts - 2 ? split.validation
                                                  : split.train;
    into.inputs = info.d_model;
    into.outputs = info.n_kv_heads;
    const auto row = layer.hidden.subspan(i * d, d);
    into.hidden.insert(into.hidden.end(), row.begin(), row.end());
    for (std::size_t h = 0; h < heads; ++h) {
      into.scores.push_back(std::log(std::max(columns[h][i], 1e-30)));
    }
  }
}

}  // namespace

SurrogateFits fit_surrogates(const std::vector<fs::path>& paths, const SurrogateOptions& options) {
  OracleSettings oracle;
  oracle.plus = true;
  oracle.subsample = false;
  oracle.residual_norm = options.residual_norm;
  TraceInputs inputs = oracle_inputs(oracle);
  inputs.hidden = true;
  std::vector<Trace> traces;
  std::vector<std::string> names;
  for (const fs::path& path : paths) {
    traces.push_back(Trace::open(path));
    const TraceInfo& info = traces.back().info();
    names.push_back(info.name);
    const TraceInfo& first = traces.front().info();
    const bool stored =
        std::find(info.scores.begin(), info.scores.end(), "residual_norm") != info.scores.end();
    if (!info.has_hidden || !info.has_output_projection || !info.repeat_start ||
        (options.residual_norm && !stored)) {
      throw InputError{
          fmt::format("{}: a surrogate is fitted on hidden states, the output projection and a "
                      "repeat segment{}; not all are recorded",
                      path.string(), options.residual_norm ? ", and score.residual_norm" : "")};
    }
    if (info.n_layers != first.n_layers || info.n_kv_heads != first.n_kv_heads ||
        info.d_model != first.d_model) {
      throw InputError{fmt::format(
          "{}: expected {} layers, {} KV heads and hidden states {} wide as in the first trace, "
          "got {}, {} and {}",
          path.string(), first.n_layers, first.n_kv_heads, first.d_model, info.n_layers,
          info.n_kv_heads, info.d_model)};
    }
  }
  if (traces.empty()) throw InputError{"no trace to fit a surrogate on"};
  const TraceInfo& shape = traces.front().info();
  if (options.begins) options.begins(shape.n_layers);
  SurrogateFits fits;
  double mean = 0;
  for (std::int32_t layer = 0; layer < shape.n_layers; ++layer) {
    Split split;
    for (const Trace& trace : traces) {
      const LayerBlock block{trace, layer, 1, inputs, nullptr, {}};
      add_samples(split, block, trace.info(), block.layer(layer), oracle, options.block);
    }
    fits.train = split.train.size();
    fits.validation = split.validation.size();
    fits.held_out = split.held_out.size();
    if (fits.train < 1 || fits.validation < 1 || fits.held_out < 1) {
      throw InputError{fmt::format(
          "{}: expected a prompt of at least {} blocks of {} positions, to fit on some and hold "
          "out others, got {} tokens",
          paths.front().string(), kParts, options.block, shape.prompt_tokens)};
    }
    SurrogateFit fit = options.mlp ? fit_mlp(split.train, split.validation, options.training)
                                   : fit_ridge(split.train, split.validation);
    LayerFit& result = fits.layers.emplace_back();
    result.lambda = fit.lambda;
    result.epochs = fit.epochs;
    result.r2_train = explained_variance(fit.surrogate, split.train);
    result.r2_held_out = explained_variance(fit.surrogate, split.held_out);
    for (const double x : result.r2_held_out) mean += x;
    fits.file.layers.push_back(std::move(fit.surrogate));
    if (options.progress) {
      options.progress(static_cast<double>(layer + 1) / shape.n_layers);
    }
  }
  mean /= static_cast<double>(shape.n_layers) * shape.n_kv_heads;
  fits.file.metadata = {{"format", kFormat},
                        {"version", "1"},
                        {"model", shape.model},
                        {"kind", options.mlp ? "mlp" : "linear"},
                        {"n_layers", std::to_string(shape.n_layers)},
                        {"target", "ln of KVzip+, softmax over the whole sequence"},
                        {"kvzip_plus_norm", options.residual_norm ? "residual" : "post_norm"},
                        {"fitted_on", fmt::format("{}", fmt::join(names, ", "))},
                        {"positions", fmt::format("{} fitted on, {} to choose, {} held out",
                                                  fits.train, fits.validation, fits.held_out)},
                        {"block", std::to_string(options.block)},
                        {"r2_held_out", fmt::format("{:.6g}", mean)}};
  std::vector<std::string> chosen;
  for (const LayerFit& one : fits.layers) {
    chosen.push_back(options.mlp ? std::to_string(one.epochs) : fmt::format("{:g}", one.lambda));
  }
  fits.file.metadata[options.mlp ? "epochs" : "lambda"] =
      fmt::format("{}", fmt::join(chosen, ", "));
  if (options.mlp) fits.file.metadata["seed"] = std::to_string(options.training.seed);
  return fits;
}

void write_surrogates(const SurrogateFile& file, const fs::path& path) {
  std::vector<TensorPlan> plan;
  for (std::size_t l = 0; l < file.layers.size(); ++l) {
    const Surrogate& s = file.layers[l];
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      plan.push_back({fmt::format("layers.{}.{}", l, name), TensorType::kF32, std::move(shape)});
    };
    if (s.width > 0) {
      add("w1", {s.width, s.inputs});
      add("b1", {s.width});
      add("w2", {s.outputs, s.width});
      add("b2", {s.outputs});
    } else {
      add("w", {s.outputs, s.inputs});
      add("b", {s.outputs});
    }
  }
  SafetensorsWriter writer{path, std::move(plan), file.metadata};
  for (const Surrogate& s : file.layers) {
    if (s.width > 0) {
      writer.write(s.w1);
      writer.write(s.b1);
    }
    writer.write(s.w2);
    writer.write(s.b2);
  }
  writer.finish();
}

SurrogateFile read_surrogates(const fs::path& path) {
  const Safetensors tensors = Safetensors::open(path);
  SurrogateFile file;
  file.metadata = tensors.metadata();
  if (!file.metadata.contains("format") || file.metadata["format"] != kFormat) {
    throw InputError{fmt::format("{}: expected a file of kvsim fit-surrogate (format {})",
                                 tensors.place(), kFormat)};
  }
  const auto need = [&](const std::string& name, std::size_t rank) -> const TensorEntry& {
    const TensorEntry* entry = tensors.find(name);
    if (entry == nullptr || entry->shape.size() != rank || entry->elements() < 1 ||
        *std::max_element(entry->shape.begin(), entry->shape.end()) > (1 << 24)) {
      throw InputError{
          fmt::format("{}: {}: expected a tensor of {} dimensions", tensors.place(), name, rank)};
    }
    return *entry;
  };
  const auto read = [&](const std::string& name, std::int64_t elements) {
    if (tensors.find(name)->elements() != elements) {
      throw InputError{fmt::format("{}: {}: expected {} elements, got {}", tensors.place(), name,
                                   elements, tensors.find(name)->elements())};
    }
    std::vector<float> all(static_cast<std::size_t>(elements));
    tensors.read_floats(name, 0, all);
    for (const float x : all) {
      if (!std::isfinite(x)) {
        throw InputError{fmt::format("{}: {}: expected finite weights", tensors.place(), name)};
      }
    }
    return all;
  };
  for (std::int32_t l = 0;; ++l) {
    const std::string at = fmt::format("layers.{}.", l);
    const bool mlp = tensors.find(at + "w1") != nullptr;
    if (!mlp && tensors.find(at + "w") == nullptr) break;
    Surrogate s;
    if (mlp) {
      const TensorEntry& w1 = need(at + "w1", 2);
      s.width = static_cast<std::int32_t>(w1.shape[0]);
      s.inputs = static_cast<std::int32_t>(w1.shape[1]);
      (void)need(at + "b1", 1);
      s.w1 = read(at + "w1", w1.elements());
      s.b1 = read(at + "b1", s.width);
    }
    const TensorEntry& w2 = need(at + (mlp ? "w2" : "w"), 2);
    s.outputs = static_cast<std::int32_t>(w2.shape[0]);
    if (!mlp) s.inputs = static_cast<std::int32_t>(w2.shape[1]);
    (void)need(at + (mlp ? "b2" : "b"), 1);
    s.w2 = read(at + (mlp ? "w2" : "w"),
                static_cast<std::int64_t>(s.outputs) * (mlp ? s.width : s.inputs));
    s.b2 = read(at + (mlp ? "b2" : "b"), s.outputs);
    file.layers.push_back(std::move(s));
  }
  if (file.layers.empty()) {
    throw InputError{fmt::format("{}: expected layers.0.w or layers.0.w1", tensors.place())};
  }
  return file;
}

std::map<std::string, SurrogateFile> load_surrogates(const TraceInputs& inputs,
                                                     const TraceInfo& info) {
  std::map<std::string, SurrogateFile> all;
  for (const PredictedScores& wanted : inputs.predicted) {
    SurrogateFile file =
        wanted.calibrates ? fit_surrogates({wanted.path}, {}).file : read_surrogates(wanted.path);
    const Surrogate& first = file.layers.front();
    if (std::ssize(file.layers) != info.n_layers || first.inputs != info.d_model ||
        std::any_of(file.layers.begin(), file.layers.end(), [&](const Surrogate& each) {
          return each.inputs != info.d_model || each.outputs != info.n_kv_heads;
        })) {
      throw InputError{fmt::format(
          "{}: expected surrogates of {} layers from {} inputs to {} KV heads, as trace \"{}\" has "
          "them, got {} layers from {} to {}",
          wanted.path, info.n_layers, info.d_model, info.n_kv_heads, info.name, file.layers.size(),
          first.inputs, first.outputs)};
    }
    all.emplace(wanted.name, std::move(file));
  }
  return all;
}

}  // namespace kvsim
