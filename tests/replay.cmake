kvsim_test(replay SOURCES sim/test_replay.cpp LINK kvsim::replay)
