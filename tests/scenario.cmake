kvsim_test(scenario SOURCES sim/test_scenario.cpp LINK kvsim::scenario)
