kvsim_test(replay
  SOURCES sim/replay/test_all_methods.cpp sim/replay/test_blocks.cpp sim/replay/test_marks.cpp sim/replay/test_paged_replay.cpp sim/replay/test_replay.cpp
          sim/replay/test_checkpoint.cpp sim/replay/test_closed_loop.cpp sim/replay/test_replay_laws.cpp sim/replay/test_sample.cpp sim/replay/test_step_sample.cpp
  LINK kvsim::decoder kvsim::replay kvsim::report kvsim::run)
kvsim_bench(replay SOURCES bench/bench_replay.cpp LINK kvsim::replay Eigen3::Eigen nlohmann_json::nlohmann_json)
