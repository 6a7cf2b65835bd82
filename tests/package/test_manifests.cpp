// The package lists that this project keeps in several places are equal.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace {

std::string text_of(const std::string& name) {
  std::ifstream in{std::string{KVSIM_SOURCE_DIR} + "/" + name};
  REQUIRE_MESSAGE(in, name);
  return {std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
}

/// The words of `text` between `from` and the next `to`.
std::set<std::string> words_between(const std::string& text, const std::string& from,
                                    const std::string& to) {
  const std::size_t start = text.find(from);
  REQUIRE(start != std::string::npos);
  const std::size_t begin = start + from.size();
  std::istringstream in{text.substr(begin, text.find(to, begin) - begin)};
  std::set<std::string> words;
  for (std::string word; in >> word;) {
    if (word != "\\") words.insert(word);
  }
  return words;
}

TEST_CASE("the script, the README and the container install the same build packages") {
  const auto script = words_between(text_of("kv"), "REQUIRED=(", ")");
  const auto readme = words_between(text_of("README.md"), "apt-get install g++", "apt-get");
  auto container = words_between(text_of("Dockerfile"), "--no-install-recommends \\\n", "COPY");
  CHECK(script.size() > 8);
  std::set<std::string> expected = script;
  expected.erase("g++");
  CHECK(readme == expected);
  // The container does not run tests.
  expected.insert("g++");
  expected.erase("doctest-dev");
  CHECK(container == expected);
}

TEST_CASE("vcpkg's manifest has the packages that CMake requires, and this version") {
  const auto manifest = nlohmann::json::parse(text_of("vcpkg.json"));
  std::set<std::string> names;
  for (const auto& name : manifest.at("dependencies")) names.insert(name.get<std::string>());
  for (const auto& [key, feature] : manifest.at("features").items()) {
    for (const auto& name : feature.at("dependencies")) names.insert(name.get<std::string>());
  }
  for (const char* needed : {"boost-context", "boost-graph", "boost-program-options", "eigen3",
                             "fmt", "nlohmann-json", "doctest", "boost-mpi"}) {
    CHECK_MESSAGE(names.count(needed) == 1, needed);
  }
  const std::string cmake = text_of("CMakeLists.txt");
  CHECK(cmake.find("VERSION " + manifest.at("version").get<std::string>()) != std::string::npos);
}

TEST_CASE(
    "the recipes of Homebrew and conda have this version, the options of CMake and the workflow's "
    "commands exist") {
  const std::string cmake = text_of("CMakeLists.txt");
  const std::string formula = text_of("cmake/packaging/kvsim.rb");
  const std::string recipe = text_of("cmake/packaging/conda/meta.yaml");
  const std::size_t at = cmake.find("VERSION ", cmake.find("project(kvsim")) + 8;
  const std::string version = cmake.substr(at, cmake.find_first_not_of("0123456789.", at) - at);
  CHECK(formula.find("version \"" + version + "\"") != std::string::npos);
  CHECK(formula.find("kvsim-" + version + ".tar.gz") != std::string::npos);
  CHECK(recipe.find("version: \"" + version + "\"") != std::string::npos);
  for (const std::string& text : {formula, text_of("cmake/packaging/conda/build.sh")}) {
    for (const char* option : {"-DKVSIM_CUDA=OFF", "-DKVSIM_MPI=OFF", "-DKVSIM_PYTHON=OFF"}) {
      CHECK_MESSAGE(text.find(option) != std::string::npos, option);
    }
  }
  const std::string workflow = text_of(".github/workflows/ci.yml");
  const std::string script = text_of("kv");
  for (const char* command : {"test", "release", "explorer"}) {
    CHECK(workflow.find(std::string{"./kv "} + command) != std::string::npos);
    CHECK(script.find(std::string{"\n  "} + command + ") cmd_") != std::string::npos);
  }
  CHECK(workflow.find("secrets.") == std::string::npos);
}

}  // namespace
