kvsim_test(serve SOURCES sim/batch/test_static_hbm.cpp sim/batch/test_static_run.cpp sim/batch/test_static_anchors.cpp sim/batch/test_startup.cpp sim/batch/test_stack_runs.cpp
                         sim/batch/test_time_terms.cpp sim/batch/test_intervals.cpp sim/batch/test_compiled_point.cpp
           LINK kvsim::serve)

kvsim_bench(static SOURCES bench/bench_static.cpp LINK kvsim::serve)
kvsim_test(serving SOURCES sim/serve/test_serve_laws.cpp sim/serve/test_serve_cases.cpp sim/serve/test_serve_heads.cpp sim/serve/test_serve_intervals.cpp sim/serve/test_serve_limits.cpp sim/batch/test_expert_parallel.cpp sim/batch/test_naive_loop.cpp sim/serve/test_serve_memory.cpp sim/serve/test_serve_offload.cpp sim/serve/test_serve_reference.cpp sim/serve/test_serve_schedulers.cpp support/heap.cpp
           LINK kvsim::serve)
kvsim_bench(serve SOURCES bench/bench_serve.cpp LINK kvsim::serve)
kvsim_test(allocations JSON SOURCES sim/serve/test_serve_allocations.cpp LINK kvsim::report)
kvsim_test(schedulers SOURCES sim/serve/test_scheduler_cases.cpp sim/serve/test_scheduler_laws.cpp sim/serve/test_scheduler_orders.cpp sim/serve/test_scheduler_pressure.cpp LINK kvsim::serve)
kvsim_test(cluster SOURCES sim/serve/test_serve_cluster.cpp sim/serve/test_serve_cluster_apart.cpp
                          sim/serve/test_serve_cluster_links.cpp sim/serve/test_serve_cluster_pipeline.cpp
                          sim/serve/test_serve_cluster_drafts.cpp
           LINK kvsim::serve)
