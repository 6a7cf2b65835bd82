#include <algorithm>

#include <nlohmann/json.hpp>

#include "sim/cli/validate/kernels_report.hpp"

namespace kvsim {
namespace {

using kernels::KernelResult;
using kernels::KernelTraffic;
using nlohmann::ordered_json;

ordered_json traffic_json(const KernelTraffic& t) {
  return {{"loaded", t.loaded.count()},
          {"stored", t.stored.count()},
          {"atomics", t.atomics},
          {"launches", t.launches}};
}

}  // namespace

bool KernelsScore::pass() const {
  return std::all_of(results.begin(), results.end(), [](const auto& r) { return r.pass; });
}

ordered_json kernels_json(const KernelsScore& score) {
  ordered_json out{{"schema", "kvsim.validate-kernels/1"},
                   {"device", score.device},
                   {"driver", nullptr},
                   {"seed", score.seed},
                   {"pass", score.pass()},
                   {"kernels", ordered_json::array()},
                   {"notes", score.notes}};
  if (!score.driver.empty()) out["driver"] = score.driver;
  for (std::size_t i = 0; i < score.results.size(); ++i) {
    const KernelResult& r = score.results[i];
    ordered_json one{{"name", r.name},
                     {"family", r.family},
                     {"shape", r.shape},
                     {"dtype", r.dtype},
                     {"pass", r.pass},
                     {"error", r.error},
                     {"error_allowed", r.allowed},
                     {"bytes_counted", nullptr},
                     {"bytes_model", bytes_of(r.model).count()},
                     {"counted", nullptr},
                     {"model", traffic_json(r.model)},
                     {"problem", nullptr}};
    if (r.counted) {
      one["bytes_counted"] = bytes_of(*r.counted).count();
      one["counted"] = traffic_json(*r.counted);
    }
    if (!r.problem.empty()) one["problem"] = r.problem;
    if (!r.skipped.empty()) one["skipped"] = r.skipped;
    if (!r.compared) one["compared"] = false;
    if (!score.dram.empty()) {
      one["dram"] = nullptr;
      if (const auto& dram = score.dram[i]) {
        one["dram"] = {{"read", dram->read}, {"written", dram->written}};
      }
    }
    if (r.timing) {
      one["time_us"] = r.timing->median_us;
      one["spread"] = r.timing->spread;
      one["samples"] = r.timing->samples;
      one["gb_s"] = gb_s(r);
      one["predicted_us"] = nullptr;
      if (!score.predicted_us.empty()) one["predicted_us"] = score.predicted_us[i];
    }
    out["kernels"].push_back(std::move(one));
  }
  return out;
}

}  // namespace kvsim
