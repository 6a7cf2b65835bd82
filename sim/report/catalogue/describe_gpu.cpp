#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_text.hpp"

namespace kvsim {

using nlohmann::ordered_json;

ordered_json gpu_json(const Gpu& gpu) {
  ordered_json out;
  out["name"] = gpu.name;
  out["aliases"] = gpu.aliases;
  out["generation"] = gpu.generation;
  out["silicon"] = gpu.silicon;
  out["hbm_bytes"] = gpu.hbm.count();
  out["usable_hbm_bytes"] = gpu.hbm_usable.count();
  out["usable_hbm_measured"] = gpu.hbm_usable_measured;
  out["hbm_bandwidth_bytes_per_s"] = gpu.hbm_bandwidth.count();
  out["peak_dense_flop_per_s"] = ordered_json::object();
  for (const auto& [dtype, peak] : gpu.peak) {
    out["peak_dense_flop_per_s"][std::string{name_of(dtype)}] = peak.count();
  }
  out["peak_fp32_flop_per_s"] = gpu.peak_fp32.count();
  out["sms"] = gpu.sms;
  out["l2_bytes"] = gpu.l2.count();
  out["nvlink_bytes_per_s"] = gpu.nvlink ? ordered_json(gpu.nvlink->count()) : nullptr;
  out["pcie_bytes_per_s"] = gpu.pcie.count();
  out["c2c_bytes_per_s"] = gpu.c2c ? ordered_json(gpu.c2c->count()) : nullptr;
  out["sources"] = gpu.sources;
  return out;
}

std::string gpu_text(const Gpu& gpu, std::size_t width) {
  Facts facts;
  if (!gpu.aliases.empty())
    facts.add("also called", fmt::format("{}", fmt::join(gpu.aliases, ", ")));
  facts.add("generation",
            fmt::format("{}; timings of {} hold for it", gpu.generation, gpu.silicon));
  facts.add("HBM", fmt::format("{}, of which a process sees {} ({})", gpu.hbm, gpu.hbm_usable,
                               gpu.hbm_usable_measured ? "measured" : "scaled from a sibling"));
  facts.add("bandwidth", fmt::format("{}", gpu.hbm_bandwidth));
  std::string peaks;
  for (const auto& [dtype, peak] : gpu.peak) {
    peaks += fmt::format("{}{} {}", peaks.empty() ? "" : ", ", name_of(dtype), peak);
  }
  facts.add("dense peak", peaks);
  facts.add("fp32 peak", fmt::format("{} without tensor cores", gpu.peak_fp32));
  facts.add("SMs", fmt::format("{}", gpu.sms));
  facts.add("L2", fmt::format("{}", gpu.l2));
  facts.add("NVLink", gpu.nvlink ? fmt::format("{} both ways together", *gpu.nvlink) : "none");
  facts.add("PCIe", fmt::format("{} each way", gpu.pcie));
  if (gpu.c2c) facts.add("to its CPU", fmt::format("{} each way", *gpu.c2c));
  return gpu.name + "\n" + facts.str(width) + sources_text(gpu.sources, width);
}

}  // namespace kvsim
