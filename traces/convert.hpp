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
  std::optional<Dtype> dtype;          // fp32, fp16 or bf16 for q, k, v, hidden, wo; else kept
  std::optional<std::int64_t> tokens;  // keep the first N
  std::vector<std::int32_t> layers;    // in this order, renumbered from 0; empty keeps all
  bool keep_hidden = true;
  bool keep_output_projection = true;
  bool keep_scores = true;
  bool keep_decisions = true;
  /// Where a foreign file keeps a tensor: "q" -> "model.layers.{i}.query", of the words q, k, v,
  /// hidden, wo, index.q, index.k, index.w, reused.k, reused.v, score.NAME, decision.NAME and
  /// tokens. Unmapped words keep their own names.
  std::map<std::string, std::string> names;
  /// Replaces or adds metadata; values that a foreign file does not have (prompt_len,
  /// softmax_scale) come from here. Sizes are always those of the tensors written.
  std::map<std::string, std::string> metadata;
  std::function<void(double)> begins;    // called with the number of bytes to write; may be empty
  std::function<void(double)> progress;  // called with the share done, 0 … 1; may be empty
  /// Called with a sentence per thing that a cut changes beyond the tokens; may be empty.
  std::function<void(const std::string&)> note;
};

/// Copies a trace with changes, piece by piece: memory holds a few MiB whatever the size. The
/// result has been opened as a Trace before it takes its name.
///
/// A cut keeps prompt_len if it is below the new length, else the prompt is all but the last token;
/// repeat_start and repeat_len go where the repeat is not whole, marks and segments beyond the end
/// too, and the last segment is cut. A file without `tokens` stays
/// without. Errors: InputError for options out of range, an unknown word in `names`, tensors that
/// are missing or disagree in shape, or what Trace::open says of the result.
void convert_trace(const std::filesystem::path& in, const std::filesystem::path& out,
                   const ConvertOptions& options);

}  // namespace kvsim
