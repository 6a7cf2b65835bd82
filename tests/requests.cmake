kvsim_test(requests
  SOURCES traces/requests/test_readers.cpp traces/requests/test_bad_requests.cpp
          traces/requests/test_lengths.cpp traces/requests/test_generate_requests.cpp
          traces/requests/test_workload.cpp traces/requests/test_request_data.cpp
  LINK kvsim::requests nlohmann_json::nlohmann_json)
