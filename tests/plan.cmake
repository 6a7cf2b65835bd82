kvsim_test(plan JSON SOURCES sim/test_plan_range.cpp sim/test_plan_search.cpp sim/test_plan_static.cpp sim/test_plan_serve.cpp
           LINK kvsim::plan kvsim::report kvsim::sweep)
kvsim_bench(plan SOURCES bench/bench_plan.cpp LINK kvsim::plan kvsim::engine)
kvsim_test(plan_cli SOURCES sim/test_plan_cli.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_plan_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_plan_cli kvsim)
