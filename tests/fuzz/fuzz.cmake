# kvsim_fuzz(NAME [SOURCES …] LINK … [KEPT_LINK …]): fuzz_NAME.cpp under libFuzzer if KVSIM_FUZZ is on (preset
# "asan"). In every build its kept inputs (kept/NAME) run as a test. kvsim_fuzzers builds all fuzz programs and only
# their dependencies. SOURCES: files of the program that are in no library instrumented for the fuzzer; the test of
# kept inputs takes them from KEPT_LINK if it is given.
if(KVSIM_FUZZ)
  add_custom_target(kvsim_fuzzers)
  # libFuzzer is guided by branches of parsers; instrumented arithmetic would only be slower.
  # clang rejects a precompiled header that was compiled with other options.
  foreach(library json traces requests llm scenario cost memory sweep validation)
    target_compile_options(kvsim_${library} PRIVATE -O1 -fsanitize=fuzzer-no-link)
    set_target_properties(kvsim_${library} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endforeach()
endif()
function(kvsim_fuzz_program TARGET)
  target_compile_features(${TARGET} PRIVATE cxx_std_20)
  target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${TARGET} PRIVATE kvsim_flags fmt::fmt ${ARGN})
endfunction()
function(kvsim_fuzz NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;KEPT_LINK" ${ARGN})
  set(here ${PROJECT_SOURCE_DIR}/tests/fuzz)
  set(sources ${here}/fuzz_${NAME}.cpp ${here}/as_file.cpp)
  foreach(source IN LISTS ARG_SOURCES)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/${source})
  endforeach()
  if(KVSIM_FUZZ)
    add_executable(fuzz_${NAME} ${sources})
    target_compile_options(fuzz_${NAME} PRIVATE -O1 -fsanitize=fuzzer-no-link)
    target_link_options(fuzz_${NAME} PRIVATE -fsanitize=fuzzer)
    set_target_properties(fuzz_${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    add_dependencies(kvsim_fuzzers fuzz_${NAME})
    kvsim_fuzz_program(fuzz_${NAME} ${ARG_LINK})
  endif()
  if(ARG_KEPT_LINK)
    set(sources ${here}/fuzz_${NAME}.cpp ${here}/as_file.cpp)
  endif()
  add_executable(kept_${NAME} ${sources} ${here}/run_kept.cpp)
  kvsim_fuzz_program(kept_${NAME} ${ARG_LINK} ${ARG_KEPT_LINK})
  kvsim_cold(kept_${NAME})
  kvsim_together(kept_${NAME} ${sources} ${here}/run_kept.cpp)
  add_test(NAME "fuzz: kept inputs of ${NAME} are answered" COMMAND kept_${NAME} ${here}/kept/${NAME})
endfunction()

kvsim_fuzz(safetensors LINK kvsim::traces)
kvsim_fuzz(scenario LINK kvsim::scenario nlohmann_json::nlohmann_json)
kvsim_fuzz(sweep LINK kvsim::sweep nlohmann_json::nlohmann_json)
kvsim_fuzz(config LINK kvsim::llm)
kvsim_fuzz(requests LINK kvsim::requests)
kvsim_fuzz(servegen LINK kvsim::requests)
kvsim_fuzz(calibration LINK kvsim::cost)
kvsim_fuzz(weights SOURCES models/methods/budget/head_table.cpp models/methods/merge/low_rank_weights.cpp
                           sim/replay/surrogate_file.cpp
           LINK kvsim::traces)
kvsim_fuzz(allocator LINK kvsim::validation)
kvsim_fuzz(tables SOURCES validation/device/profiler_csv.cpp LINK kvsim::validation)
kvsim_fuzz(log LINK kvsim::memory)
# Readers of results.
set(kvsim_words sim/report/text/text.cpp sim/cli/options/arguments.cpp sim/cli/explain/kept_lines.cpp)
kvsim_fuzz(results SOURCES sim/cli/explain/compare_results.cpp sim/cli/explain/explain_parts.cpp sim/cli/explain/explain_plan.cpp
                           sim/cli/explain/explain_replay.cpp
                           sim/cli/explain/explain_latency.cpp sim/cli/explain/explain_names.cpp sim/cli/explain/explain_rates.cpp sim/cli/explain/explain_result.cpp sim/cli/explain/explain_service.cpp
                           ${kvsim_words}
           LINK kvsim::json kvsim::batch kvsim::serve kvsim::replay nlohmann_json::nlohmann_json Boost::program_options KEPT_LINK kvsim_results_read)
kvsim_fuzz(figures SOURCES sim/cli/options/arguments.cpp sim/cli/explain/kept_lines.cpp
           LINK kvsim::report nlohmann_json::nlohmann_json Boost::program_options KEPT_LINK kvsim_results_read)
