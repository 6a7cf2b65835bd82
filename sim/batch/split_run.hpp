#pragma once

#include "sim/batch/static_run.hpp"

namespace kvsim {

/// Returns whether the GPUs of `spec` hold whole layers each and compute one after another.
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

/// run_static for splits_layers. Times are those of the whole model on one GPU; hidden states are
/// passed to the next GPU. Memory is evaluated for every GPU's own layers; the result reports the
/// fullest GPU, or the first that runs out. Work is the mean over all GPUs. Errors: as run_static.
[[nodiscard]] StaticResult run_split(const StaticSpec& spec, const StaticOptions& options);

}  // namespace kvsim
