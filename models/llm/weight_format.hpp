#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A matrix's part, and what the checkpoint packs it into; null: not packed.
struct MatrixPlace {
  MatrixPlace(WeightPart of, const WeightFormat* published = nullptr)  // NOLINT: a part is a place
      : part{of}, format{published} {}
  WeightPart part;
  const WeightFormat* format;
};

/// How a released quantisation stores a matrix: packed values with scales (and zeros) of a group of
/// inputs, of an output column, or of the whole matrix. Bits include everything that is stored per
/// group in addition to the values.
struct WeightFormat {
  std::string_view name;  // the word of scenario files
  std::string_view summary;
  std::string_view source;
  Dtype packed = Dtype::kInt4;
  std::int32_t group = 0;        // inputs that share a scale; 0: none
  std::int32_t group_bits = 0;   // of a group of one output column
  std::int32_t column_bits = 0;  // of an output column
  std::int32_t input_bits = 0;   // of an input row (GPTQ's group indices)
  std::int32_t matrix_bits = 0;  // of a matrix
  bool weight_only = true;       // unpacked to 16 bit before the product; else computes in `packed`
  bool experts_only = false;
  bool head = false;        // the output projection is quantised too
  bool embeddings = false;  // and the embeddings
  bool blocks = false;      // a group is a square of inputs and outputs: its products' partial sums
                            // are scaled one by one
};

/// What a run's weights are stored in: everything in `base` (or as published, for the format the
/// model is published in: each part in the format of its MatrixPlace), unless `format` packs the
/// parts it covers; then `base` is that of the rest and of activations. The format is not owned.
struct WeightStore {
  Dtype base = Dtype::kFp16;
  const WeightFormat* format = nullptr;
};

/// What such a matrix is packed into in this run; null where it is not packed.
[[nodiscard]] const WeightFormat* packing_of(const Llm& llm, const WeightStore& store,
                                             const MatrixPlace& place);
/// Bytes of `count` matrices of `in` x `out`, scales and zeros included, each rounded up to whole
/// bytes.
[[nodiscard]] Bytes matrix_bytes(const Llm& llm, const WeightStore& store, const MatrixPlace& place,
                                 std::int64_t in, std::int64_t out, std::int64_t count = 1);
/// Format a product with that matrix computes in.
[[nodiscard]] Dtype product_dtype(const Llm& llm, const WeightStore& store,
                                  const MatrixPlace& place);
/// Whether such a product is of squares with a scale each (fp8-block).
[[nodiscard]] bool is_block_scaled(const Llm& llm, const WeightStore& store,
                                   const MatrixPlace& place);

/// Calls `visit(place, in, out, count)` for every matrix of a layer, and of the embedding
/// (vocabulary x d_model) and the head unless it is tied.
using MatrixVisit =
    std::function<void(const MatrixPlace&, std::int64_t, std::int64_t, std::int64_t)>;
void visit_layer_matrices(const Llm& llm, const LayerSpec& layer, const MatrixVisit& visit);
void visit_outer_matrices(const Llm& llm, const MatrixVisit& visit);

/// What all weights take.
[[nodiscard]] Bytes loaded_weight_bytes(const Llm& llm, const WeightStore& store);

/// The format named `name`. Errors: InputError naming the nearest known one.
[[nodiscard]] const WeightFormat& find_weight_format(std::string_view name);
[[nodiscard]] std::span<const WeightFormat> builtin_weight_formats();
/// A format that only checkpoints name (groups of other sizes), kept for the program's life; the
/// first of a name stays. Safe to call from several threads.
const WeightFormat& keep_weight_format(const std::string& name, const WeightFormat& format);
/// The names of the formats that a model is published in, joined by " + "; empty: none.
[[nodiscard]] std::string published_formats(const Llm& llm);

/// The part of a model that one of `ranks` GPUs holds under tensor parallelism: heads, feed-forward
/// widths and vocabulary divided, KV heads repeated where there are fewer than ranks; norms,
/// routers and latent caches are whole on each. Biases are counted whole, which is a little too
/// much. The entries of a sequence are dealt over `context` ranks of those that would hold equal
/// ones. Errors: InputError where heads or widths do not divide, or entries cannot be dealt.
[[nodiscard]] Llm tensor_shard(const Llm& llm, std::int32_t ranks, std::int32_t context = 1);

}  // namespace kvsim
