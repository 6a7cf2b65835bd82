#define DOCTEST_CONFIG_IMPLEMENT
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include <doctest/doctest.h>

#include "tests/support/scratch.hpp"

namespace {

/// Parent folder of all processes of this program, and the folder of this process; empty until
/// first used.
std::filesystem::path scratch_parent, scratch;

const std::filesystem::path& make_scratch() {
  std::filesystem::create_directories(scratch_parent);
  constexpr std::size_t kRandomLetters = 6;
  std::string name = (scratch_parent / std::string(kRandomLetters, 'X')).string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::system_error{errno, std::generic_category(), name};
  }
  scratch = name;
  return scratch;
}

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
  static const std::filesystem::path& made = make_scratch();  // once, in any thread
  return made;
}

/// Like doctest's main, except that a run without a test case fails: ctest calls each case by name.
/// A name that matches nothing (one semicolon is enough) would otherwise pass.
int main(int argc, char** argv) {
  const std::filesystem::path program{argv[0]};
  scratch_parent =
      std::filesystem::absolute(program).parent_path() / "scratch" / program.filename();
  doctest::Context context{argc, argv};
  const int status = context.run();
  if (context.shouldExit()) return status;  // a query
  if (status == 0 && passing_filters == 0) return 1;
  // Files of a failed run are kept for inspection.
  std::error_code ignored;
  if (status == 0 && !scratch.empty()) std::filesystem::remove_all(scratch, ignored);
  return status;
}
