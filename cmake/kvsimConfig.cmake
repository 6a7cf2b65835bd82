# Read by find_package(kvsim): the libraries as kvsim::NAME, and their dependencies.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(Eigen3 3.4)
find_dependency(nlohmann_json 3.11)
find_dependency(Boost 1.74 COMPONENTS context)
include(${CMAKE_CURRENT_LIST_DIR}/kvsimTargets.cmake)
