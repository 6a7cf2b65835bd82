kvsim_test(availability SOURCES models/test_availability.cpp LINK kvsim::scenario)
kvsim_test(scenario JSON SOURCES sim/test_scenario.cpp sim/test_scenario_calibration.cpp sim/test_serve_scenario.cpp LINK kvsim::scenario)

# Files that claim to be larger than they are.
kvsim_test(claims JSON SOURCES sim/test_claims.cpp support/heap.cpp
           LINK kvsim::sweep kvsim::replay kvsim::validation kvsim::requests kvsim::json nlohmann_json::nlohmann_json)
