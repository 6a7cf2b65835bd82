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

/// What an engine printed at one start, of one of its GPUs.
struct StartFacts {
  std::optional<Bytes> pool{};  // "available_kv_cache_memory"
  std::optional<std::int64_t> blocks{};
  std::optional<double> tokens{}, concurrency{};
  std::optional<Bytes> weights{};  // "model_loading"
  std::int64_t max_model_len = 0;  // the prompt length of rows that depend on it; 0: none does

  void add(const PublishedRow& row);
};
/// Whether the metric is a number of blocks.
[[nodiscard]] bool is_block_count(std::string_view metric);

/// What a published row was taken on, as its cells say it. Cells that do not parse are left out and
/// named in `missing`, so that a prediction which does not need them can be made all the same.
struct PublishedSetup {
  std::vector<const Llm*> llms{};  // several where a figure is a mean over models
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
  std::optional<std::int64_t> cache_tokens{};  // a cache allocated, and attended, at this length
  bool linear_mask = false;                    // a mask of one row, no matter what the stack has
  bool offloads_weights = false;               // layers that do not fit stay in host memory
  bool eager_execution = false;                // CUDA graphs are off
  bool all_logits = false;                     // of every prompt position, upcast to fp32
  std::optional<Bytes> card_memory{};          // "total_gpu_memory 79.22 GiB"
  StartFacts facts{};                          // what the same start printed
  std::optional<EngineVersion> release{};      // of vLLM
  std::string settings{};  // method_params, after it those of a start that they refer to

  bool binary_document = false;   // other rows of the document are in GiB
  std::optional<double> value{};  // the published figure
  bool in_scope = false;          // GPU known, numbers parse, inference
  std::string out_of_scope{};     // why not
  bool fitted = false;            // the stack's constants were taken from this document
  bool inconsistent = false;      // the note says that the source contradicts itself
  std::vector<std::string> assumed{};
  /// Of what decides an engine's pool at its start, and the row does not state: "version",
  /// "gpu_memory_utilization", "max_model_len", "total_gpu_memory".
  std::vector<std::string> unstated{};

  /// Why a cell is of no use, by what it is: "gpu", "model", "stack", "method", "prompt", "output",
  /// "batch", "weights", "kv_dtype".
  struct Missing {
    std::string what, why;
  };
  std::vector<Missing> missing{};
  /// nullptr if `what` is there.
  [[nodiscard]] const std::string* why_missing(std::string_view what) const;
};

/// Facts in other rows of a document that apply to all of them.
struct DocumentContext {
  bool binary = false;    // some figure is in GiB
  std::string version{};  // a note that names a framework's version: "vLLM 0.11, …"
  std::map<std::string, StartFacts> starts{};  // by start_of their rows
  /// "as the bf16-state row but …": by start_of such a row, the row that it refers to.
  std::map<std::string, PublishedRow> bases{};
};
/// What rows of one engine start have in common.
[[nodiscard]] std::string start_of(const PublishedRow& row);
[[nodiscard]] PublishedSetup read_setup(const PublishedRow& row,
                                        const DocumentContext& document = {});

/// The catalogue's models that a cell names: one, several ("A / B", "avg of A, B"), or for "any" a
/// representative. Errors: InputError naming the nearest known one.
[[nodiscard]] std::vector<const Llm*> models_named(const std::string& cell, std::string& assumed);

}  // namespace kvsim
