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

/// The part of a matrix, and its format in the checkpoint; null: not packed.
struct MatrixPlace {
  MatrixPlace(WeightPart of, const WeightFormat* published = nullptr)  // NOLINT: a part is a place
      : part{of}, format{published} {}
  WeightPart part;
  const WeightFormat* format;
};

/// Storage of a matrix in a published quantisation: packed values with scales (and zeros) per group
/// of inputs, per output column, or for the whole matrix. Bits include everything that is stored
/// per group in addition to the values.
struct WeightFormat {
  std::string_view name;  // name in scenario files
  std::string_view summary;
  std::string_view source;
  Dtype packed = Dtype::kInt4;
  std::int32_t group = 0;        // inputs per scale; 0: no groups
  std::int32_t group_bits = 0;   // per group of one output column
  std::int32_t column_bits = 0;  // per output column
  std::int32_t input_bits = 0;   // per input row (GPTQ's group indices)
  std::int32_t matrix_bits = 0;  // per matrix
  bool weight_only = true;       // unpacked to 16 bit before the product; else computes in `packed`
  bool experts_only = false;
  bool head = false;        // the output projection is quantised, too
  bool embeddings = false;  // the embeddings are quantised, too
  bool blocks = false;      // a group is a square of inputs and outputs; the partial sums of
                            // products are scaled one by one
};

/// Storage of a run's weights. Without `format`, everything is in `base` (or as published if `base`
/// is the published format: each part in the format of its MatrixPlace). Otherwise `format` packs
/// the parts that it covers, and `base` is the format of the rest and of activations. The format is
/// not owned.
struct WeightStore {
  Dtype base = Dtype::kFp16;
  const WeightFormat* format = nullptr;
};

/// Returns the format of such a matrix in this run; null if it is not packed.
[[nodiscard]] const WeightFormat* packing_of(const Llm& llm, const WeightStore& store,
                                             const MatrixPlace& place);
/// Returns the bytes of `count` matrices of `in` x `out`, including scales and zeros, each rounded
/// up to whole bytes.
[[nodiscard]] Bytes matrix_bytes(const Llm& llm, const WeightStore& store, const MatrixPlace& place,
                                 std::int64_t in, std::int64_t out, std::int64_t count = 1);
/// Returns the format in which a product with that matrix computes.
[[nodiscard]] Dtype product_dtype(const Llm& llm, const WeightStore& store,
                                  const MatrixPlace& place);
/// Whether such a product has one scale per square block (fp8-block).
[[nodiscard]] bool is_block_scaled(const Llm& llm, const WeightStore& store,
                                   const MatrixPlace& place);

/// Calls `visit(place, in, out, count)` for every matrix of a layer, of the embedding (vocabulary x
/// d_model), and of the output head unless it is tied.
using MatrixVisit =
    std::function<void(const MatrixPlace&, std::int64_t, std::int64_t, std::int64_t)>;
void visit_layer_matrices(const Llm& llm, const LayerSpec& layer, const MatrixVisit& visit);
void visit_outer_matrices(const Llm& llm, const MatrixVisit& visit);

/// Returns the bytes of all weights.
[[nodiscard]] Bytes loaded_weight_bytes(const Llm& llm, const WeightStore& store);

/// Returns the format named `name`. Throws InputError with the nearest known name.
[[nodiscard]] const WeightFormat& find_weight_format(std::string_view name);
[[nodiscard]] std::span<const WeightFormat> builtin_weight_formats();
/// Registers a format that only checkpoints define (with other group sizes) for the lifetime of the
/// program. The first format of a name is kept. Thread-safe.
const WeightFormat& keep_weight_format(const std::string& name, const WeightFormat& format);
/// Returns the names of a model's published formats, joined by " + "; empty if there are none.
[[nodiscard]] std::string published_formats(const Llm& llm);

/// Returns the part of a model on one of `ranks` GPUs under tensor parallelism. Heads, feed-forward
/// widths and vocabulary are divided, KV heads are replicated if there are fewer than ranks, and
/// norms, routers and latent caches are replicated on each. Biases are counted completely, a slight
/// overestimate. The entries of a sequence are distributed over `context` of the ranks with equal
/// copies. Throws InputError if heads or widths do not divide, or entries cannot be distributed.
[[nodiscard]] Llm tensor_shard(const Llm& llm, std::int32_t ranks, std::int32_t context = 1);

}  // namespace kvsim
