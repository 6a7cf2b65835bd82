# The program as users meet it: exit statuses, streams, messages.
kvsim_test(cli SOURCES sim/test_cli.cpp sim/test_golden.cpp sim/test_places.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_cli kvsim)
# Scenarios typed as options.
kvsim_test(options_cli SOURCES sim/test_options_cli.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_options_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_options_cli kvsim)
kvsim_test(calibrate_log SOURCES sim/test_calibrate_log.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_calibrate_log PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_calibrate_log kvsim)
kvsim_test(hostile_inputs SOURCES sim/test_hostile_inputs.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_hostile_inputs PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_hostile_inputs kvsim)
kvsim_test(validate_kernels SOURCES sim/test_validate_kernels.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_validate_kernels PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_validate_kernels kvsim)
kvsim_test(explain SOURCES sim/test_explain.cpp sim/test_explain_intervals.cpp
  sim/test_explain_service.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_explain PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_explain kvsim)

# A processor that lacks what the build needs: the check alone, its questions answered with "no".
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_executable(test_old_cpu sim/old_cpu.cpp ${PROJECT_SOURCE_DIR}/sim/cli/process/cpu_check.cpp)
  target_include_directories(test_old_cpu PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_features(test_old_cpu PRIVATE cxx_std_20)
  target_compile_options(test_old_cpu PRIVATE -include ${CMAKE_CURRENT_SOURCE_DIR}/sim/old_cpu.hpp)
  target_compile_definitions(test_old_cpu PRIVATE KVSIM_ARCH_NAME="x86-64-v3")
  add_test(NAME "cli: a processor that is too old is told so before main"
           COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:test_old_cpu>
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/sim/old_cpu.cmake)
endif()

# What it says to people at a terminal and to their shells.
kvsim_test(terminal_cli SOURCES sim/test_terminal_cli.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_terminal_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_terminal_cli kvsim)
# What is on the figures that it draws.
kvsim_test(drawn_figures JSON SOURCES sim/test_drawn_figures.cpp sim/program.cpp LINK kvsim::report kvsim::json)
target_compile_definitions(test_drawn_figures PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_drawn_figures kvsim)
# Interrupted in the middle.
kvsim_test(interrupts SOURCES sim/test_interrupts.cpp sim/program.cpp LINK kvsim::json)
target_compile_definitions(test_interrupts PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_interrupts kvsim)
# Where there is no room to write.
kvsim_test(full_disk SOURCES sim/test_full_disk.cpp sim/program.cpp LINK fmt::fmt)
target_compile_definitions(test_full_disk PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_full_disk kvsim)
# Completions, typed at in their shells.
foreach(shell zsh fish)
  add_test(NAME "cli: completion in ${shell}"
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/sim/completion_shells.sh $<TARGET_FILE:kvsim> ${shell})
  set_tests_properties("cli: completion in ${shell}" PROPERTIES LABELS full TIMEOUT 600
                       SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED")
endforeach()
kvsim_bench(files SOURCES bench/bench_files.cpp LINK fmt::fmt)
target_compile_definitions(bench_files PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(bench_files kvsim)
