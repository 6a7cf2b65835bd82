kvsim_test(serve
  SOURCES sim/batch/test_context_parallel.cpp sim/batch/test_prefill_context.cpp sim/batch/test_expert_parallel.cpp sim/batch/test_naive_loop.cpp
          sim/bench/test_bench_fit.cpp sim/bench/test_bench_formats.cpp
          sim/serve/test_front_end.cpp sim/serve/test_scheduler_cases.cpp sim/serve/test_scheduler_laws.cpp
          sim/serve/test_scheduler_orders.cpp sim/serve/test_scheduler_pressure.cpp
          sim/serve/test_serve_cases.cpp sim/serve/test_serve_cluster.cpp
          sim/serve/test_serve_cluster_apart.cpp sim/serve/test_serve_cluster_drafts.cpp sim/serve/test_serve_hybrids.cpp
          sim/serve/test_serve_cluster_links.cpp sim/serve/test_serve_cluster_pipeline.cpp
          sim/serve/test_serve_groups.cpp
          sim/serve/test_serve_heads.cpp sim/serve/test_serve_intervals.cpp sim/serve/test_serve_laws.cpp
          sim/serve/test_serve_limits.cpp sim/serve/test_serve_memory.cpp sim/serve/test_serve_offload.cpp
          sim/serve/test_serve_reference.cpp sim/serve/test_serve_schedulers.cpp sim/serve/test_serve_steady.cpp support/heap.cpp
  LINK kvsim::bench kvsim::serve)
kvsim_bench(serve SOURCES bench/bench_serve.cpp LINK kvsim::serve)
