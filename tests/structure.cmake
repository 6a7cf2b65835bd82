# Includes, links and tables of contents of the documents, and package manifests.
kvsim_test(structure
  SOURCES documents/markdown.cpp documents/test_documents.cpp package/test_manifests.cpp support/test_scratch.cpp test_includes.cpp test_words.cpp
  LINK fmt::fmt kvsim::json nlohmann_json::nlohmann_json)
# ./kv installs the packages of its tests and fails on a skipped test that is not allowed.
add_test(NAME "structure: kv installs packages and judges skipped tests"
         COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/test_kv.sh ${PROJECT_SOURCE_DIR}/kv ${CMAKE_CURRENT_BINARY_DIR}/scratch/kv)
add_test(NAME "structure: a build by kv shows progress, and compiler output only if it fails"
         COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/kv_build.sh ${PROJECT_SOURCE_DIR}/kv
                 ${CMAKE_CURRENT_BINARY_DIR}/scratch/kv_build)
# Builds kvsim once more, in a copy of the tree.
kvsim_script_test("structure: the recipes of CONTRIBUTING.md touch as many files as they state" test_recipes.py LABELS full SERIAL
  ARGUMENTS ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/scratch/recipes)
set_tests_properties("structure: the recipes of CONTRIBUTING.md touch as many files as they state" PROPERTIES TIMEOUT 1800)
