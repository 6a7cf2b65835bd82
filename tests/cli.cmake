# The program as a user runs it: exit statuses, streams, messages, files.
kvsim_test(cli JSON
  SOURCES sim/cli/program.cpp sim/cli/test_calibrate_bench.cpp sim/cli/test_calibrate_log.cpp sim/cli/test_cli.cpp
          sim/cli/test_explain.cpp
          sim/cli/test_explain_intervals.cpp sim/cli/test_explain_service.cpp sim/cli/test_explorer.cpp
          sim/cli/test_full_disk.cpp sim/cli/test_golden.cpp sim/cli/test_hostile_inputs.cpp
          sim/cli/test_interrupts.cpp sim/cli/answers/test_launch_cli.cpp sim/cli/test_options_cli.cpp sim/cli/test_places.cpp
          sim/cli/test_plan_cli.cpp sim/cli/answers/test_questions_cli.cpp sim/cli/test_replay_cli.cpp sim/cli/test_requests_cli.cpp sim/cli/test_serve_folder.cpp
          sim/cli/test_sweep_cli.cpp sim/cli/test_terminal_cli.cpp sim/cli/test_validate_kernels.cpp
          sim/report/test_drawn_figures.cpp validation/test_validate_allocator.cpp
  LINK kvsim::explorer kvsim::explorer_page kvsim::json kvsim::ranks kvsim::report kvsim::requests)
target_compile_definitions(test_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>"
                           KVSIM_PYTHON="${KVSIM_PYTHON_EXECUTABLE}")
add_dependencies(test_cli kvsim kvsim-validate)

# A processor without features that the build needs: only the check, with all features reported as missing.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_executable(test_old_cpu sim/cli/old_cpu.cpp ${PROJECT_SOURCE_DIR}/sim/cli/process/cpu_check.cpp)
  target_include_directories(test_old_cpu PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_features(test_old_cpu PRIVATE cxx_std_20)
  target_compile_options(test_old_cpu PRIVATE -include ${CMAKE_CURRENT_SOURCE_DIR}/sim/cli/old_cpu.hpp)
  target_compile_definitions(test_old_cpu PRIVATE KVSIM_ARCH_NAME="x86-64-v3")
  add_test(NAME "cli: a processor that is too old is reported before main"
           COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:test_old_cpu>
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/sim/cli/old_cpu.cmake)
endif()

# Completions, typed in their shells.
foreach(shell zsh fish)
  add_test(NAME "cli: completion in ${shell}"
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/sim/cli/completion_shells.sh $<TARGET_FILE:kvsim> ${shell})
  set_tests_properties("cli: completion in ${shell}" PROPERTIES LABELS full TIMEOUT 600
                       SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED")
endforeach()
kvsim_bench(files SOURCES bench/bench_files.cpp LINK fmt::fmt)
target_compile_definitions(bench_files PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(bench_files kvsim)
