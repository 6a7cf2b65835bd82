kvsim_test(cost SOURCES models/test_stack.cpp models/test_cost.cpp models/test_cost_compiled.cpp
           LINK kvsim::cost)
