kvsim_test(gpu SOURCES models/catalogue/test_gpu.cpp LINK kvsim::gpu kvsim::units)
