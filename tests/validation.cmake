kvsim_test(validation SOURCES validation/test_allocator_trace.cpp LINK kvsim::validation)

kvsim_test(e2e SOURCES validation/test_e2e.cpp LINK kvsim::e2e)

kvsim_test(validate_allocator SOURCES validation/test_validate_allocator.cpp sim/program.cpp
           LINK kvsim::json)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  set(Python3_EXECUTABLE "")  # it says NOTFOUND, which is no program
endif()
target_compile_definitions(test_validate_allocator PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>"
                           KVSIM_PYTHON="${Python3_EXECUTABLE}")
add_dependencies(test_validate_allocator kvsim)
kvsim_test(published
  SOURCES validation/test_published_text.cpp validation/test_published_rows.cpp
          validation/test_published_accuracy.cpp
  LINK kvsim::validation)

if(Python3_EXECUTABLE)
  add_test(NAME "validation: broken memory snapshots are refused"
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/validation/mutate_snapshots.py
                   ${PROJECT_SOURCE_DIR}/validation/snapshot_to_trace.py ${CMAKE_CURRENT_BINARY_DIR}/scratch/snapshots)
endif()

# The scripts of validation/torch without a GPU: against a fake allocator, and on a CPU where some
# Python has torch.
if(Python3_EXECUTABLE)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
  add_test(NAME "torch: allocator.py against a fake allocator"
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/validation/torch_allocator_test.py
                   $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
  set(kvsim_torch_python ${Python3_EXECUTABLE})
  foreach(candidate ${Python3_EXECUTABLE} /usr/bin/python3)
    execute_process(COMMAND ${candidate} -c "import torch" RESULT_VARIABLE no_torch
                    OUTPUT_QUIET ERROR_QUIET)
    if(no_torch EQUAL 0)
      set(kvsim_torch_python ${candidate})
      break()
    endif()
  endforeach()
  add_dependencies(test_validation kvsim_decode_sim)  # built with the tests, though never installed
  if(KVSIM_SANITIZE)
    add_test(NAME "torch: sdpa.py on a CPU" COMMAND ${CMAKE_COMMAND} -E echo
             "KVSIM-SKIPPED: a library with sanitizers needs an interpreter with them")
  else()
    add_test(NAME "torch: sdpa.py on a CPU"
             COMMAND ${kvsim_torch_python} ${CMAKE_CURRENT_SOURCE_DIR}/validation/torch_sdpa_test.py
                     $<TARGET_FILE:kvsim_decode_sim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
  endif()
  set_tests_properties("torch: sdpa.py on a CPU" PROPERTIES
                       SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" TIMEOUT 300)
endif()
