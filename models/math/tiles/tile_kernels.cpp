#include "models/math/tiles/tile_kernels.hpp"

#include "models/math/tiles/tile_kernels_impl.hpp"

namespace kvsim {

const TileKernels& tile_kernels_baseline() {
  static constexpr TileKernels kKernels = kernels_named("baseline");
  return kKernels;
}

#ifdef KVSIM_AVX512_KERNELS
extern const TileKernels kTileKernelsAvx512;  // tile_kernels_avx512.cpp

const TileKernels& tile_kernels() {
  static const bool wide = __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return wide ? kTileKernelsAvx512 : tile_kernels_baseline();
}
#else
const TileKernels& tile_kernels() { return tile_kernels_baseline(); }
#endif

}  // namespace kvsim
