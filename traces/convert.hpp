#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/units/dtype.hpp"

namespace kvsim {

struct ConvertOptions {
  std::optional<Dtype> dtype;          // fp32, fp16 or bf16 for q, k, v, hidden, wo; absent:
                                       // unchanged
  std::optional<std::int64_t> tokens;  // keep the first N
  std::vector<std::int32_t> layers;    // in this order, renumbered from 0; empty keeps all
  bool keep_hidden = true;
  bool keep_output_projection = true;
  bool keep_scores = true;
  bool keep_decisions = true;
  /// Names of tensors in a foreign file: "q" -> "model.layers.{i}.query", for the words q, k, v,
  /// hidden, wo, index.q, index.k, index.w, reused.k, reused.v, score.NAME, decision.NAME and
  /// tokens. Unmapped words keep their own names.
  std::map<std::string, std::string> names;
  /// Replaces or adds metadata, including values that a foreign file does not have (prompt_len,
  /// softmax_scale). Sizes are always those of the tensors written.
  std::map<std::string, std::string> metadata;
  std::function<void(double)> begins;    // called with the number of bytes to write; may be empty
  std::function<void(double)> progress;  // called with the fraction done, 0 … 1; may be empty
  /// Called with one sentence for each thing other than tokens that a cut changes; may be empty.
  std::function<void(const std::string&)> note;
};

/// Copies a trace with changes, piece by piece: memory use is a few MiB for any size. The result is
/// opened as a Trace before it gets its name.
///
/// A cut keeps prompt_len if it is below the new length; otherwise the prompt is all but the last
/// token. repeat_start and repeat_len are removed unless the repeat is whole, marks and segments
/// beyond the end are removed, and the last segment is cut. A file without `tokens` stays without.
/// Errors: InputError for options out of range, an unknown word in `names`, tensors that are
/// missing or disagree in shape, or errors of Trace::open for the result.
void convert_trace(const std::filesystem::path& in, const std::filesystem::path& out,
                   const ConvertOptions& options);

}  // namespace kvsim
