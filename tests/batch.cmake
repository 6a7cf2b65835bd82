kvsim_test(batch
  SOURCES sim/batch/test_compiled_point.cpp sim/batch/test_configured_runs.cpp sim/batch/test_decode_segments.cpp sim/batch/test_host_weights.cpp sim/batch/test_intervals.cpp sim/batch/test_prompt_rows.cpp sim/batch/test_split_runs.cpp sim/batch/test_stack_runs.cpp
          sim/batch/test_startup.cpp sim/batch/test_static_anchors.cpp sim/batch/test_static_hbm.cpp
          sim/batch/test_static_run.cpp sim/batch/test_time_terms.cpp
          sim/memory/test_block_allocator.cpp sim/memory/test_caching_allocator.cpp
          sim/memory/test_step_allocations.cpp sim/memory/test_engine_pools.cpp sim/memory/test_vllm_groups.cpp
  LINK kvsim::batch kvsim::serve)
kvsim_bench(static SOURCES bench/bench_static.cpp LINK kvsim::batch kvsim::serve)
kvsim_bench(allocator SOURCES bench/bench_allocator.cpp LINK kvsim::memory)
