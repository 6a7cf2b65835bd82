#include "models/cost/rates/device_calibration.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kSchema = "kvsim.calibrate-device/1";
constexpr double kMax = 1e18;
// Matrix products on CUDA cores, used in place of a library's kernels.
constexpr std::array<std::string_view, 3> kSubstitutes{"gemm", "gemv", "mlp_scores"};

struct TimedCase {
  double share = 0, spread = 0, bytes = 0;
};

OpFamily read_family(const Field& f) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < kOpFamilies; ++i) {
    words.emplace_back(name_of(static_cast<OpFamily>(i)));
  }
  const std::string word = f.choice(words);
  return static_cast<OpFamily>(std::find(words.begin(), words.end(), word) - words.begin());
}

const Gpu& read_gpu(const Field& f) {
  std::string name = f.string();
  if (name.starts_with("NVIDIA ")) name.erase(0, 7);
  try {
    return find_gpu(name);
  } catch (const InputError& error) {
    f.fail(fmt::format("shares of a data sheet need the GPU's: {}", error.what()));
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Efficiency summarise(const std::vector<TimedCase>& cases) {
  std::vector<double> shares;
  Efficiency out;
  out.min_bytes = kMax;
  out.max_bytes = 0;
  double spread = 0;
  for (const TimedCase& one : cases) {
    shares.push_back(one.share);
    spread = std::max(spread, one.spread);
    out.min_bytes = std::min(*out.min_bytes, one.bytes);
    out.max_bytes = std::max(*out.max_bytes, one.bytes);
  }
  const double middle = median(shares);
  double squares = 0;
  for (const double share : shares) {
    squares += std::pow(std::log(share / middle), 2) / static_cast<double>(shares.size());
  }
  out.bandwidth = std::min(middle, 1.0);
  out.relative_residual = std::max(std::sqrt(squares), spread);
  return out;
}

}  // namespace

bool is_device_calibration(const Field& document) {
  if (!document.is_object()) return false;
  const auto schema = document.find("schema");
  return schema && schema->is_string() && schema->string() == kSchema;
}

std::shared_ptr<const Calibration> read_device_calibration(const Field& document, std::string id) {
  document.allow_only({"schema", "device", "compute_capability", "sms", "usable_bytes", "l2_bytes",
                       "cuda_driver", "date", "ceilings_gb_s", "state", "measurements", "kernels"});
  if (document.at("schema").string() != kSchema) {
    document.at("schema").expected(fmt::format("\"{}\"", kSchema));
  }
  const Gpu& gpu = read_gpu(document.at("device"));
  const double l2 = document.at("l2_bytes").number(1, kMax);
  std::array<std::vector<TimedCase>, kOpFamilies> cases;
  bool any = false;
  for (const Field& each : document.at("kernels").items()) {
    each.allow_only({"name",  "family",        "shape",         "dtype",       "pass",
                     "error", "error_allowed", "bytes_counted", "bytes_model", "counted",
                     "model", "problem",       "time_us",       "spread",      "samples",
                     "gb_s",  "predicted_us",  "skipped",       "dram",        "compared"});
    if (each.find("skipped")) continue;  // its prerequisites were not available
    if (!each.at("pass").boolean()) {
      each.at("pass").fail("this kernel's results were wrong, so that its time means nothing");
    }
    const OpFamily family = read_family(each.at("family"));
    const std::string name = each.at("name").string();
    const double bytes = each.at("bytes_model").number(0, kMax);
    const double us = each.at("time_us").number(1e-6, 1e12);
    const double spread = each.at("spread").number(0, 1e6);
    const bool is_substitute =
        std::find(kSubstitutes.begin(), kSubstitutes.end(), name) != kSubstitutes.end();
    if (is_substitute || bytes <= l2) continue;
    const double rate = family == OpFamily::kHostCopy ? gpu.c2c.value_or(gpu.pcie).count()
                                                      : gpu.hbm_bandwidth.count();
    cases[static_cast<std::size_t>(family)].push_back(
        {.share = bytes / (us * 1e-6) / rate, .spread = spread, .bytes = bytes});
    any = true;
  }
  if (!any) {
    document.at("kernels").fail(fmt::format(
        "expected a timed kernel that moves more than the L2 cache's {:.0f} bytes, got none", l2));
  }
  auto out = std::make_shared<Calibration>();
  out->id = std::move(id);
  out->provenance = fmt::format(
      "shares of the data sheet of {} that kernels reached on {}, {}; families without a timed "
      "kernel run at the data sheet's rate",
      gpu.name, document.at("device").string(), document.at("date").string());
  out->host_residual = kProfileResidual;
  for (std::size_t i = 0; i < kOpFamilies; ++i) {
    Efficiency& family = out->families[i];
    if (cases[i].empty()) {
      family.relative_residual = kProfileResidual;
    } else {
      family = summarise(cases[i]);
    }
  }
  return out;
}

}  // namespace kvsim
