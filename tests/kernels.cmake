kvsim_test(kernels
  SOURCES kernels/test_bandwidth.cpp kernels/test_cuda_sim.cpp kernels/test_cuda_sim_faults.cpp
          kernels/test_decode_attention.cpp kernels/test_formats.cpp
          kernels/test_graph_traffic.cpp kernels/test_method_traffic.cpp
          kernels/test_select_traffic.cpp kernels/test_selection.cpp kernels/test_share_traffic.cpp
          kernels/test_store_traffic.cpp kernels/test_suite.cpp kernels/test_traffic_table.cpp
  LINK kvsim::cuda_sim kvsim::kernels_sim kvsim::cost Threads::Threads fmt::fmt)
kvsim_bench(cuda_sim SOURCES bench/bench_cuda_sim.cpp LINK kvsim::kernels_sim)
if(KVSIM_WITH_CUDA)
  add_executable(gpu_suite kernels/gpu_suite.cpp)
  target_include_directories(gpu_suite PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(gpu_suite PRIVATE kvsim::kernels)
  add_test(NAME "kernels: on a GPU" COMMAND gpu_suite)
  set_tests_properties("kernels: on a GPU" PROPERTIES LABELS gpu
                       SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" TIMEOUT 300)
endif()
