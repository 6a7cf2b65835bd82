#include "sim/report/service/serve_finding.hpp"

#include <algorithm>
#include <optional>

#include "sim/report/text/method_cases.hpp"

namespace kvsim {
std::string serve_finding(const Scenario& scenario, const std::vector<ServeResult>& results) {
  const auto rival = [](const ServeResult& r) {
    MethodCase::Rival out{
        .label = {}, .runs = r.rejected + r.unfinished == 0, .value = r.slo_attained};
    if (!out.value && r.e2e.n > 0 && r.e2e.p50 > 0) out.value = 1 / r.e2e.p50;
    return out;
  };
  const auto pool_share = [](const ServeResult& r) -> std::optional<double> {
    if (r.blocks == 0) return std::nullopt;
    return static_cast<double>(r.peak_blocks) / static_cast<double>(r.blocks);
  };
  const bool by_bounds = std::any_of(results.begin(), results.end(), [](const ServeResult& r) {
    return r.slo_attained.has_value();
  });
  return finding_of(method_cases(scenario, results, rival, pool_share),
                    service_case_words(by_bounds));
}

}  // namespace kvsim
