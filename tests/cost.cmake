kvsim_test(cost SOURCES models/test_stack.cpp models/test_cost.cpp models/test_cost_compiled.cpp
           LINK kvsim::cost)
if(NOT TARGET kvsim_llm)
  target_sources(test_cost PRIVATE support/stand_in_catalogues.cpp)
endif()
