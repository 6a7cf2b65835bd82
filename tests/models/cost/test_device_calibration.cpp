// The file that `kvsim calibrate --device cuda` writes, read back as a calibration. All numbers
// here are made up: no GPU was measured.

#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "models/cost/rates/device_calibration.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/units/error.hpp"
#include "sim/cli/validate/device_report.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using test::rel;

constexpr double kRate = 3.35e12;  // data sheet of the made-up device

/// A case that reached `share` of the data sheet's bandwidth.
kernels::KernelResult made_up(const char* name, const char* family, double bytes, double share,
                              double spread = 0.01) {
  kernels::KernelResult r;
  r.name = name;
  r.family = family;
  r.shape = "made up";
  r.dtype = "bf16";
  r.model = {Bytes{static_cast<std::int64_t>(bytes)}, Bytes{0}};
  r.timing = kernels::KernelTiming{
      .median_us = bytes / (share * kRate) * 1e6, .spread = spread, .samples = 25};
  return r;
}

ordered_json made_up_document() {
  KernelsScore score;
  score.device = "NVIDIA H100-80GB-SXM";
  score.driver = "13.0";
  score.results = {made_up("stream_read", "elementwise", 1e9, 0.9),
                   made_up("stream_copy", "elementwise", 1e9, 0.8),
                   made_up("stream_copy", "elementwise", 4e9, 0.85),
                   made_up("stream_copy", "elementwise", 1e6, 0.1),  // within the L2 cache
                   made_up("decode_attention", "decode_attention", 5e8, 0.7, 0.04),
                   made_up("gather_entries", "compaction", 5e8, 1.4),  // a cache served some reads
                   made_up("gemm", "gemm", 5e8, 0.05)};
  kernels::KernelResult missing;  // a case of a missing library, which was not run
  missing.name = "cublaslt";
  missing.family = "norm";
  missing.skipped = "made up";
  score.results.push_back(missing);
  score.dram.resize(score.results.size());
  score.dram[0] = DramBytes{.read = 9.9e8, .written = 1e6};
  score.results[4].compared = false;
  const DeviceInfo device{.name = score.device,
                          .pci_bus_id = "0000:00:00.0",
                          .compute_major = 9,
                          .compute_minor = 0,
                          .sms = 132,
                          .total_memory = Bytes{80'000'000'000},
                          .free_memory = Bytes{80'000'000'000},
                          .l2 = Bytes{50'000'000}};
  const DeviceStates states{.before = {.sm_mhz = 1980}, .after = {.problem = "made up"}};
  kernels::Measurement skipped;
  skipped.name = "cublas_gemm";
  skipped.skipped = "made up";
  return device_json(score, device, states,
                     {{"graph", "made up", "us a launch", 1.5, 0.02, 25}, skipped}, "2026-01-01");
}

std::shared_ptr<const Calibration> read(const ordered_json& document) {
  return read_device_calibration(Field::parse(document.dump(), "made_up.json"), "mine");
}
std::string complaint(const ordered_json& document) {
  try {
    (void)read(document);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a device's document: shares of the data sheet by family as written") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  REQUIRE(gpu.hbm_bandwidth.count() == rel(kRate));
  const auto own = read(made_up_document());
  CHECK(own->id == "mine");
  CHECK(own->kernels == nullptr);
  CHECK(own->provenance.find("NVIDIA H100-80GB-SXM, 2026-01-01") != std::string::npos);
  // The median of 0.8, 0.85 and 0.9; cases that fit the cache are not counted.
  const Efficiency& streams = own->of(OpFamily::kElementwise);
  CHECK(streams.bandwidth == rel(0.85, 1e-9));
  CHECK(*streams.min_bytes == 1e9);
  CHECK(*streams.max_bytes == 4e9);
  const double scatter =
      std::sqrt((std::pow(std::log(0.8 / 0.85), 2) + std::pow(std::log(0.9 / 0.85), 2)) / 3);
  CHECK(*streams.relative_residual == rel(scatter, 1e-6));
  // One case: its spread is the smallest known spread.
  CHECK(own->of(OpFamily::kDecodeAttention).bandwidth == rel(0.7, 1e-9));
  CHECK(*own->of(OpFamily::kDecodeAttention).relative_residual == rel(0.04));
  CHECK(own->of(OpFamily::kCompaction).bandwidth == 1);
  // Not timed, or timed with a substitute kernel: the data sheet's rate.
  CHECK(own->of(OpFamily::kGemm).bandwidth == 1);
  CHECK_FALSE(own->of(OpFamily::kGemm).min_bytes);
  CHECK(*own->of(OpFamily::kNorm).relative_residual == kProfileResidual);
}

TEST_CASE("a device's document: counters next to the model's bytes, and why a case was skipped") {
  const ordered_json kernels = made_up_document().at("kernels");
  CHECK(kernels[0].at("dram").at("read") == 9.9e8);
  CHECK(kernels[0].at("dram").at("written") == 1e6);
  CHECK(kernels[1].at("dram").is_null());
  CHECK(kernels[0].count("compared") == 0);
  CHECK(kernels[4].at("compared") == false);
  CHECK(kernels.back().at("skipped") == "made up");
  CHECK(kernels.back().count("time_us") == 0);
  KernelsScore plain;
  plain.results.emplace_back();
  CHECK(kernels_json(plain).at("kernels")[0].count("dram") == 0);
}

TEST_CASE("a device's document: an operator moves its bytes at the measured share of bandwidth") {
  const auto own = read(made_up_document());
  const Roofline roofline{find_gpu("H100-80GB-SXM"), find_stack("ideal"), *own};
  const Op op{.name = "attention", .family = OpFamily::kDecodeAttention, .bytes_read = 3.35e9};
  // 3.35e9 B at 0.7 of 3.35e12 B/s, plus one launch.
  const double launch = find_stack("ideal").launch_overhead.count();
  CHECK(roofline.time(op).count() == rel(1e-3 / 0.7 + launch, 1e-6));
}

TEST_CASE("a device's document: a file of the user's own calibrations") {
  const fs::path path = test::scratch_folder() / "device_calibration.json";
  std::ofstream{path} << made_up_document().dump(1);
  const auto own = own_calibration(path, "device.json");
  CHECK(own->id == "device.json");
  CHECK(own->of(OpFamily::kDecodeAttention).bandwidth == rel(0.7, 1e-9));
  // It has no kernel forms: the error of the kernel-form reader names the folder for this file.
  CHECK_THROWS_WITH_AS((void)read_calibrations(path),
                       doctest::Contains("use it as a scenario's \"calibration\""),
                       InputError);
}

TEST_CASE("a broken device's document is refused with its place") {
  const auto broken = [](const char* pointer, const ordered_json& value) {
    ordered_json document = made_up_document();
    document[ordered_json::json_pointer{pointer}] = value;
    return complaint(document);
  };
  const auto holds = [](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  holds(broken("/device", "NVIDIA H1000"), "made_up.json: /device: shares of a data sheet need");
  holds(broken("/l2_bytes", -1), "/l2_bytes");
  holds(broken("/kernels/0/family", "elementwize"), "/kernels/0/family");
  holds(broken("/kernels/0/time_us", 0), "/kernels/0/time_us");
  holds(broken("/kernels/0/time_us", "fast"), "/kernels/0/time_us");
  holds(broken("/kernels/1/pass", false), "/kernels/1/pass: this kernel's results were wrong");
  holds(broken("/kernels/1/sprea", 1), "did you mean \"spread\"");
  holds(broken("/kernels", ordered_json::array()), "/kernels: expected a timed kernel");
  holds(broken("/schema", "kvsim.calibrate-device/2"), "/schema");
  ordered_json without_date = made_up_document();
  without_date.erase("date");
  holds(complaint(without_date), "date");
}

TEST_CASE("clocks, power and measurements, or the reasons why they are unknown") {
  const DeviceState state = read_device_state("no:such:address");
  CHECK_FALSE(state.problem.empty());
  for (const kernels::Measurement& m : kernels::measure_device()) {
    INFO(m.name, " ", m.shape);
    CHECK((m.skipped.empty() ? m.value > 0 && m.samples > 0 : m.samples == 0));
  }
}

}  // namespace
}  // namespace kvsim
