kvsim_test(cost SOURCES models/catalogue/test_engine_defaults.cpp models/catalogue/test_stack.cpp models/cost/test_cost.cpp models/cost/test_cost_compiled.cpp
                        models/cost/test_full_caches.cpp
           LINK kvsim::cost)
kvsim_test(kernel_use SOURCES models/cost/test_kernel_use.cpp LINK kvsim::cost)
kvsim_test(kernel_attention SOURCES models/cost/test_kernel_attention.cpp LINK kvsim::cost)
kvsim_test(kernels_prefill SOURCES models/cost/test_kernels_prefill.cpp
                                   models/cost/test_kernels_transfers.cpp models/cost/test_host_rate.cpp
           LINK kvsim::cost kvsim::validation)
kvsim_test(mixed SOURCES models/cost/test_mixed.cpp models/cost/test_mixed_laws.cpp models/methods/test_streaming_heads.cpp
                         support/heap.cpp
           LINK kvsim::cost)
kvsim_bench(mixed SOURCES bench/bench_mixed.cpp LINK kvsim::cost)
# What a GPU's kernels reached, written by the program's own writer and read back.
kvsim_test(device_calibration JSON
  SOURCES models/cost/test_device_calibration.cpp ../sim/cli/validate/device_report.cpp ../sim/cli/validate/kernels_json.cpp
          ../kernels/device/device_state.cpp ../kernels/suite/measure_none.cpp
  LINK kvsim::cost kvsim::json ${CMAKE_DL_LIBS})
kvsim_test(kernels_report JSON SOURCES sim/cli/test_kernels_report.cpp ../sim/cli/validate/kernels_report.cpp
                                  ../sim/cli/validate/kernels_counters.cpp ../sim/cli/validate/kernels_json.cpp
           LINK kvsim::report kvsim::device_runs kvsim::units)
