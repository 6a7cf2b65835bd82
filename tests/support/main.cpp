#define DOCTEST_CONFIG_IMPLEMENT
#include <filesystem>
#include <functional>
#include <string>

#include <doctest/doctest.h>

#include "tests/support/scratch.hpp"

namespace {

std::filesystem::path scratch;

unsigned passing_filters = 0;

/// Counts the test cases that pass a run's filters; prints nothing.
struct Count : doctest::IReporter {
  explicit Count(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& run) override {
    passing_filters = run.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
DOCTEST_REGISTER_LISTENER("count", 1, Count);

}  // namespace

const std::filesystem::path& kvsim::test::scratch_folder() {
  std::filesystem::create_directories(scratch);
  return scratch;
}

/// Like doctest's main, except that a run without a test case fails: ctest calls each case by name.
/// A name that matches nothing (one semicolon is enough) would otherwise pass.
int main(int argc, char** argv) {
  // Next to the program: one folder per selection of its cases.
  std::string chosen;
  for (int i = 1; i < argc; ++i) chosen += argv[i];
  const std::filesystem::path program{argv[0]};
  scratch = std::filesystem::absolute(program).parent_path() / "scratch" / program.filename() /
            std::to_string(std::hash<std::string>{}(chosen));
  doctest::Context context{argc, argv};
  const int status = context.run();
  if (context.shouldExit()) return status;  // a query
  if (status == 0 && passing_filters == 0) return 1;
  return status;
}
