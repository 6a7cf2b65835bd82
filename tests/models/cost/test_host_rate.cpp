// Rates of copies between a GPU and its host, whole and in pieces.

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/cost/rates/host_rate.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "tests/support/check.hpp"
#include "validation/measured/csv_table.hpp"

using namespace kvsim;
using kvsim::test::rel;

namespace {

double rate(const Gpu& gpu, const Stack& stack, std::int64_t piece = 0) {
  return host_rate(Roofline{gpu, stack, {}}, gpu, stack, Bytes{piece}).count();
}

constexpr double kLaunchShare = 1e-6;  // latency before a large copy: the launch

}  // namespace

TEST_CASE("host copies by hand: a share of the link, and copies of pieces one by one") {
  const Gpu& h100 = find_gpu("H100-80GB-SXM");
  const Stack& vllm = find_stack("vllm");
  CHECK(rate(h100, vllm) == rel(0.81 * 64e9, kLaunchShare));
  CHECK(rate(find_gpu("A100-80GB-SXM"), find_stack("hf-sdpa")) == rel(0.81 * 32e9, kLaunchShare));
  // Superchips copy over their own link.
  CHECK(rate(find_gpu("GH200-96GB"), vllm) == rel(0.81 * 450e9, kLaunchShare));
  // 1 KiB copies take 0.6 us each; 8 KiB reach 0.105 of the link; 64 KiB equal large copies.
  CHECK(rate(h100, vllm, 1024) == rel(1024 / 0.6e-6, kLaunchShare));
  CHECK(rate(h100, vllm, 8192) == rel(0.105 * 64e9, kLaunchShare));
  CHECK(rate(h100, vllm, 65536) == rel(0.81 * 64e9, kLaunchShare));
  // A bound uses the data sheet's rate at every size.
  CHECK(rate(h100, find_stack("ideal")) == 64e9);
  CHECK(rate(h100, find_stack("ideal"), 1024) == 64e9);
  // A device calibration without copies also uses the data sheet's rate; a calibration with copies
  // provides the rate.
  Calibration device{.id = "device", .provenance = "made up"};
  const auto calibrated = [&](std::int64_t piece) {
    return host_rate(Roofline{h100, vllm, device}, h100, vllm, Bytes{piece}).count();
  };
  CHECK(calibrated(0) == 64e9);
  CHECK(calibrated(1024) == 64e9);
  device.families[static_cast<std::size_t>(OpFamily::kHostCopy)].bandwidth = 0.5;
  CHECK(calibrated(0) == 32e9);
  CHECK(calibrated(1024) == rel(1024 / 0.6e-6, kLaunchShare));
  CHECK(calibrated(1 << 20) == 32e9);
  // A stack's share for copies by its operators also limits its engine.
  Stack slow = vllm;
  slow.reached["host_copy"].bandwidth = 0.25;
  CHECK(rate(h100, slow) == 16e9);
}

TEST_CASE(
    "host copies: below the data sheet's rate except for bounds, never faster in smaller pieces") {
  for (const Gpu& gpu : builtin_gpus()) {
    const double link = gpu.c2c.value_or(gpu.pcie).count();
    for (const Stack& stack : builtin_stacks()) {
      INFO(gpu.name, " ", stack.name);
      const double whole = rate(gpu, stack);
      CHECK((stack.name == "ideal" ? whole == link : whole < link));
      double last = 0;
      for (std::int64_t piece = 1; piece <= 1 << 30; piece *= 2) {
        const double r = rate(gpu, stack, piece);
        CHECK(r > 0);
        CHECK(r >= last);
        CHECK(r <= whole * (1 + kLaunchShare));
        last = r;
      }
      CHECK(last == rel(whole, kLaunchShare));
    }
  }
}

TEST_CASE("host copies: measured pages on H100 by size") {
  const auto data = test::data_dir();
  if (!data) return;
  const CsvTable table = CsvTable::read_file(*data / "measured" / "bandwidth_micro.csv");
  const std::size_t test = table.index("test"), bytes = table.index("size_bytes"),
                    value = table.index("value"), gpu = table.index("gpu");
  constexpr double kGiga = 1e9;
  std::vector<double> errors;
  int large = 0;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const std::string& name = table.text(i, test);
    const double measured =
        table.text(i, value).empty() ? 0 : table.number(i, value, 0, 1e6) * kGiga;
    if (name == "kv_h2d_cuMemcpyBatchAsync") {
      const std::int64_t piece = table.integer(i, bytes, 1, 1 << 30);
      errors.push_back(
          std::abs(rate(find_gpu("H100-80GB-SXM"), find_stack("vllm"), piece) / measured - 1));
    }
    // The A100's host copy rate is an outlier (README of the measurements).
    if (name == "nvbandwidth_host_to_device") {
      ++large;
      CHECK(rate(find_gpu(table.text(i, gpu)), find_stack("vllm")) == rel(measured, 0.03));
    }
  }
  CHECK(large == 3);
  REQUIRE(errors.size() == 18);
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 0.1);
  CHECK(errors.back() < 0.8);  // equal to the spread between runs of one size
}
