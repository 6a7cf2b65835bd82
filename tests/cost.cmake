kvsim_test(cost
  SOURCES models/cost/test_cost.cpp models/cost/test_cost_compiled.cpp models/cost/test_full_caches.cpp models/cost/test_hybrid_layers.cpp
          models/cost/test_host_rate.cpp models/cost/test_kernel_attention.cpp models/cost/test_kernel_products.cpp
          models/cost/test_kernel_mixers.cpp models/cost/test_kernel_spread.cpp models/cost/test_kernel_use.cpp models/cost/test_kernels_prefill.cpp
          models/cost/test_kernels_transfers.cpp models/cost/test_joint_attention.cpp models/cost/test_mixed.cpp models/cost/test_mixed_laws.cpp models/cost/test_prompt_part.cpp models/cost/test_dealt.cpp models/cost/test_split_prompt.cpp
          models/methods/test_streaming_heads.cpp support/heap.cpp
  LINK kvsim::cost kvsim::json kvsim::validation)
kvsim_bench(mixed SOURCES bench/bench_mixed.cpp LINK kvsim::cost)
