#include <array>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/cli/validate/kernels_report.hpp"
#include "validation/device/profiler_csv.hpp"

namespace kvsim {

void add_counters(KernelsScore& score, const std::string& profiled, const std::string& csv) {
  const nlohmann::json cases = nlohmann::json::parse(profiled).at("kernels");
  std::vector<std::int64_t> launches;
  for (const auto& one : cases) launches.push_back(one.at("model").at("launches"));
  const auto counted =
      counters_by_case(read_profiler_csv(csv, "ncu's table"), launches, "ncu's table");
  std::map<std::array<std::string, 3>, DramBytes> of;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    of[{cases[i].at("name"), cases[i].at("shape"), cases[i].at("dtype")}] = {
        counted[i].dram_read, counted[i].dram_written};
  }
  for (const kernels::KernelResult& r : score.results) {
    const auto found = of.find({r.name, r.shape, r.dtype});
    score.dram.push_back(found == of.end() ? std::nullopt : std::optional{found->second});
  }
  score.notes.push_back(fmt::format(
      "DRAM: bytes by ncu's hardware counters over the formula's; {} cases", of.size()));
}

}  // namespace kvsim
