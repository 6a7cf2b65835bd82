kvsim_test(traces
  SOURCES traces/test_check.cpp traces/test_convert.cpp traces/test_generate.cpp traces/test_safetensors.cpp
          traces/test_trace.cpp traces/test_trace_model.cpp
          traces/requests/test_agents.cpp traces/requests/test_bad_requests.cpp traces/requests/test_generate_requests.cpp
          traces/requests/test_lengths.cpp traces/requests/test_readers.cpp
          traces/requests/test_request_data.cpp traces/requests/test_workload.cpp
  LINK kvsim::requests kvsim::traces nlohmann_json::nlohmann_json)
