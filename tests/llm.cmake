kvsim_test(llm SOURCES models/test_llm.cpp LINK kvsim::llm)
