kvsim_test(traces SOURCES traces/test_safetensors.cpp traces/test_trace.cpp LINK kvsim::traces)
