#pragma once

#include "sim/batch/static_run.hpp"

namespace kvsim {

/// Whether the GPUs of `spec` hold whole layers each, and compute one after the other.
[[nodiscard]] inline bool splits_layers(const StaticSpec& spec) {
  return spec.stack->splits_layers && spec.tensor_parallel > 1;
}

/// The sum of `of_gpu` over the GPUs of a result whose layers are split; else `one`.
template <class OfGpu>
[[nodiscard]] Bytes over_gpus(const StaticResult& result, Bytes one, const OfGpu& of_gpu) {
  if (result.gpus.empty()) return one;
  Bytes sum;
  for (const GpuBytes& gpu : result.gpus) sum += of_gpu(gpu);
  return sum;
}

/// run_static where splits_layers. Times are those of the whole model on one GPU, and hidden states
/// go on to the next GPU. Memory, and whether it suffices, are those of every GPU's own layers; the
/// result's are of the fullest, or of the first where it runs out. Work is the mean of all GPUs.
/// Errors: as run_static.
[[nodiscard]] StaticResult run_split(const StaticSpec& spec, const StaticOptions& options);

}  // namespace kvsim
