// Output and figures of `kvsim validate kernels --device cuda`. Every number is made up: no GPU was
// measured.

#include <filesystem>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/validate/kernels_report.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

KernelsScore made_up() {
  KernelsScore score{.device = "NVIDIA Made Up", .driver = "13.0"};
  const auto add = [&](const char* name, const char* shape, double mebibytes, double rate,
                       double predicted) {
    kernels::KernelResult r;
    r.name = name;
    r.family = "elementwise";
    r.shape = shape;
    r.dtype = "bf16";
    r.allowed = 0.01;
    r.error = 0.002;
    const double bytes = mebibytes * 1048576;
    r.model = {Bytes{static_cast<std::int64_t>(bytes)}, Bytes{0}};
    r.timing =
        kernels::KernelTiming{.median_us = bytes / rate / 1e3, .spread = 0.01, .samples = 25};
    score.results.push_back(r);
    score.predicted_us.push_back(bytes / predicted / 1e3);
  };
  add("stream_read", "4 MiB", 4, 900, 3000);
  add("stream_read", "1024 MiB", 1024, 3000, 3300);
  add("decode_attention", "batch 16, heads 32/8x128, 8192 entries", 512, 2700, 3300);
  add("gather_entries", "256 rows of 16384, keeps 3277", 200, 2200, 3300);
  kernels::KernelResult skipped;
  skipped.name = "cublaslt";
  skipped.dtype = "bf16";
  skipped.skipped = "libcublasLt was not found, or does not answer";
  score.results.push_back(skipped);
  score.predicted_us.push_back(1);
  return score;
}

TEST_CASE("kernels of a GPU: times, predictions, counters and skipped cases in 80 columns") {
  KernelsScore score = made_up();
  CHECK(kernels_text(score, false, 80).find("DRAM") == std::string::npos);
  score.dram.resize(score.results.size());
  score.dram[2] = DramBytes{.read = 400.0 * 1048576, .written = 12.0 * 1048576};
  const std::string text = kernels_text(score, false, 80);
  INFO(text);
  CHECK(text.find("DRAM") != std::string::npos);
  CHECK(text.find("  80\n") != std::string::npos);  // 412 of 512 MiB
  CHECK(text.find("skipped cublaslt, bf16: libcublasLt was not found") != std::string::npos);
  CHECK(text.find("+") == std::string::npos);
  CHECK(text.find("-18.2") != std::string::npos);  // 2700 / 3300 - 1
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    INFO(text.substr(begin, end - begin));
    CHECK(end - begin <= 84);  // numbers are never truncated
    begin = end + 1;
  }
}

TEST_CASE("kernels of a GPU: a profiler's launches become the bytes of their cases") {
  KernelsScore score = made_up();
  KernelsScore profiled;  // output of the run under the profiler: only the large cases
  profiled.results = {score.results[1], score.results[2]};
  profiled.results[1].model.launches = 2;
  const std::string header = "ID,Kernel Name,Metric Name,Metric Unit,Metric Value\n";
  const auto launch = [](int id, const char* read, const char* written) {
    const std::string begin = fmt::format("{},k,dram__bytes_", id);
    return fmt::format("{0}read.sum,byte,\"{1}\"\n{0}write.sum,byte,{2}\n", begin, read, written);
  };
  const std::string csv =
      header + launch(0, "1,000", "1") + launch(1, "200", "20") + launch(2, "3,000", "300");
  add_counters(score, kernels_json(profiled).dump(), csv);
  REQUIRE(score.dram.size() == score.results.size());
  CHECK_FALSE(score.dram[0]);
  REQUIRE(score.dram[1]);
  CHECK(score.dram[1]->read == 1000);
  CHECK(score.dram[1]->written == 1);
  REQUIRE(score.dram[2]);
  CHECK(score.dram[2]->read == 3200);
  CHECK(score.dram[2]->written == 320);
  CHECK_FALSE(score.dram[3]);
  CHECK(kernels_json(score).at("kernels")[2].at("dram").at("read") == 3200);
  KernelsScore other = made_up();
  CHECK_THROWS_AS(add_counters(other, kernels_json(profiled).dump(), header + launch(0, "1", "1")),
                  InputError);
}

TEST_CASE("kernels of a GPU: the figure has each kernel's largest case above its prediction") {
  const auto figures = kernels_figures(made_up());
  REQUIRE(figures.size() == 2);  // errors and rates; there is no payload counter on a GPU
  CHECK(figures[1].name == "kernel_rates");
  const fs::path folder = test::scratch_folder() / "figures";
  fs::create_directories(folder);
  (void)draw_figures(figures, folder);
  CHECK(fs::exists(folder / "kernel_rates.csv"));
}

}  // namespace
}  // namespace kvsim
