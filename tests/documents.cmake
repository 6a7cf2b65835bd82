# The commands of documents, run one by one in ./kv test-full.
add_executable(run_commands documents/run_commands.cpp documents/markdown.cpp)
target_compile_features(run_commands PRIVATE cxx_std_20)
target_include_directories(run_commands PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(run_commands PRIVATE KVSIM_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                           KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
target_link_libraries(run_commands PRIVATE kvsim_flags fmt::fmt)
add_dependencies(run_commands kvsim)
file(GLOB kvsim_documents CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md ${PROJECT_SOURCE_DIR}/docs/*.md
     ${PROJECT_SOURCE_DIR}/docs/*/*.md)
foreach(document IN LISTS kvsim_documents)
  string(MAKE_C_IDENTIFIER ${document} scratch)
  add_test(NAME "documents: every command of ${document}"
           COMMAND run_commands ${PROJECT_SOURCE_DIR}/${document} ${CMAKE_CURRENT_BINARY_DIR}/scratch/${scratch})
  set_tests_properties("documents: every command of ${document}" PROPERTIES LABELS full TIMEOUT 900)
endforeach()
# Python blocks of each page that has some; a page with missing requirements reports them.
foreach(document IN LISTS kvsim_documents)
  file(STRINGS ${PROJECT_SOURCE_DIR}/${document} kvsim_blocks REGEX "^```python$")
  if(kvsim_blocks)
    string(MAKE_C_IDENTIFIER python_${document} scratch)
    kvsim_script_test("documents: blocks of Python of ${document}" documents/run_python.py LABELS full
      ARGUMENTS $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/${scratch} ${PROJECT_SOURCE_DIR}
                ${CMAKE_BINARY_DIR}/python ${document})
  endif()
endforeach()
find_program(MKDOCS_PROGRAM mkdocs)
if(MKDOCS_PROGRAM)
  add_test(NAME "documents: the site builds without a warning"
           COMMAND ${MKDOCS_PROGRAM} build --quiet --strict --config-file ${PROJECT_SOURCE_DIR}/mkdocs.yml
                   --site-dir ${CMAKE_CURRENT_BINARY_DIR}/scratch/site)
else()
  kvsim_skipped_test("documents: the site builds without a warning" "mkdocs is not installed")
endif()
set_property(TEST "documents: the site builds without a warning" APPEND PROPERTY LABELS full)
