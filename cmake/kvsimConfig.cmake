# What find_package(kvsim) reads: the libraries as kvsim::NAME, and what they were built against.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(Eigen3 3.4)
find_dependency(nlohmann_json 3.11)
find_dependency(Boost 1.74 COMPONENTS context)
include(${CMAKE_CURRENT_LIST_DIR}/kvsimTargets.cmake)
