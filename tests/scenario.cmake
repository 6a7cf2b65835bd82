kvsim_test(scenario SOURCES sim/test_scenario.cpp sim/test_scenario_calibration.cpp LINK kvsim::scenario)
