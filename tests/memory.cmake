kvsim_test(memory SOURCES sim/memory/test_block_allocator.cpp sim/memory/test_caching_allocator.cpp
                          sim/memory/test_step_allocations.cpp
           LINK kvsim::memory kvsim::serve)

kvsim_bench(allocator SOURCES bench/bench_allocator.cpp LINK kvsim::memory)
