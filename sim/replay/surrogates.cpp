#include "sim/replay/surrogates.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/methods/learn/oracle.hpp"
#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kParts = 5;  // one of them chooses and one is held out

/// Samples of one layer, by purpose.
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
  fits.file.metadata = {{"format", kSurrogateFormat},
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
