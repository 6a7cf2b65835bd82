kvsim_test(cost SOURCES models/test_engine_defaults.cpp models/test_stack.cpp models/test_cost.cpp models/test_cost_compiled.cpp
                        models/test_full_caches.cpp
           LINK kvsim::cost)
kvsim_test(kernel_use SOURCES models/test_kernel_use.cpp LINK kvsim::cost)
kvsim_test(kernel_attention SOURCES models/test_kernel_attention.cpp LINK kvsim::cost)
kvsim_test(kernels_prefill SOURCES models/test_kernels_prefill.cpp
                                   models/test_kernels_transfers.cpp models/test_host_rate.cpp
           LINK kvsim::cost kvsim::validation)
kvsim_test(mixed SOURCES models/test_mixed.cpp models/test_mixed_laws.cpp models/test_streaming_heads.cpp
                         support/heap.cpp
           LINK kvsim::cost)
kvsim_bench(mixed SOURCES bench/bench_mixed.cpp LINK kvsim::cost)
# What a GPU's kernels reached, written by the program's own writer and read back.
kvsim_test(device_calibration JSON
  SOURCES models/test_device_calibration.cpp ../sim/cli/validate/device_report.cpp ../sim/cli/validate/kernels_json.cpp
          ../kernels/device/device_state.cpp ../kernels/suite/measure_none.cpp
  LINK kvsim::cost kvsim::json ${CMAKE_DL_LIBS})
kvsim_test(kernels_report JSON SOURCES sim/test_kernels_report.cpp ../sim/cli/validate/kernels_report.cpp
                                  ../sim/cli/validate/kernels_counters.cpp ../sim/cli/validate/kernels_json.cpp
           LINK kvsim::report kvsim::device_runs kvsim::units)
