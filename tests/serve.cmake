kvsim_test(serve SOURCES sim/test_static_hbm.cpp sim/test_static_run.cpp sim/test_static_anchors.cpp
           LINK kvsim::serve)

# Not a test: prints microseconds per static point.
add_executable(bench_static bench/bench_static.cpp)
target_compile_features(bench_static PRIVATE cxx_std_20)
target_include_directories(bench_static PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(bench_static PRIVATE kvsim_flags kvsim::serve)
