// Counters in the format of Nsight Compute. The tables are hand-written according to its
// documentation, not printed by a profiler.

#include <string>
#include <utility>
#include <vector>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "validation/device/profiler_csv.hpp"

namespace kvsim {
namespace {

using test::rel;

constexpr const char* kHeader =
    R"("ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value")"
    "\n";

std::string line(int id, const std::string& kernel, const std::string& metric,
                 const std::string& unit, const std::string& value) {
  std::string out;
  for (const std::string& cell :
       {std::to_string(id), std::string{"4711"}, std::string{"kvsim"}, std::string{"127.0.0.1"},
        kernel, std::string{"1"}, std::string{"7"}, std::string{"(256, 1, 1)"},
        std::string{"(2112, 1, 1)"}, std::string{"0"}, std::string{"9.0"},
        std::string{"Command line profiler metrics"}, metric, unit, value}) {
    out += (out.empty() ? "\"" : ",\"") + cell + "\"";
  }
  return out + "\n";
}

const std::string kRead = "dram__bytes_read.sum";
const std::string kWritten = "dram__bytes_write.sum";

/// Two launches, with the profiler's messages before and after.
std::string sample() {
  return "==PROF== Connected to process 4711 (/usr/bin/kvsim)\n"
         "==PROF== Profiling \"read_kernel\" - 0: 0%....50%....100% - 1 pass\n" +
         std::string{kHeader} +
         line(0, "read_kernel(long, Span<const float>, Span<float>)", kRead, "byte",
              "268,435,456") +
         line(0, "read_kernel(long, Span<const float>, Span<float>)", kWritten, "byte", "8,448") +
         line(1, "copy_kernel", kWritten, "Mbyte", "256.5") +
         line(1, "copy_kernel", kRead, "Gbyte", "1.25") +
         line(1, "copy_kernel", "gpu__time_duration.sum", "nsecond", "81,920") +
         "==PROF== Disconnected from process 4711\n";
}

std::string complaint(const std::string& text) {
  try {
    (void)read_profiler_csv(text, "ncu.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST_CASE("profiler: bytes of each launch in any order, unit and grouping of digits") {
  const auto rows = read_profiler_csv(sample(), "ncu.csv");
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].kernel == "read_kernel(long, Span<const float>, Span<float>)");
  CHECK(rows[0].dram_read == 268'435'456);
  CHECK(rows[0].dram_written == 8448);
  CHECK(rows[1].kernel == "copy_kernel");
  CHECK(rows[1].dram_read == rel(1.25e9));
  CHECK(rows[1].dram_written == rel(256.5e6));
}

TEST_CASE("profiler: a broken table is refused by place") {
  CHECK(complaint("").find("ncu.csv") != std::string::npos);
  CHECK(complaint("==PROF== No kernels were profiled.\n").find("ncu.csv") != std::string::npos);
  const auto with = [](const std::string& unit, const std::string& value) {
    return std::string{kHeader} + line(0, "k", kRead, unit, value) +
           line(0, "k", kWritten, "byte", "1");
  };
  CHECK(complaint(with("byte", "1")) == "none");
  CHECK(complaint(with("sector", "1")) ==
        "ncu.csv:2: Metric Unit: expected byte, Kbyte, Mbyte, Gbyte or Tbyte, got \"sector\"");
  for (const char* value : {"", "n/a", "-1", "1e400", "nan", "12 MB", "1.2.3"}) {
    INFO(std::string{value});
    CHECK(complaint(with("byte", value)).find("expected a number of bytes") != std::string::npos);
  }
  // Line numbers include the profiler's messages.
  CHECK(complaint("==PROF== one\n==PROF== two\n" + with("byte", "x")).find("ncu.csv:4:") == 0);
  const std::string once = kHeader + line(0, "k", kRead, "byte", "1");
  CHECK(complaint(once).find(kWritten) != std::string::npos);
  CHECK(complaint(once + line(0, "k", kRead, "byte", "1")).find("once") != std::string::npos);
  CHECK(complaint(std::string{kHeader} + line(0, "k", "sm__cycles.sum", "cycle", "1"))
            .find("neither") != std::string::npos);
  CHECK(complaint("\"ID\",\"Kernel Name\"\n\"0\",\"k\"\n").find("Metric Name") !=
        std::string::npos);
  CHECK(complaint(std::string{kHeader} + "\"0\",\"4711\"\n") != "none");
  const std::string open = std::string{kHeader} + "\"0";
  CHECK(complaint(open) != "none");
}

TEST_CASE("profiler: the reason for missing counters in a few words") {
  CHECK(profiler_problem(sample()).empty());
  CHECK(profiler_problem(
            "==PROF== Connected to process 4711\n"
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.\n") ==
        "counters not permitted: ERR_NVGPUCTRPERM");
  CHECK(profiler_problem("==ERROR== The application returned an error code (2).  \n") ==
        "the profiler says: The application returned an error code (2).");
}

TEST_CASE("profiler: a case has the counters of its launches one after another") {
  const std::vector<LaunchCounters> rows{{"split", 100, 10}, {"combine", 20, 2}, {"copy", 7, 7}};
  const auto cases = counters_by_case(rows, {2, 1}, "ncu.csv");
  REQUIRE(cases.size() == 2);
  CHECK(cases[0].kernel == "split");
  CHECK(cases[0].dram_read == 120);
  CHECK(cases[0].dram_written == 12);
  CHECK(cases[1].dram_read == 7);
  CHECK_THROWS_AS((void)counters_by_case(rows, {2, 2}, "ncu.csv"), InputError);
  CHECK_THROWS_AS((void)counters_by_case(rows, {2}, "ncu.csv"), InputError);
}

}  // namespace
}  // namespace kvsim
