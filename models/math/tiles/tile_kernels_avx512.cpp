// Compiled for x86-64-v4 if the build targets x86-64-v3; otherwise empty.

#ifdef KVSIM_AVX512_KERNELS

#include "models/math/tiles/tile_kernels_impl.hpp"

namespace kvsim {

extern const TileKernels kTileKernelsAvx512;
const TileKernels kTileKernelsAvx512 = kernels_named("AVX-512");

}  // namespace kvsim

#endif
