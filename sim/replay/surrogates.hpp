#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/math/attention/surrogate.hpp"
#include "models/methods/method.hpp"
#include "traces/trace.hpp"

namespace kvsim {

inline constexpr const char* kSurrogateFormat = "kvsim-surrogate";  // in a file's metadata

/// A model's surrogates, one per layer, and their metadata.
struct SurrogateFile {
  std::vector<Surrogate> layers;
  std::map<std::string, std::string> metadata;
};

/// Options of fit_surrogates.
struct SurrogateOptions {
  bool mlp = false;  // otherwise linear
  MlpOptions training;
  bool residual_norm = false;  // fit targets divided by the norm of the residual stream
                               // (kvzip_plus_norm)
  /// Prompt positions are split into blocks of this length, so that held-out tokens are not
  /// adjacent to fitted ones. Of every five blocks, one selects penalty or epoch and one is held
  /// out.
  std::int64_t block = 16;
  std::function<void(std::int32_t)> begins;  // called with the number of layers to fit; may be
                                             // empty
  std::function<void(double)> progress;      // called with the fitted share of them; may be empty
};

struct LayerFit {
  double lambda = 0;                          // linear
  std::int32_t epochs = 0;                    // mlp
  std::vector<double> r2_train, r2_held_out;  // by KV head
};

struct SurrogateFits {
  SurrogateFile file;
  std::vector<LayerFit> layers;
  std::int64_t train = 0, validation = 0, held_out = 0;  // positions
};

/// Fits ln KVzip+ (softmax over the whole sequence) from hidden states, layer by layer, on traces
/// with a repeat. Errors: InputError if a trace has no hidden states, output projection or repeat,
/// traces disagree in shape, or there are fewer than five blocks.
[[nodiscard]] SurrogateFits fit_surrogates(const std::vector<std::filesystem::path>& traces,
                                           const SurrogateOptions& options);

/// Tensors: layers.{i}.w1, .b1, .w2, .b2 (mlp) or layers.{i}.w, .b (linear), fp32 safetensors.
/// Errors: InputError naming the path.
void write_surrogates(const SurrogateFile& file, const std::filesystem::path& path);
[[nodiscard]] SurrogateFile read_surrogates(const std::filesystem::path& path);

/// Returns the surrogates that methods requested, by PredictedScores::name. Each is read or fitted
/// once. Errors: InputError if one does not fit the trace's shape.
[[nodiscard]] std::map<std::string, SurrogateFile> load_surrogates(const TraceInputs& inputs,
                                                                   const TraceInfo& info);

}  // namespace kvsim
