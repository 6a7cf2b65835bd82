kvsim_test(requests
  SOURCES traces/requests/test_readers.cpp traces/requests/test_bad_requests.cpp
          traces/requests/test_lengths.cpp traces/requests/test_generate_requests.cpp
          traces/requests/test_workload.cpp traces/requests/test_request_data.cpp
  LINK kvsim::requests nlohmann_json::nlohmann_json)
kvsim_test(requests_cli SOURCES sim/cli/test_requests_cli.cpp sim/cli/program.cpp LINK kvsim::requests kvsim::json)
target_compile_definitions(test_requests_cli PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_requests_cli kvsim)
