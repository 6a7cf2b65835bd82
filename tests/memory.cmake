kvsim_test(memory SOURCES sim/test_caching_allocator.cpp LINK kvsim::memory)

kvsim_bench(allocator SOURCES bench/bench_allocator.cpp LINK kvsim::memory)
