kvsim_test(llm SOURCES models/test_llm.cpp models/test_quantization.cpp models/test_weight_format.cpp LINK kvsim::llm)
