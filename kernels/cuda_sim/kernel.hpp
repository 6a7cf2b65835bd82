#pragma once

// What a kernel's source includes, and all of it: nvcc compiles it for the GPU, any other compiler
// against the simulator. Both give the same names in namespace kvsim::KVSIM_EXECUTOR, so that a
// program may hold both builds of one kernel. docs/cuda-sim.md is the list of them.

#ifdef __CUDACC__
#include "kernels/cuda_sim/kernel_cuda.hpp"
#else
#include "kernels/cuda_sim/kernel_sim.hpp"
#endif
