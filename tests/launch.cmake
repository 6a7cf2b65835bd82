# Engines' arguments, and the commands that start the simulated configuration.
kvsim_test(launch JSON
  SOURCES models/launch/test_engine_command.cpp sim/launch/test_launch.cpp
  LINK kvsim::launch kvsim::scenario kvsim::methods nlohmann_json::nlohmann_json)
