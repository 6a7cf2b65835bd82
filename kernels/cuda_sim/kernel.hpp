#pragma once

// The only header that kernel sources need: nvcc compiles them for the GPU, any other compiler for
// the simulator. Both define the same names in namespace kvsim::KVSIM_EXECUTOR, so that a program
// may contain both builds of one kernel. docs/cuda-sim.md lists the names.

#ifdef __CUDACC__
#include "kernels/cuda_sim/kernel_cuda.hpp"
#else
#include "kernels/cuda_sim/kernel_sim.hpp"
#endif
