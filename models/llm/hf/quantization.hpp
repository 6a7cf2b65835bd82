#pragma once

// The quantisation of a published checkpoint: `quantization_config` of config.json, and the file of
// the quantiser next to it: hf_quant_config.json (NVIDIA's ModelOpt), quantize_config.json
// (AutoGPTQ) or quant_config.json (AutoAWQ). Private to models/llm.

#include <optional>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/hf/module_names.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

/// Properties of a family's checkpoints that are not in their configurations.
struct CheckpointTraits {
  std::vector<Rename> renames{};  // of module names
  bool has_e8m0_scales = false;   // scales of fp8 blocks have one byte
  /// Format of routed experts in fp8 checkpoints without `expert_dtype`; empty: as other weights.
  std::string_view expert_format{};
};

/// Sets the published formats of the weights of `llm`: the format of each part of each layer,
/// published_dtype, unpacked_dtype and published_kv_dtype. On entry `llm.published_dtype` is that
/// of the configuration without its quantisation. `quant_config` is the quantiser's file, if there
/// is one; its name determines a method that it does not state.
///
/// If both files state a format and they disagree, config.json takes precedence and a note is
/// added.
///
/// Excluded modules (`ignore`, `ignored_layers`, `exclude_modules`, `modules_to_not_convert`,
/// `llm_int8_skip_modules`) are dotted names or parts of them, globs with `*`, or `re:` and a
/// regular expression. Output head, routers, norms and embeddings are packed only if the
/// configuration names them.
/// Throws InputError for an unknown or unsupported quantisation, and for a feed-forward block whose
/// matrices have different formats.
/// Sources: transformers utils/quantization_config.py; vLLM model_executor/layers/quantization
/// (modelopt.py, compressed_tensors, fp8.py); compressed-tensors quantization/quant_args.py.
void read_quantization(const Field& config, const std::optional<Field>& quant_config,
                       const CheckpointTraits& traits, Llm& llm);

}  // namespace kvsim::hf
