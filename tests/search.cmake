# Scenario files, and the searches over them.
kvsim_test(search JSON
  SOURCES models/catalogue/test_availability.cpp
          sim/scenario/test_claims.cpp sim/scenario/test_repeated_values.cpp sim/scenario/test_scenario.cpp sim/scenario/test_scenario_calibration.cpp
          sim/scenario/test_serve_scenario.cpp
          sim/search/test_plan_layouts.cpp sim/search/test_plan_range.cpp sim/search/test_plan_search.cpp sim/search/test_plan_serve.cpp
          sim/search/test_plan_static.cpp sim/search/test_points_file.cpp sim/search/test_run_sweep.cpp
          sim/search/test_sweep_plan.cpp support/heap.cpp
  LINK kvsim::plan kvsim::report kvsim::sweep kvsim::scenario kvsim::replay kvsim::validation kvsim::requests
       kvsim::json nlohmann_json::nlohmann_json)
kvsim_bench(plan SOURCES bench/bench_plan.cpp LINK kvsim::plan kvsim::engine)
kvsim_bench(sweep SOURCES bench/bench_sweep.cpp LINK kvsim::sweep kvsim::engine)
