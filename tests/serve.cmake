kvsim_test(serve SOURCES sim/test_static_hbm.cpp sim/test_static_run.cpp sim/test_static_anchors.cpp sim/test_startup.cpp sim/test_stack_runs.cpp
                         sim/test_time_terms.cpp sim/test_intervals.cpp sim/test_compiled_point.cpp
           LINK kvsim::serve)

kvsim_bench(static SOURCES bench/bench_static.cpp LINK kvsim::serve)
kvsim_test(serving SOURCES sim/test_serve_laws.cpp sim/test_serve_cases.cpp sim/test_serve_heads.cpp sim/test_serve_intervals.cpp sim/test_serve_limits.cpp sim/test_expert_parallel.cpp sim/test_naive_loop.cpp sim/test_serve_memory.cpp sim/test_serve_offload.cpp sim/test_serve_reference.cpp sim/test_serve_schedulers.cpp support/heap.cpp
           LINK kvsim::serve)
kvsim_bench(serve SOURCES bench/bench_serve.cpp LINK kvsim::serve)
kvsim_test(allocations JSON SOURCES sim/test_serve_allocations.cpp LINK kvsim::report)
kvsim_test(schedulers SOURCES sim/test_scheduler_cases.cpp sim/test_scheduler_laws.cpp sim/test_scheduler_orders.cpp sim/test_scheduler_pressure.cpp LINK kvsim::serve)
kvsim_test(cluster SOURCES sim/test_serve_cluster.cpp sim/test_serve_cluster_apart.cpp
                          sim/test_serve_cluster_links.cpp sim/test_serve_cluster_pipeline.cpp
                          sim/test_serve_cluster_drafts.cpp
           LINK kvsim::serve)
