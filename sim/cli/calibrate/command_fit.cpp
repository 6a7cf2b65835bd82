// kvsim fit-surrogate: fits the weights of KVzap's score predictor to traces with a repeat.

#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/replay/surrogates.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

SurrogateOptions options_of(const Arguments& arguments) {
  SurrogateOptions options;
  const std::string model = arguments.value("model").value_or("linear");
  if (model != "linear" && model != "mlp") {
    throw InputError{"--model", "linear or mlp", fmt::format("\"{}\"", model)};
  }
  options.mlp = model == "mlp";
  for (const char* name : {"width", "epochs", "batch", "rate", "seed"}) {
    if (arguments.has(name) && !options.mlp) {
      throw InputError{fmt::format("--{}", name), "--model mlp", "a linear fit"};
    }
  }
  const std::string norm = arguments.value("norm").value_or("post_norm");
  if (norm != "post_norm" && norm != "residual") {
    throw InputError{"--norm", "post_norm or residual", fmt::format("\"{}\"", norm)};
  }
  options.residual_norm = norm == "residual";
  options.block = arguments.integer("block", 1, 1 << 20).value_or(options.block);
  MlpOptions& training = options.training;
  training.width = static_cast<std::int32_t>(arguments.integer("width", 1, 1 << 16).value_or(0));
  training.epochs =
      static_cast<std::int32_t>(arguments.integer("epochs", 1, 1 << 20).value_or(training.epochs));
  training.batch =
      static_cast<std::int32_t>(arguments.integer("batch", 1, 1 << 20).value_or(training.batch));
  training.learning_rate = arguments.number("rate", 1e-8, 1.0).value_or(training.learning_rate);
  training.seed = static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
  return options;
}

ordered_json fits_json(const SurrogateFits& fits, bool mlp) {
  ordered_json out{{"schema", "kvsim.fit-surrogate/1"},
                   {"metadata", fits.file.metadata},
                   {"positions_train", fits.train},
                   {"positions_validation", fits.validation},
                   {"positions_held_out", fits.held_out}};
  out["layers"] = ordered_json::array();
  for (const LayerFit& layer : fits.layers) {
    ordered_json one{{"r2_train", layer.r2_train}, {"r2_held_out", layer.r2_held_out}};
    if (mlp) {
      one["epochs"] = layer.epochs;
    } else {
      one["lambda"] = layer.lambda;
    }
    out["layers"].push_back(std::move(one));
  }
  return out;
}

std::string fits_text(const SurrogateFits& fits, bool mlp, const fs::path& path,
                      std::size_t width) {
  Table table{{{"layer"}, {"head"}, {mlp ? "epochs" : "lambda"}, {"R2 fitted"}, {"R2 held out"}}};
  for (std::size_t l = 0; l < fits.layers.size(); ++l) {
    const LayerFit& layer = fits.layers[l];
    for (std::size_t h = 0; h < layer.r2_held_out.size(); ++h) {
      table.add_row({fmt::format("{}", l), fmt::format("{}", h),
                     mlp ? fmt::format("{}", layer.epochs) : fmt::format("{:g}", layer.lambda),
                     fmt::format("{:.3f}", layer.r2_train[h]),
                     fmt::format("{:.3f}", layer.r2_held_out[h])});
    }
  }
  return fmt::format(
      "{} surrogate of ln KVzip+, fitted on {} positions per layer, {} to choose, {} held out\n{}"
      "R2: share of the held-out scores' variance explained; below 0 is worse than their mean\n"
      "wrote {}\n",
      mlp ? "mlp" : "linear", fits.train, fits.validation, fits.held_out, table.str(width),
      path.string());
}

int run_fit(const Arguments& arguments) {
  arguments.expect_words(1, 4096, "a trace with a repeat");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"fit-surrogate", "-o FILE for the weights", "none"};
  SurrogateOptions options = options_of(arguments);
  Progress progress{"fitting"};
  options.begins = [&](std::int32_t layers) { progress.expect(layers, "layers"); };
  if (!arguments.has("quiet")) options.progress = [&](double done) { progress.update(done); };
  std::vector<fs::path> traces;
  for (const std::string& word : arguments.words()) traces.emplace_back(word);
  const SurrogateFits fits = fit_surrogates(traces, options);
  write_surrogates(fits.file, *out);
  progress.finish();
  if (arguments.has("json")) {
    write_out(to_file_text(fits_json(fits, options.mlp)));
  } else if (!arguments.has("quiet")) {
    write_out(fits_text(fits, options.mlp, *out, terminal_width()));
  }
  return kDone;
}

}  // namespace

Command fit_surrogate_command() {
  return {
      .name = "fit-surrogate",
      .summary = "fit KVzap's surrogate, which predicts scores, on traces with a repeat",
      .usage = "kvsim fit-surrogate TRACE... -o FILE [options]",
      .examples =
          "kvsim trace generate r.safetensors --tokens 2001 --prompt-tokens 1000 \\\n"
          "        --with-hidden --with-wo --with-repeat\n"
          "  kvsim fit-surrogate r.safetensors -o weights.safetensors",
      .options = {{"out", 'o', "FILE", false, "weights to write (safetensors)"},
                  {"model", 0, "KIND", false, "linear (ridge regression) or mlp (linear)"},
                  {"norm", 0, "NORM", false,
                   "post_norm or residual, as kvzip_plus_norm (post_norm)"},
                  {"block", 0, "N", false, "positions that are fitted or held out together (16)"},
                  {"width", 0, "N", false, "mlp: inner width (hidden width / 8)"},
                  {"epochs", 0, "N", false, "mlp: passes over the samples (200)"},
                  {"batch", 0, "N", false, "mlp: samples per step (64)"},
                  {"rate", 0, "X", false, "mlp: Adam's learning rate (0.001)"},
                  {"seed", 0, "N", false, "mlp: seed of weights and order (0)"},
                  {"quiet", 'q', "", false, "no table, no progress"},
                  {"json", 0, "", false, "print JSON (schema kvsim.fit-surrogate/1)"}},
      .run = run_fit};
}

}  // namespace kvsim
