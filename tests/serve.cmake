kvsim_test(serve SOURCES sim/test_static_hbm.cpp sim/test_static_run.cpp sim/test_static_anchors.cpp sim/test_startup.cpp sim/test_stack_runs.cpp
                         sim/test_time_terms.cpp sim/test_intervals.cpp
                         sim/test_time_terms.cpp sim/test_compiled_point.cpp
           LINK kvsim::serve)

kvsim_bench(static SOURCES bench/bench_static.cpp LINK kvsim::serve)
kvsim_test(serving SOURCES sim/test_serve_laws.cpp sim/test_serve_cases.cpp sim/test_serve_memory.cpp sim/test_serve_reference.cpp sim/test_serve_schedulers.cpp support/heap.cpp
           LINK kvsim::serve)
kvsim_bench(serve SOURCES bench/bench_serve.cpp LINK kvsim::serve)
