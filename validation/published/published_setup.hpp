#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/dtype.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_text.hpp"

namespace kvsim {

/// Figures that an engine printed at one start, for one of its GPUs.
struct StartFacts {
  std::optional<Bytes> pool{};  // "available_kv_cache_memory"
  std::optional<std::int64_t> blocks{};
  std::optional<double> tokens{}, concurrency{};
  std::optional<Bytes> weights{};  // "model_loading"
  std::int64_t max_model_len = 0;  // the prompt length of rows that depend on it; 0 if none does

  void add(const PublishedRow& row);
};
/// Whether the metric is a number of blocks.
[[nodiscard]] bool is_block_count(std::string_view metric);

/// The set-up of a published row according to its cells. Cells that do not parse are left out and
/// named in `missing`, so that predictions that do not need them are still possible.
struct PublishedSetup {
  std::vector<const Llm*> llms{};  // several if the figure is a mean over models
  const Gpu* gpu = nullptr;        // null: not in the catalogue
  std::int32_t gpus = 1;
  const Stack* stack = nullptr;
  std::optional<MethodSpec> method{};
  bool recomputes_window = false;
  std::optional<FormatText> weights{};
  std::optional<Dtype> kv_dtype{};
  std::optional<PromptText> prompt{};
  std::optional<OutputText> output{};
  std::optional<BatchText> batch{};
  // Settings of the stack that the row states.
  std::optional<std::int64_t> prefill_chunk{}, max_model_len{}, max_num_seqs{}, block_tokens{};
  std::optional<double> memory_fraction{};
  std::optional<std::int64_t> cache_tokens{};  // a cache that is allocated and attended to at this
                                               // length
  bool linear_mask = false;                    // a mask of one row, regardless of the stack
  bool offloads_weights = false;               // layers that do not fit stay in host memory
  bool eager_execution = false;                // CUDA graphs are off
  bool all_logits = false;                     // of every prompt position, upcast to fp32
  std::optional<Bytes> card_memory{};          // "total_gpu_memory 79.22 GiB"
  StartFacts facts{};                          // figures printed at the same start
  std::optional<EngineVersion> release{};      // vLLM release
  std::string settings{};  // method_params, then those of a start that they refer to

  bool binary_document = false;   // other rows of the document are in GiB
  std::optional<double> value{};  // the published figure
  bool in_scope = false;          // GPU known, numbers parse, inference
  std::string out_of_scope{};     // why not
  bool fitted = false;            // the stack's constants were taken from this document
  bool inconsistent = false;      // the note states that the source contradicts itself
  std::vector<std::string> assumed{};
  /// Inputs of an engine's pool size that the row does not state: "version",
  /// "gpu_memory_utilization", "max_model_len", "total_gpu_memory".
  std::vector<std::string> unstated{};

  /// Why a cell cannot be used, by its kind: "gpu", "model", "stack", "method", "prompt", "output",
  /// "batch", "weights", "kv_dtype".
  struct Missing {
    std::string what, why;
  };
  std::vector<Missing> missing{};
  /// Returns nullptr if `what` is available.
  [[nodiscard]] const std::string* why_missing(std::string_view what) const;
};

/// Facts in other rows of a document that apply to all of them.
struct DocumentContext {
  bool binary = false;    // some figure is in GiB
  std::string version{};  // a note that names the framework's version: "vLLM 0.11, …"
  std::map<std::string, StartFacts> starts{};  // keyed by start_of of their rows
  /// "as the bf16-state row but …": the row referred to, by start_of of the referring row.
  std::map<std::string, PublishedRow> bases{};
};
/// Returns the key shared by the rows of one engine start.
[[nodiscard]] std::string start_of(const PublishedRow& row);
[[nodiscard]] PublishedSetup read_setup(const PublishedRow& row,
                                        const DocumentContext& document = {});

/// Returns the catalogue's models that a cell names: one, several ("A / B", "avg of A, B"), or a
/// representative for "any". Errors: InputError that names the most similar known model.
[[nodiscard]] std::vector<const Llm*> models_named(const std::string& cell, std::string& assumed);

}  // namespace kvsim
