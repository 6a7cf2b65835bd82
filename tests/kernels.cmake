kvsim_test(cuda_sim SOURCES kernels/test_cuda_sim.cpp kernels/test_cuda_sim_faults.cpp LINK kvsim::cuda_sim)
kvsim_bench(cuda_sim SOURCES bench/bench_cuda_sim.cpp LINK kvsim::cuda_sim)
