kvsim_test(availability SOURCES models/catalogue/test_availability.cpp LINK kvsim::scenario)
kvsim_test(scenario JSON SOURCES sim/scenario/test_scenario.cpp sim/scenario/test_scenario_calibration.cpp sim/scenario/test_serve_scenario.cpp LINK kvsim::scenario)

# Files that claim to be larger than they are.
kvsim_test(claims JSON SOURCES sim/scenario/test_claims.cpp support/heap.cpp
           LINK kvsim::sweep kvsim::replay kvsim::validation kvsim::requests kvsim::json nlohmann_json::nlohmann_json)
