kvsim_test(validation SOURCES validation/test_allocator_trace.cpp LINK kvsim::validation)

kvsim_test(e2e SOURCES validation/test_e2e.cpp LINK kvsim::e2e)

kvsim_test(validate_allocator SOURCES validation/test_validate_allocator.cpp sim/cli/program.cpp
           LINK kvsim::json)
target_compile_definitions(test_validate_allocator PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>"
                           KVSIM_PYTHON="${KVSIM_PYTHON_EXECUTABLE}")
add_dependencies(test_validate_allocator kvsim)
kvsim_test(published
  SOURCES validation/test_published_text.cpp validation/test_published_rows.cpp
          validation/test_published_accuracy.cpp
  LINK kvsim::validation)

kvsim_script_test("validation: broken memory snapshots are refused" validation/mutate_snapshots.py
  ARGUMENTS ${PROJECT_SOURCE_DIR}/validation/snapshot_to_trace.py ${CMAKE_CURRENT_BINARY_DIR}/scratch/snapshots)

# The scripts of validation/torch without a GPU: against a fake allocator, and on a CPU with PyTorch,
# which ./kv test-full installs.
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
kvsim_script_test("torch: allocator.py against a fake allocator" validation/torch_allocator_test.py
  ARGUMENTS $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
add_dependencies(test_validation kvsim_decode_sim)  # built with the tests, though never installed
if(NOT KVSIM_SANITIZE)  # a library with sanitizers needs an interpreter with them
  kvsim_script_test("torch: sdpa.py on a CPU" validation/torch_sdpa_test.py LABELS full
    ARGUMENTS $<TARGET_FILE:kvsim_decode_sim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
endif()
