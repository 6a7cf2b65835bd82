#pragma once

#include <cstddef>
#include <cstdint>

namespace kvsim {

/// Inner loops of attention over tiles, for the vector width of the processor. A *panel* is a
/// matrix whose rows are `width` queries wide: query vectors [d, width], scores and weights
/// [entries, width], outputs [d, width]. Each lane is a separate chain of operations in a fixed
/// order, so with fused multiply-add results do not depend on the width. Pointers need no
/// alignment.
struct TileKernels {
  const char* name;           // of the instruction set
  std::size_t width;          // queries of a panel in fp32
  std::size_t width_precise;  // the same in fp64

  /// scores[i, lane] = sum over c of keys[i, c] queries[c, lane].
  void (*score)(const float* keys, std::size_t entries, std::size_t d, const float* queries,
                float* scores);
  void (*score_precise)(const double* keys, std::size_t entries, std::size_t d,
                        const double* queries, double* scores);
  /// out[c, lane] = sum over i of values[i, c] weights[rows[i], lane]; without `rows`, weights[i].
  void (*mix)(const float* values, const std::uint32_t* rows, std::size_t entries, std::size_t d,
              const float* weights, float* out);

  /// The visibility of a tile's entries: entry i is visible to the queries of steps born[i] to
  /// gone[i] - 1; `steps` holds the step of each lane.
  struct Visible {
    const std::int32_t* born;
    const std::int32_t* gone;  // nullptr: never
    const std::int32_t* steps;
  };
  /// One step of a running softmax: replaces unscaled scores [entries, width] by the weights
  /// e^(scale (score - highest)), raises `highest` [width] to the tile's maximum, multiplies `sum`
  /// [width] by a correction for the old maximum, which it returns in `factor`, and adds the
  /// weights. `visible` is nullptr if every entry is visible to every query. Returns whether any
  /// factor differs from 1.
  bool (*soften)(float* scores, std::size_t entries, float scale, const Visible* visible,
                 float* highest, double* sum, double* factor);
  /// total[c, lane] = total[c, lane] factor[lane] + part[c, lane].
  void (*accumulate)(double* total, const double* factor, const float* part, std::size_t d);

  /// Adds the softmax of a panel's queries to column sums, in fp64 and in the order of the lanes:
  /// sums[i] += weight[lane] e^{scale scores[i, lane]} / (the lane's sum). Entry i is visible to
  /// the queries with visible[lane] > i; a lane without visible entries must have weight 0.
  /// Overwrites scores [entries, width_precise].
  void (*add_columns)(double* scores, std::size_t entries, double scale, const double* visible,
                      const double* weight, double* sums);

  /// Sets probabilities[i] = e^{logits[i]} / sum in fp64, and returns ln of the sum. Both buffers
  /// extend to the next multiple of four: the padding of `probabilities` is set to 0, that of
  /// `logits` is ignored. entries >= 1; a logit of -infinity has probability 0.
  double (*softmax)(const double* logits, std::size_t entries, double* probabilities);
};

/// Returns the kernels of the widest instruction set supported by this processor and this build.
[[nodiscard]] const TileKernels& tile_kernels();
/// Returns the kernels of the build's baseline instruction set, for tests.
[[nodiscard]] const TileKernels& tile_kernels_baseline();

}  // namespace kvsim
