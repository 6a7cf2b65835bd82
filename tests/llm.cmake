kvsim_test(llm SOURCES models/catalogue/test_llm.cpp models/catalogue/test_quantization.cpp models/catalogue/test_weight_format.cpp LINK kvsim::llm)
