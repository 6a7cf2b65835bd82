kvsim_test(scenario JSON SOURCES sim/test_scenario.cpp sim/test_scenario_calibration.cpp sim/test_serve_scenario.cpp LINK kvsim::scenario)
