# Readers of timings and published values, fits of forms, choice of calibrations; rates of a GPU's kernels, written by
# the program and read back.
kvsim_test(validation JSON
  SOURCES models/cost/test_device_calibration.cpp sim/cli/test_kernels_report.cpp
          validation/test_allocator_trace.cpp validation/test_apart.cpp validation/test_attention_accuracy.cpp
          validation/test_csv_table.cpp validation/test_e2e.cpp validation/test_fit.cpp
          validation/test_kernel_accuracy.cpp validation/test_kernel_library.cpp
          validation/test_measured_rows.cpp validation/test_profiler_csv.cpp
          validation/test_published_accuracy.cpp validation/test_published_rows.cpp
          validation/test_published_text.cpp validation/test_residuals.cpp
          validation/test_served_lengths.cpp validation/test_served_runs.cpp
          validation/test_served_score.cpp
          ../kernels/device/device_state.cpp ../kernels/suite/measure_none.cpp
          ../sim/cli/validate/device_report.cpp ../sim/cli/validate/kernels_counters.cpp
          ../sim/cli/validate/kernels_json.cpp ../sim/cli/validate/kernels_report.cpp
          ../sim/cli/validate/served/served_report.cpp
  LINK kvsim::cost kvsim::device_runs kvsim::e2e kvsim::json kvsim::report kvsim::units kvsim::validation
       ${CMAKE_DL_LIBS})

kvsim_script_test("validation: broken memory snapshots are refused" validation/mutate_snapshots.py
  ARGUMENTS ${PROJECT_SOURCE_DIR}/validation/snapshot_to_trace.py ${CMAKE_CURRENT_BINARY_DIR}/scratch/snapshots)

kvsim_script_test("validation: what static gates of kernels read in PTX" validation/kernel_gates_test.py)

# The scripts of validation/torch without a GPU: with a fake allocator, and on a CPU with PyTorch, which ./kv
# test-full installs.
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
kvsim_script_test("torch: allocator.py against a fake allocator" validation/torch_allocator_test.py
  ARGUMENTS $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
add_dependencies(test_validation kvsim_decode_sim)  # built with the tests, but never installed
if(NOT KVSIM_SANITIZE)  # a library with sanitizers needs an interpreter with them
  kvsim_script_test("torch: sdpa.py on a CPU" validation/torch_sdpa_test.py LABELS full
    ARGUMENTS $<TARGET_FILE:kvsim_decode_sim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/torch)
endif()
