kvsim_test(sweep JSON SOURCES sim/search/test_sweep_plan.cpp sim/search/test_points_file.cpp sim/search/test_run_sweep.cpp
           LINK kvsim::sweep kvsim::report kvsim::json)
# The program, alone and under mpirun.
kvsim_test(sweep_cli SOURCES sim/cli/test_sweep_cli.cpp sim/cli/test_serve_folder.cpp sim/cli/program.cpp LINK kvsim::json kvsim::ranks)
target_compile_definitions(test_sweep_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_sweep_cli kvsim)

kvsim_bench(sweep SOURCES bench/bench_sweep.cpp LINK kvsim::sweep kvsim::engine)
