#include "validation/device/kernels_apart.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "validation/device/apart.hpp"

namespace kvsim {
namespace {

using kernels::KernelResult;
using kernels::KernelTraffic;
using nlohmann::json;

// Messages between the processes, one per line.

json to_json(const KernelTraffic& t) {
  return json::array({t.loaded.count(), t.stored.count(), t.atomics, t.launches});
}
KernelTraffic to_traffic(const json& j) {
  return {Bytes{j.at(0).get<std::int64_t>()}, Bytes{j.at(1).get<std::int64_t>()},
          j.at(2).get<std::int64_t>(), j.at(3).get<std::int64_t>()};
}

json to_json(const KernelResult& r) {
  json out{{"name", r.name},        {"shape", r.shape},     {"dtype", r.dtype},
           {"family", r.family},    {"pass", r.pass},       {"error", r.error},
           {"allowed", r.allowed},  {"problem", r.problem}, {"skipped", r.skipped},
           {"compared", r.compared}};
  out["model"] = to_json(r.model);
  if (r.counted) out["counted"] = to_json(*r.counted);
  if (r.timing) {
    out["timing"] = {r.timing->median_us, r.timing->spread, r.timing->samples};
  }
  return out;
}
KernelResult to_result(const json& j) {
  KernelResult r;
  r.name = j.at("name");
  r.shape = j.at("shape");
  r.dtype = j.at("dtype");
  r.family = j.at("family");
  r.pass = j.at("pass");
  const json& error = j.at("error");  // JSON has no NaN
  r.error = error.is_null() ? std::numeric_limits<double>::quiet_NaN() : error.get<double>();
  r.allowed = j.at("allowed");
  r.problem = j.at("problem");
  r.skipped = j.at("skipped");
  r.compared = j.at("compared");
  r.model = to_traffic(j.at("model"));
  if (j.contains("counted")) r.counted = to_traffic(j.at("counted"));
  if (j.contains("timing")) {
    const json& t = j.at("timing");
    r.timing = kernels::KernelTiming{t.at(0), t.at(1), t.at(2)};
  }
  return r;
}

KernelResult not_run(const std::string& name, const std::string& problem) {
  KernelResult r;
  r.name = name;
  r.shape = "all of it";
  r.dtype = "-";
  r.family = "method";
  r.pass = false;
  r.problem = problem;
  return r;
}

}  // namespace

std::vector<KernelResult> run_kernels_apart(const std::vector<std::string>& names,
                                            const KernelRuns& runs) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point last = Clock::now() + runs.limit;
  const auto left = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(last - Clock::now());
  };
  std::vector<KernelResult> results;
  std::size_t next = 0;
  while (next < names.size()) {
    if (left().count() <= 0) {
      for (; next < names.size(); ++next) {
        results.push_back(not_run(names[next], {}));
        results.back().pass = true;
        results.back().skipped = "no time was left";
      }
      break;
    }
    const std::size_t first = next;
    std::string broken;
    const ChildEnd end = run_apart(
        [&](const auto& say) {
          for (std::size_t i = first; i < names.size(); ++i) {
            json line{{"results", json::array()}};
            for (const KernelResult& r : runs.run(names[i])) {
              line["results"].push_back(to_json(r));
            }
            const std::string fault = runs.fault();
            line["fault"] = fault;
            say(line.dump(-1, ' ', false, json::error_handler_t::replace));
            if (!fault.empty() || left().count() <= 0) return;
          }
        },
        [&](std::string_view line) {
          const json heard = json::parse(line);
          for (const json& r : heard.at("results")) results.push_back(to_result(r));
          broken = heard.at("fault");
          ++next;
        },
        std::min(runs.patience, left()));
    if (next == names.size()) break;
    if (left().count() <= 0) continue;
    if (end.interrupted) {
      for (; next < names.size(); ++next) {
        results.push_back(not_run(names[next], fmt::format("not run: {}", end.why)));
      }
      break;
    }
    if (end.why.empty() && !broken.empty() && next > first) continue;  // it broke the device
    // The current kernel terminated its process.
    results.push_back(not_run(
        names[next],
        fmt::format("its process ended: {}", end.why.empty() ? "without a message" : end.why)));
    ++next;
  }
  return results;
}

DeviceList list_devices_apart(const std::function<DeviceList()>& list) {
  DeviceList out;
  const ChildEnd end = run_apart(
      [&](const auto& say) {
        const DeviceList found = list();
        json line{{"driver", found.driver}, {"problem", found.problem}, {"devices", json::array()}};
        for (const DeviceInfo& d : found.devices) {
          line["devices"].push_back({d.name, d.pci_bus_id, d.compute_major, d.compute_minor, d.sms,
                                     d.total_memory.count(), d.free_memory.count(), d.l2.count()});
        }
        say(line.dump(-1, ' ', false, json::error_handler_t::replace));
      },
      [&](std::string_view line) {
        const json heard = json::parse(line);
        out.driver = heard.at("driver");
        out.problem = heard.at("problem");
        for (const json& d : heard.at("devices")) {
          out.devices.push_back({.name = d.at(0),
                                 .pci_bus_id = d.at(1),
                                 .compute_major = d.at(2),
                                 .compute_minor = d.at(3),
                                 .sms = d.at(4),
                                 .total_memory = Bytes{d.at(5).get<std::int64_t>()},
                                 .free_memory = Bytes{d.at(6).get<std::int64_t>()},
                                 .l2 = Bytes{d.at(7).get<std::int64_t>()}});
        }
      },
      std::chrono::seconds{60});
  if (!end.why.empty() && out.devices.empty()) {
    out.problem = fmt::format("querying devices ended with {}", end.why);
  }
  return out;
}

}  // namespace kvsim
