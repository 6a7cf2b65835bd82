kvsim_test(plan SOURCES sim/test_plan_search.cpp sim/test_plan_static.cpp sim/test_plan_serve.cpp
           LINK kvsim::plan kvsim::report kvsim::sweep)
kvsim_bench(plan SOURCES bench/bench_plan.cpp LINK kvsim::plan kvsim::engine)
