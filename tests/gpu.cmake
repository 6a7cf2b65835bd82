kvsim_test(gpu SOURCES models/test_gpu.cpp LINK kvsim::gpu kvsim::units)
