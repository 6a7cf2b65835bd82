# The program as users meet it: exit statuses, streams, messages.
kvsim_test(cli SOURCES sim/cli/test_cli.cpp sim/cli/test_golden.cpp sim/cli/test_places.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_cli kvsim)
# Scenarios typed as options.
kvsim_test(options_cli SOURCES sim/cli/test_options_cli.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_options_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_options_cli kvsim)
kvsim_test(calibrate_log SOURCES sim/cli/test_calibrate_log.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_calibrate_log PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_calibrate_log kvsim)
kvsim_test(hostile_inputs SOURCES sim/cli/test_hostile_inputs.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_hostile_inputs PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_hostile_inputs kvsim)
kvsim_test(validate_kernels SOURCES sim/cli/test_validate_kernels.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_validate_kernels PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_validate_kernels kvsim)
kvsim_test(explain SOURCES sim/cli/test_explain.cpp sim/cli/test_explain_intervals.cpp
  sim/cli/test_explain_service.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_explain PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_explain kvsim)

# A processor that lacks what the build needs: the check alone, its questions answered with "no".
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_executable(test_old_cpu sim/cli/old_cpu.cpp ${PROJECT_SOURCE_DIR}/sim/cli/process/cpu_check.cpp)
  target_include_directories(test_old_cpu PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_features(test_old_cpu PRIVATE cxx_std_20)
  target_compile_options(test_old_cpu PRIVATE -include ${CMAKE_CURRENT_SOURCE_DIR}/sim/cli/old_cpu.hpp)
  target_compile_definitions(test_old_cpu PRIVATE KVSIM_ARCH_NAME="x86-64-v3")
  add_test(NAME "cli: a processor that is too old is told so before main"
           COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:test_old_cpu>
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/sim/cli/old_cpu.cmake)
endif()

# What it says to people at a terminal and to their shells.
kvsim_test(terminal_cli SOURCES sim/cli/test_terminal_cli.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_terminal_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_terminal_cli kvsim)
# What is on the figures that it draws.
kvsim_test(drawn_figures JSON SOURCES sim/report/test_drawn_figures.cpp sim/cli/program.cpp LINK kvsim::report kvsim::json)
target_compile_definitions(test_drawn_figures PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_drawn_figures kvsim)
# Interrupted in the middle.
kvsim_test(interrupts SOURCES sim/cli/test_interrupts.cpp sim/cli/program.cpp LINK kvsim::json)
target_compile_definitions(test_interrupts PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_interrupts kvsim)
# Where there is no room to write.
kvsim_test(full_disk SOURCES sim/cli/test_full_disk.cpp sim/cli/program.cpp LINK fmt::fmt)
target_compile_definitions(test_full_disk PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_full_disk kvsim)
# Completions, typed at in their shells.
foreach(shell zsh fish)
  add_test(NAME "cli: completion in ${shell}"
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/sim/cli/completion_shells.sh $<TARGET_FILE:kvsim> ${shell})
  set_tests_properties("cli: completion in ${shell}" PROPERTIES LABELS full TIMEOUT 600
                       SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED")
endforeach()
kvsim_bench(files SOURCES bench/bench_files.cpp LINK fmt::fmt)
target_compile_definitions(bench_files PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(bench_files kvsim)
