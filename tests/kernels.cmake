kvsim_test(cuda_sim SOURCES kernels/test_cuda_sim.cpp kernels/test_cuda_sim_faults.cpp LINK kvsim::cuda_sim)
kvsim_test(kernels SOURCES kernels/test_bandwidth.cpp kernels/test_decode_attention.cpp
                           kernels/test_selection.cpp LINK kvsim::kernels_sim)
kvsim_bench(cuda_sim SOURCES bench/bench_cuda_sim.cpp LINK kvsim::kernels_sim)
