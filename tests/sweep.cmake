kvsim_test(sweep JSON SOURCES sim/test_sweep_plan.cpp sim/test_points_file.cpp sim/test_run_sweep.cpp
           LINK kvsim::sweep kvsim::report kvsim::json)
# The program, alone and under mpirun.
kvsim_test(sweep_cli SOURCES sim/test_sweep_cli.cpp sim/test_serve_folder.cpp sim/program.cpp LINK kvsim::json kvsim::ranks)
target_compile_definitions(test_sweep_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_sweep_cli kvsim)

kvsim_bench(sweep SOURCES bench/bench_sweep.cpp LINK kvsim::sweep kvsim::engine)
