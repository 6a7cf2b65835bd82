kvsim_test(traces
  SOURCES traces/test_safetensors.cpp traces/test_trace.cpp traces/test_generate.cpp
          traces/test_check.cpp traces/test_convert.cpp traces/test_trace_model.cpp
  LINK kvsim::traces)
