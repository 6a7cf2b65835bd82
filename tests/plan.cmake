kvsim_test(plan JSON SOURCES sim/search/test_plan_range.cpp sim/search/test_plan_search.cpp sim/search/test_plan_static.cpp sim/search/test_plan_serve.cpp
           LINK kvsim::plan kvsim::report kvsim::sweep)
kvsim_bench(plan SOURCES bench/bench_plan.cpp LINK kvsim::plan kvsim::engine)
kvsim_test(plan_cli SOURCES sim/cli/test_plan_cli.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_plan_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_plan_cli kvsim)
